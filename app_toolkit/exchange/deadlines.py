"""The deadlines of many requests, with one timer for all of them."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol


class Bounded(Protocol):
    """A request that has a deadline."""

    def expire(self) -> None: ...


class Deadlines:
    """The deadlines of requests with the same timeout, in the order in which they pass.

    They share one timer, because a timer for each request would be the largest part of the cost of a deadline. The
    timer is set for the first deadline, and set again only when it fires.
    """

    def __init__(self, timeout: float, clock: Callable[[], float]) -> None:
        """`timeout`: seconds that each request may take. `clock` returns the current time in seconds."""
        self.timeout = timeout
        self._clock = clock
        self._due: OrderedDict[Bounded, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: Bounded, due: float) -> None:
        """Call `request.expire` when the clock reaches `due`, unless the request is discarded before.

        Requests must be added in the order of their deadlines.
        """
        self._due[request] = due
        if self._timer is None:
            self._set(due - self._clock())

    def discard(self, request: Bounded) -> None:
        self._due.pop(request, None)

    def close(self) -> None:
        """Discard all requests, and cancel the timer."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __len__(self) -> int:
        return len(self._due)

    def _set(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._expire_due)

    def _expire_due(self) -> None:
        self._timer = None
        while self._due:
            request, due = next(iter(self._due.items()))
            left = due - self._clock()
            if left > 0:
                self._set(left)
                return
            del self._due[request]
            request.expire()


class SingleDeadline:
    """The deadline of one request, with a timer of its own."""

    __slots__ = ("_timer",)

    def __init__(self, request: Bounded, seconds: float) -> None:
        """Call `request.expire` after this time, unless the request is discarded before."""
        self._timer = asyncio.get_running_loop().call_later(seconds, request.expire)

    def discard(self, request: Bounded) -> None:
        self._timer.cancel()
