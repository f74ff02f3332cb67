"""uvicorn's server without its timer: a process that serves nothing hardly uses the CPU."""

import asyncio
from contextlib import suppress

import uvicorn

DATE_S = 1.0
"""Seconds between two updates of the `Date` field of responses."""


class EventServer(uvicorn.Server):
    """A server that ends as soon as `should_exit` is set, from any thread.

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
