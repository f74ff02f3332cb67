"""The deadlines of many requests, with one timer for all of them."""

import asyncio
import math
import time
from collections import OrderedDict
from typing import Protocol


class Bounded(Protocol):
    """A request that has a deadline."""

    def expire(self, timeout: float) -> None: ...


class Deadlines:
    """Requests that may take the same time, in the order in which it is up.

    A timer of its own would cost each request more than all else that a deadline does. This one is set for the first
    of them, and set again only when it has come.
    """

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds that each may take."""
        self.timeout = timeout
        self._due: OrderedDict[Bounded, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: Bounded, due: float) -> None:
        """Tell the request once `time.monotonic()` has come to `due`, unless it is discarded before.

        None may be due before one that was added before it.
        """
        self._due[request] = due
        if self._timer is None:
            self._set(due - time.monotonic())

    def discard(self, request: Bounded) -> None:
        self._due.pop(request, None)

    def close(self) -> None:
        """Tell nobody any more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __len__(self) -> int:
        return len(self._due)

    def _set(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._come)

    def _come(self) -> None:
        self._timer = None
        while self._due:
            request, due = next(iter(self._due.items()))
            left = due - time.monotonic()
            if left > 0:
                self._set(left)
                return
            del self._due[request]
            request.expire(self.timeout)


class Deadline:
    """The deadline of one request, which is told when it passes."""

    __slots__ = ("_request", "_shared", "_timer", "at", "seconds")

    def __init__(self, request: Bounded, at: float, seconds: float, shared: Deadlines | None) -> None:
        """`at`, as `time.monotonic()`, is `seconds` after the request came. `shared`: None for a timer of its own."""
        self.at = at
        self.seconds = seconds
        self._request = request
        self._shared = shared
        self._timer: asyncio.TimerHandle | None = None
        if shared is not None:
            shared.add(request, at)
        else:
            self._timer = asyncio.get_running_loop().call_later(seconds, request.expire, seconds)

    def left_ms(self) -> int:
        """At least 1."""
        return max(math.ceil((self.at - time.monotonic()) * 1_000), 1)

    def cancel(self) -> None:
        if self._shared is not None:
            self._shared.discard(self._request)
        if self._timer is not None:
            self._timer.cancel()
