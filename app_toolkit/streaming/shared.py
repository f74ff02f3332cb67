"""A stream log that all replicas of all applications of an instance share."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from app_toolkit.core.stream_log import Append, Outcome, Page, Renewal
from app_toolkit.router import handle as handles
from app_toolkit.running import get_handle
from app_toolkit.streaming.log import DEFAULT, StreamLog


class SharedStreamLog:
    """The stream log of another application of the instance, which an update of this application leaves alone.

    Deploy it once: `app-toolkit deploy app_toolkit.streaming.service:log --name stream-log`. In one process without an
    instance, it is the memory of the process.
    """

    def __init__(self, application: str = "stream-log", deployment: str = "stream-log") -> None:
        """Name the application. Nothing is looked up before the first stream.

        Parameters:
            application: Name of the application. Default: stream-log.
            deployment: Name of its `StreamLogDeployment`. Default: stream-log.
        """
        self._application = application
        self._deployment = deployment
        self._found: StreamLog | None = None

    async def _log(self) -> StreamLog:
        """Return the handle of the log. Raises `ConfigError` if the instance has no such deployment."""
        if not handles.chosen:
            return DEFAULT
        if self._found is None:
            handle = await asyncio.to_thread(get_handle, self._application, self._deployment)
            self._found = cast(StreamLog, handle)
        return self._found

    async def begin(self, stream: str, owner: str, media_type: str, key: str | None) -> None:
        await (await self._log()).begin(stream, owner, media_type, key)

    async def append(self, appends: Sequence[Append]) -> list[Renewal | None]:
        return await (await self._log()).append(appends)

    async def end(self, stream: str, owner: str, outcome: Outcome) -> None:
        await (await self._log()).end(stream, owner, outcome)

    async def stop(self, stream: str) -> bool:
        return await (await self._log()).stop(stream)

    async def adopt(self, stream: str, owner: str, last: int) -> bool:
        return await (await self._log()).adopt(stream, owner, last)

    async def remove(self, stream: str) -> bool:
        return await (await self._log()).remove(stream)

    async def find(self, key: str) -> str | None:
        return await (await self._log()).find(key)

    async def media_type(self, stream: str) -> str:
        return await (await self._log()).media_type(stream)

    async def outcome(self, stream: str, after: int) -> Outcome | None:
        return await (await self._log()).outcome(stream, after)

    async def last(self, stream: str) -> int:
        return await (await self._log()).last(stream)

    async def follow(self, stream: str, after: int) -> AsyncGenerator[Page, None]:
        async with aclosing((await self._log()).follow(stream, after)) as pages:
            async for page in pages:
                yield page
