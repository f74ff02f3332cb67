"""What `tests/test_deployed.py` deploys from Python, and an app that never starts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from app_toolkit import Deployment


class Counter(Deployment, resources={"num_cpus": 0.1}):
    async def count(self, prompt: str) -> int:
        return len(prompt.split())


async def hello(request: Request) -> str:
    return "hello"


async def bye(request: Request) -> str:
    return "bye"


@asynccontextmanager
async def never_ends(app: FastAPI) -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


starts_for_ever = FastAPI(lifespan=never_ends)
