"""The stream log of an application, and the one that all replicas of all applications of an instance share."""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from starlette.types import Scope

from app_toolkit import ConfigError, StreamLogMissing, get_handle, in_one_process, redis_url, replica_context
from app_toolkit.streaming.log import DEFAULT, StreamLog
from app_toolkit.streaming.stream_log import Append, Outcome, Page, Renewal


class SharedStreamLog:
    """The stream log of another application of the instance, which an update of this application leaves alone.

    `run` and `deploy` start it for an application with `stream_log = "shared"`, which is the default of applications
    with several replicas. Otherwise deploy it once: `app-toolkit deploy app_toolkit.streaming.service:log --name
    stream-log`. In one process without an instance, it is the memory of the process.

    Each application has keys of its own. The id of a stream is the same for all applications that use the log.
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
        """Return the handle of the log. Raises `StreamLogMissing` if the instance has no such deployment."""
        if in_one_process():
            return DEFAULT
        if self._found is None:
            try:
                handle = await asyncio.to_thread(get_handle, self._application, self._deployment)
            except ConfigError as error:
                raise StreamLogMissing(
                    f"the stream log {self._deployment!r} of application {self._application!r} is not deployed: run "
                    f"`app-toolkit deploy app_toolkit.streaming.service:log --name {self._application}`"
                ) from error
            self._found = cast(StreamLog, handle)
        return self._found

    async def begin(self, stream: str, owner: str, media_type: str, key: str | None) -> None:
        name = None if key is None else _name_of(key)
        await (await self._log()).begin(stream, owner, media_type, name)

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
        return await (await self._log()).find(_name_of(key))

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


def _name_of(key: str) -> str:
    """Return the name of a key in a log that several applications share. All revisions of one have the same names."""
    try:
        return f"{replica_context().application}:{key}"
    except RuntimeError:  # no replica, such as a script
        return key


MIRRORED = (b"x-app-toolkit-mirrored", b"1")
"""The header field of a mirrored request."""

_SHARED: StreamLog = SharedStreamLog()

_in_redis: dict[tuple[AbstractEventLoop, str], StreamLog] = {}
"""The logs in Redis of this process, by event loop and URL. A server has one loop, and an application one URL."""


def application_log(scope: Scope) -> StreamLog:
    """Return the stream log that the application of a request has chosen with its option `stream_log`.

    The stream of a mirrored request is kept in memory: in a log that others share, it could take the place of the
    stream of the client.

    Raises `StreamLogMissing` if it is in Redis, and the server or the package is not configured.
    """
    choice: str = scope.get("extensions", {}).get("app_toolkit", {}).get("stream_log", "memory")
    if choice == "memory" or MIRRORED in scope.get("headers", ()):
        return DEFAULT
    if choice == "shared":
        return _SHARED
    url = redis_url() if choice == "redis" else choice
    if url is None:
        raise StreamLogMissing(
            "the stream log is not configured: set the environment variable APP_TOOLKIT_REDIS_URL of the replicas to "
            "the URL of the Redis server"
        )
    key = asyncio.get_running_loop(), url  # connections belong to one loop
    if key not in _in_redis:
        try:
            from app_toolkit.streaming.redis import RedisStreamLog

            _in_redis[key] = RedisStreamLog(url)
        except ConfigError as error:
            raise StreamLogMissing(f"the stream log is not configured: {error}") from error
    return _in_redis[key]
