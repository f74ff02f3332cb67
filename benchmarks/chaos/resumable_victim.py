"""Apps whose streams are resumable. Their events are in an application of its own, or in Redis.

A request with the field `x-ledger-id` has its generator noted in the victim's ledger. The Redis server has its files in
the folder of the ledger.
"""

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Any

from fastapi.sse import EventSourceResponse

from app_toolkit import DeploymentConfig, Toolkit
from app_toolkit.streaming import SharedStreamLog, StreamLimits, StreamLogDeployment, resumable
from app_toolkit.streaming.redis import RedisStreamLog
from benchmarks.chaos.victim import Id, noted
from benchmarks.redis_server import url

LINGER_S = 2.0

ABANDONED_S = 10.0
"""`linger_s` of the streams that many clients abandon."""

LIMITS = StreamLimits(max_streams=400, lease_s=30.0)
"""Ended streams fill the log soon, so that its memory is flat after that."""

log = StreamLogDeployment.bind(LIMITS)
in_redis = RedisStreamLog(url(Path(os.environ.get("VICTIM_LEDGER", os.devnull)).parent), limits=LIMITS)


async def numbers(last: int, period_s: float, id: str | None) -> AsyncIterator[int]:
    with noted(id):
        for number in range(1, last + 1):
            if period_s:
                await asyncio.sleep(period_s)
            yield number


def version(title: str, log: Any) -> Toolkit:
    # A drain must not be shorter than the streams.
    options = DeploymentConfig(name="app", num_replicas=2, health_check_period_s=0.5, graceful_shutdown_timeout_s=120)
    app = Toolkit(title=title, deployment=options)

    @app.get("/numbers", response_class=EventSourceResponse)
    @resumable(log=log)
    async def count(last: int, period_s: float = 0.0, id: Id = None) -> AsyncIterable[int]:
        async for number in numbers(last, period_s, id):
            yield number

    @app.get("/lonely", response_class=EventSourceResponse)
    @resumable(log=log, linger_s=LINGER_S)
    async def lonely(last: int, period_s: float = 0.0, id: Id = None) -> AsyncIterable[int]:
        async for number in numbers(last, period_s, id):
            yield number

    return app


MIB = 2**20

SMALL = StreamLimits(max_bytes=4 * MIB, max_total_bytes=64 * MIB, max_unread_streams=200, lease_s=30.0)
"""Far fewer bytes than the clients of a scenario read."""

small_log = StreamLogDeployment.bind(SMALL)

limited = Toolkit(title="Limited", deployment=DeploymentConfig(name="app", health_check_period_s=0.5))


@limited.get("/")
async def ok(id: Id = None) -> dict[str, str | None]:
    return {"id": id}


@limited.get("/texts", response_class=EventSourceResponse)
@resumable(log=small_log, linger_s=ABANDONED_S)
async def texts(last: int, size: int = 1, period_s: float = 0.0, id: Id = None) -> AsyncIterable[str]:
    """Events that begin with their numbers, of so many bytes."""
    async for number in numbers(last, period_s, id):
        yield f"{number} ".ljust(size, "x")


one, two = version("One", SharedStreamLog()), version("Two", SharedStreamLog())
redis_one, redis_two = version("One, in Redis", in_redis), version("Two, in Redis", in_redis)
