"""Decides which request of a wait queue is served next: the oldest, or the newest while clients give up.

A request whose key displaces another key at the replica (`exchange.placement.holders`) is an exception. Where two keys
share one place, serving them strictly by age would load both models again and again. So it gives way to requests that
displace nothing, for a bounded time.

Serving the oldest request first is fair. In an overload in which clients give up, however, the queue grows until each
request is served just before its client disconnects, and the work is wasted. Serving the newest request first gives
every slot to a client that still waits (adaptive LIFO, in Maurer, "Fail at Scale", ACM Queue 13(8), 2015). Clients that
do not give up are served in order, regardless of the length of the queue.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")

FULL_S = 5.0
"""Seconds that requests wait while all replicas are full, before that is worth a warning."""

ROOM_S = 60.0
"""Seconds with room after which the next such time is worth another warning."""

MEMORY = 1 / 32
"""The weight in `abandoned` of the last request that left the queue."""

MOST_ABANDONED = 0.05
"""The share of requests that may give up before the newest is served first. A single request that gives up stays below
this share. Two in quick succession exceed it."""


@dataclass(frozen=True, slots=True)
class Candidate(Generic[T]):
    """A request that could be served now."""

    request: T
    gives_way: bool = False
    """Whether it is served only if no other request can be."""


def next_served(candidates: Iterable[Candidate[T]]) -> Candidate[T] | None:
    """Return the candidate to serve next. None: there is none.

    `candidates`: in the order of the queue. It may be an iterator, which is read only as far as necessary.
    """
    first: Candidate[T] | None = None
    for candidate in candidates:
        if not candidate.gives_way:
            return candidate
        first = first or candidate
    return first


class FullAlarm:
    """Decides when to warn that a deployment is full: once for each time, however long it is."""

    __slots__ = ("_full_at",)

    def __init__(self) -> None:
        #: When the deployment was last found to be full for `FULL_S`.
        self._full_at = -inf

    def must_warn(self, full: bool, since: float, now: float) -> bool:
        """Return whether to warn. Call this about every `FULL_S` while requests wait.

        `full`: whether no replica has room. `since`: since when requests wait without a break.
        """
        if not full or now - since < FULL_S:
            return False
        before, self._full_at = self._full_at, now
        return now - before >= ROOM_S


class ServingOrder:
    """The order of one wait queue. The queue calls a method when a request leaves it or enters it while it is empty."""

    __slots__ = ("abandoned",)

    def __init__(self) -> None:
        #: The share of requests that gave up, among those that left the queue recently.
        self.abandoned = 0.0

    @property
    def newest_first(self) -> bool:
        return self.abandoned > MOST_ABANDONED

    def began(self) -> None:
        """Note that a request enters the empty queue. An overload is over when the queue is empty."""
        self.abandoned = 0.0

    def served(self) -> None:
        """Note that a request left the queue because it got a slot."""
        self.abandoned -= MEMORY * self.abandoned

    def gave_up(self) -> None:
        """Note that a request left the queue without a slot: its client disconnected, or it waited for too long."""
        self.abandoned += MEMORY * (1 - self.abandoned)
