"""The longest recent delay of an event loop."""

import asyncio
import time

WINDOW_S = 10.0
"""Seconds after which a delay may be forgotten. After twice this time, it is."""

MEASURE_S = 0.5


class LoopLag:
    """Keeps the longest delay within the present and the last period of `WINDOW_S`. Safe from any thread."""

    def __init__(self) -> None:
        #: The number of the present period, its longest delay, and that of the period before.
        self._longest = 0, 0.0, 0.0

    def note(self, now: float, seconds: float) -> None:
        """Note that the loop ran something late by `seconds`. `now`: a time of a monotonic clock."""
        period, longest, before = self._at(now)
        self._longest = period, max(longest, seconds), before

    def longest(self, now: float) -> float:
        """Return the longest recent delay in seconds."""
        _, longest, before = self._at(now)
        return max(longest, before)

    async def measure(self) -> None:
        """Note the delays of the running loop until cancelled."""
        while True:
            due = time.monotonic() + MEASURE_S
            await asyncio.sleep(MEASURE_S)
            now = time.monotonic()
            self.note(now, max(now - due, 0.0))

    def _at(self, now: float) -> tuple[int, float, float]:
        period = int(now // WINDOW_S)
        then, longest, _ = self._longest
        if period == then:
            return self._longest
        return period, 0.0, longest if period == then + 1 else 0.0
