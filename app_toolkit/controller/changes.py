"""For whoever waits for the status to change."""

import asyncio

from app_toolkit.clock import Clock
from app_toolkit.controller.board import within


class Changes:
    """Counts whenever the status may have changed. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self.number = 0
        self._clock = clock
        self._waiters: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        self.number += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, until: float) -> None:
        """Until the next change, and not for longer than until this time on the clock."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await within(self._clock, until - self._clock.now(), waiter)
        finally:
            self._waiters.discard(waiter)
