"""Resumable streams of two replicas, whose events are in a log that is another application."""

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator

from fastapi.sse import EventSourceResponse

from app_toolkit import DeploymentConfig, Toolkit
from app_toolkit.streaming import LostStream, SharedStreamLog, resumable, stream_router

log = SharedStreamLog()


async def numbers(first: int, last: int, period_s: float) -> AsyncIterator[int]:
    for number in range(first, last + 1):
        await asyncio.sleep(period_s)
        yield number


async def go_on(lost: LostStream) -> AsyncIterator[int]:
    last = int(lost.request.query_params["last"])
    async for number in numbers(len(lost.events) + 1, last, 0.01):
        yield number


def make(title: str) -> Toolkit:
    app = Toolkit(title=title, deployment=DeploymentConfig(name="app", num_replicas=2, health_check_period_s=0.5))

    @app.get("/numbers", response_class=EventSourceResponse)
    @resumable(log=log)
    async def count(last: int, period_s: float = 0.01) -> AsyncIterable[int]:
        async for number in numbers(1, last, period_s):
            yield number

    @app.get("/lasting", response_class=EventSourceResponse)
    @resumable(log=log, resume=go_on)
    async def lasting(last: int, period_s: float = 0.01) -> AsyncIterable[int]:
        async for number in numbers(1, last, period_s):
            yield number

    @app.get("/pid")
    async def pid() -> int:
        return os.getpid()

    app.include_router(stream_router(log=log), prefix="/streams")
    return app


one, two = make("one"), make("two")
