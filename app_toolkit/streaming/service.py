"""The stream log as a deployment: one replica keeps the streams of all replicas of an application."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

from app_toolkit import Deployment, idempotent
from app_toolkit.streaming.log import CLEANUP_INTERVAL_S, MemoryStreamLog
from app_toolkit.streaming.stream_log import Append, Outcome, Page, Renewal, StreamLimits


class StreamLogDeployment(
    Deployment, name="stream-log", num_replicas=1, max_ongoing_requests=20_000, resources={"num_cpus": 0.1}
):
    """A stream log in the memory of a replica of its own. Its handle is a `StreamLog`.

    The streams end with the replica: if it dies, their readers get an error event.
    """

    def __init__(self, limits: StreamLimits | None = None) -> None:
        self._log = MemoryStreamLog(limits)
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._looking = asyncio.create_task(self._clean_up(), name="app-toolkit stream log")

    async def aclose(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    async def begin(self, stream: str, owner: str, media_type: str, key: str | None) -> None:
        await self._log.begin(stream, owner, media_type, key)

    @idempotent
    async def append(self, appends: Sequence[Append]) -> list[Renewal | None]:
        return await self._log.append(appends)

    @idempotent
    async def end(self, stream: str, owner: str, outcome: Outcome) -> None:
        await self._log.end(stream, owner, outcome)

    @idempotent
    async def stop(self, stream: str) -> bool:
        return await self._log.stop(stream)

    async def adopt(self, stream: str, owner: str, last: int) -> bool:
        return await self._log.adopt(stream, owner, last)

    @idempotent
    async def remove(self, stream: str) -> bool:
        return await self._log.remove(stream)

    @idempotent
    async def find(self, key: str) -> str | None:
        return await self._log.find(key)

    @idempotent
    async def media_type(self, stream: str) -> str:
        return await self._log.media_type(stream)

    @idempotent
    async def outcome(self, stream: str, after: int) -> Outcome | None:
        return await self._log.outcome(stream, after)

    @idempotent
    async def last(self, stream: str) -> int:
        return await self._log.last(stream)

    async def follow(self, stream: str, after: int) -> AsyncGenerator[Page, None]:
        async with aclosing(self._log.follow(stream, after)) as pages:
            async for page in pages:
                yield page

    async def _clean_up(self) -> None:
        while True:
            await asyncio.sleep(CLEANUP_INTERVAL_S)
            self._log.look()


log = StreamLogDeployment.bind()
"""The deployment that `SharedStreamLog` uses, as a target of `app-toolkit deploy`."""
