"""APScheduler: one replica runs the jobs, two serve everything else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from fastapi import APIRouter, FastAPI

from app_toolkit import DeploymentConfig, Toolkit

ticks: list[int] = []


@asynccontextmanager
async def scheduled(app: FastAPI) -> AsyncIterator[None]:
    scheduler = AsyncIOScheduler()
    scheduler.add_job(lambda: ticks.append(len(ticks)), "interval", seconds=0.2)
    scheduler.start()
    yield
    scheduler.shutdown()


jobs = APIRouter(lifespan=scheduled)


@jobs.get("/ticks")
async def count() -> int:
    return len(ticks)


app = Toolkit(deployment=DeploymentConfig(name="app", num_replicas=2))
app.include_router(jobs, deployment=DeploymentConfig(name="jobs", num_replicas=1))
