"""Decides whether a client may send one more request: by the requests of the last minute, and by those that run.

Plain data; the caller passes the time in seconds, which never decreases.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

MINUTE_S = 60.0

MAX_PER_MINUTE = 100_000
"""The highest limit of requests per minute, because a window keeps the time of each of them."""

BUSY_RETRY_S = 1.0
"""Seconds after which a client may retry that has too many requests at a time. It is unknown when one of them ends."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one API key. None: no limit."""

    max_concurrent: int | None = None
    """Requests at a time."""
    max_per_minute: int | None = None
    """Requests in any 60 seconds, at most 100,000."""
    max_tokens_per_day: int | None = None
    """Tokens of prompts and responses from 00:00 UTC on."""
    max_cost_per_day: float | None = None
    """Money from 00:00 UTC on, in the unit of the costs."""

    @property
    def has_budget(self) -> bool:
        """Whether there is a limit of tokens or of money."""
        return self.max_tokens_per_day is not None or self.max_cost_per_day is not None


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A request that is over a limit."""

    limit: Literal["max_concurrent", "max_per_minute", "max_tokens_per_day", "max_cost_per_day"]
    retry_after_s: float
    """Seconds after which a retry makes sense."""
    used: float = 0
    """Of a budget: what is spent."""


@dataclass(frozen=True, slots=True, eq=False)
class RatePermit:
    """The right to run one request."""


class SlidingWindow:
    """The times of the requests that were admitted in the last minute."""

    def __init__(self, limit: int) -> None:
        """`limit`: requests in any 60 seconds, from 1 to `MAX_PER_MINUTE`."""
        self._limit = limit
        self._times: deque[float] = deque()

    def admit(self, now: float) -> bool:
        """Count a request and return True, or return False if it is over the limit."""
        if self.remaining(now) <= 0:
            return False
        self._times.append(now)
        return True

    def remaining(self, now: float) -> int:
        """Return the number of requests that are admitted now."""
        while self._times and now - self._times[0] >= MINUTE_S:
            self._times.popleft()
        return self._limit - len(self._times)

    def retry_after_s(self, now: float) -> float:
        """Return the seconds after which a request is admitted that was refused now."""
        return max(0.0, MINUTE_S - (now - self._times[0]))


class RateLimiter:
    """The requests of one client. A refused request does not count."""

    def __init__(self, limits: KeyLimits) -> None:
        self._limits = limits
        self._window = None if limits.max_per_minute is None else SlidingWindow(limits.max_per_minute)
        self._running: set[RatePermit] = set()

    @property
    def running(self) -> int:
        """The number of requests that run."""
        return len(self._running)

    def remaining(self, now: float) -> int | None:
        """Return the number of requests that the limit of a minute admits now. None: there is no such limit."""
        return None if self._window is None else self._window.remaining(now)

    def acquire(self, now: float, *, runs: bool = True) -> RatePermit | OverLimit:
        """Admit a request, whose permit the caller releases when it ends, or refuse it.

        Parameters:
            now: The time in seconds.
            runs: Whether it counts against `max_concurrent` until then. Default: True.
        """
        limit = self._limits.max_concurrent
        if runs and limit is not None and self.running >= limit:
            return OverLimit("max_concurrent", BUSY_RETRY_S)
        if self._window is not None and not self._window.admit(now):
            return OverLimit("max_per_minute", self._window.retry_after_s(now))
        permit = RatePermit()
        if runs:
            self._running.add(permit)
        return permit

    def release(self, permit: RatePermit) -> None:
        """Note that a request has ended. To release a permit twice changes nothing."""
        self._running.discard(permit)
