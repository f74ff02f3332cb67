"""One app for one process: it keeps a ledger in the folder that it was told to work in."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from tests.engines.contract.ground import Ground


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    Ground(Path.cwd()).note("began")
    yield
    Ground(Path.cwd()).note("ended")


app = FastAPI(lifespan=lifespan)


@app.get("/hold")
async def hold() -> str:
    ground = Ground(Path.cwd())
    ground.note("held")
    await ground.opened("hold")
    return "let go"


@app.get("/who")
async def who() -> str:
    return "lone"
