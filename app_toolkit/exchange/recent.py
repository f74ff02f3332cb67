"""Counts events of the last ten seconds in ten buckets of one second, in O(1) time and memory."""

from math import ceil

WINDOW_S = 10
"""The number of seconds, and of buckets."""

LONGEST_WAIT_S = 60
"""The maximum of `Retry-After` in seconds: the present rate does not predict the load after a minute."""


class Recent:
    """Counts the events of this second and of the nine before it. `now` is in seconds and never decreases."""

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
        """Return the events per second since the oldest event that is still counted; 0 if there are no events."""
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
    """Return the seconds until `waiting` requests are served if `rate` requests are answered per second: 1 to 60.

    If the rate is 0, one response in the window is assumed.
    """
    return max(ceil(min(waiting / (rate or 1 / WINDOW_S), LONGEST_WAIT_S)), 1)
