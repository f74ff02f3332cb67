"""Wakes callers that wait for a change of the status or for new events."""

import asyncio

from app_toolkit.clock import Clock, within


class Notifier:
    """Counts changes, and wakes the callers that wait for one. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self.number = 0
        self._clock = clock
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        self.number += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, until: float) -> None:
        """Wait for the next change, until this time on the clock at the latest."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await within(self._clock, until - self._clock.now(), waiter)
        finally:
            self._waiters.discard(waiter)
