"""uvicorn's server without its timers: it hardly uses the CPU while it serves nothing, and ends at once."""

import asyncio
import logging
import socket
import time
from contextlib import suppress

import uvicorn

logger = logging.getLogger("app_toolkit.transport")

DATE_S = 1.0
"""Seconds between two updates of the `Date` field of responses."""
ENDED_POLL_S = 0.005
"""Seconds between two checks of a shutdown whether all connections and tasks have ended."""
CUT_S = 0.1
"""Seconds that tasks have to end by themselves once their connections are cut. Then they are cancelled."""


class EventServer(uvicorn.Server):
    """A server that ends as soon as `should_exit` is set, from any thread, and leaves no connection open.

    `uvicorn.Server` wakes up ten times per second to read `should_exit`. This one wakes up to update the `Date` field,
    and does not if its responses have none.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exits = asyncio.Event()
        self._should_exit = False
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        """Whether the server ends. It is set by signals, too."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, exits: bool) -> None:
        self._should_exit = exits
        if exits and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._exits.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()  # before `should_exit` is read, because another thread may set it
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S if self.config.date_header else None):
                    await self._exits.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as `uvicorn.Server` does, whose steps take 0.1 s each even if there is nothing to wait for.

        After `timeout_graceful_shutdown` seconds `uvicorn.Server` cancels tasks, but leaves a connection open if its
        client has stopped reading. This server cuts all connections, and cancels the tasks that do not end then. It
        does not read `force_exit`.
        """
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        try:
            await asyncio.sleep(ENDED_POLL_S)  # until the event loop has begun the connections that it has accepted
            for connection in list(self.server_state.connections):
                connection.shutdown()
            if not await self._ended_within(self.config.timeout_graceful_shutdown):
                self._cut()
                if not await self._ended_within(CUT_S):
                    logger.error("the server ends and cancels %d requests", len(self.server_state.tasks))
                    for task in self.server_state.tasks:
                        task.cancel("the server ends")
            await self.lifespan.shutdown()
        finally:
            self._cut()

    async def _ended_within(self, timeout_s: float | None) -> bool:
        """Wait until all connections and tasks have ended. Return False if they have not within `timeout_s` seconds."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # Polled once in the life of a server: an event would cost every request.
        while self.server_state.connections or self.server_state.tasks:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            await asyncio.sleep(ENDED_POLL_S)
        return True

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
