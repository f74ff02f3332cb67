"""How often something happened in the last ten seconds, in ten buckets of a second: O(1), however often it was."""

from math import ceil

WINDOW_S = 10

LONGEST_WAIT_S = 60
"""Nobody is told to stay away for longer: what is measured now says little about the minute after."""


class Recent:
    """Counts what happened in this second and in the nine before it. `now` is in seconds and never falls."""

    __slots__ = ("_counts", "_second")

    def __init__(self) -> None:
        self._counts = [0] * WINDOW_S
        self._second = 0

    def note(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            self._advance(second)
        self._counts[second % WINDOW_S] += 1

    def total(self, now: float) -> int:
        self._advance(int(now))
        return sum(self._counts)

    def rate(self, now: float) -> float:
        """How many a second, since the oldest that is still counted; 0 where there is none."""
        total = self.total(now)
        if not total:
            return 0.0
        oldest = next(
            second for second in range(self._second - WINDOW_S + 1, self._second + 1) if self._counts[second % WINDOW_S]
        )
        return total / max(now - oldest, 1.0)

    def _advance(self, second: int) -> None:
        for passed in range(max(self._second + 1, second - WINDOW_S + 1), second + 1):
            self._counts[passed % WINDOW_S] = 0
        self._second = second


def retry_after_s(waiting: int, rate: float) -> int:
    """Seconds until those who wait now are served, 1 to 60, where `rate` are answered a second.

    Where nothing was answered lately, one answer in the window is assumed.
    """
    return max(ceil(min(waiting / (rate or 1 / WINDOW_S), LONGEST_WAIT_S)), 1)
