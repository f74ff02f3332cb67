"""The same app on app_toolkit, and its token stream once more for each stream log."""

import os
from collections.abc import AsyncIterable

from fastapi.sse import EventSourceResponse
from routes import Token, router, tokens

from app_toolkit import DeploymentConfig, Toolkit
from app_toolkit.streaming import MemoryStreamLog, StreamLogDeployment, resumable
from app_toolkit.streaming.redis import RedisStreamLog

app = Toolkit(deployment=DeploymentConfig(name="app", max_open_streams=2_000))
app.include_router(router)


@app.get("/memory", response_class=EventSourceResponse)
@resumable(log=MemoryStreamLog())
async def in_memory(count: int, period_s: float = 0.0) -> AsyncIterable[Token]:
    async for token in tokens(count, period_s):
        yield token


@app.get("/deployment", response_class=EventSourceResponse)
@resumable(log=StreamLogDeployment.bind())
async def in_a_deployment(count: int, period_s: float = 0.0) -> AsyncIterable[Token]:
    async for token in tokens(count, period_s):
        yield token


if url := os.environ.get("STREAM_LOG_REDIS"):

    @app.get("/redis", response_class=EventSourceResponse)
    @resumable(log=RedisStreamLog(url))
    async def in_redis(count: int, period_s: float = 0.0) -> AsyncIterable[Token]:
        async for token in tokens(count, period_s):
            yield token
