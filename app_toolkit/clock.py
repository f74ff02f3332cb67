"""Clocks as arguments: the real clock, and one that tests control."""

import asyncio
import heapq
import itertools
import random
import time
from typing import Any, Protocol


class Clock(Protocol):
    """A clock in seconds. Only differences are meaningful, and only within one process."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    # A random offset, so that code which compares this clock with another one fails at once.
    _offset = random.uniform(10_000, 200_000)

    def now(self) -> float:
        return time.monotonic() + self._offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """Stands still until `advance` moves it. Sleepers wake in the order of their deadlines."""

    def __init__(self, now: float = 1_000.0) -> None:
        self._now = now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move the clock forward. Let all tasks that wake run until they wait again."""
        until = self._now + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            self._now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
            await self._settle()
        self._now = until
        await self._settle()

    def stall(self, seconds: float) -> None:
        """Move the clock forward as if no task ran meanwhile: all sleepers that are due wake late, at the end."""
        self._now += seconds
        self._sleepers = [(max(at, self._now), order, woken) for at, order, woken in self._sleepers]
        heapq.heapify(self._sleepers)

    async def _settle(self) -> None:
        for _ in range(20):  # chains of awaits that continue without waiting are rarely longer
            await asyncio.sleep(0)


async def within(clock: Clock, seconds: float, future: "asyncio.Future[Any]") -> bool:
    """Wait for a future for at most `seconds` on this clock. Return False if the time ended first."""
    alarm = asyncio.ensure_future(clock.sleep(max(0.0, seconds)))
    try:
        await asyncio.wait({alarm, future}, return_when=asyncio.FIRST_COMPLETED)
        return future.done()
    finally:
        alarm.cancel()
        await asyncio.gather(alarm, return_exceptions=True)
