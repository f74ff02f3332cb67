"""The slowest recent requests and calls: which ones a process keeps, and what is shown of them.

How slow a request is, is the time until its response began. What follows may be a stream that lasts as long as it
should, or is read by a slow client. A request without a response counts until its end.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from app_toolkit.contract.identity import LiveRevisionKey, ReplicaSetKey, live_revision_of

PERIOD_S = 120.0
PERIODS = 5
"""The slowest items of each of the last periods are kept: those of the last ten minutes."""

KEPT = 20
"""Maximum number of items that are kept of each period."""

MOST_SHOWN = 1_000
"""Maximum number of requests that are shown at once."""

SKEW_S = 5.0
"""Seconds that the clocks of two nodes may differ."""

T = TypeVar("T")


class Slowest(Generic[T]):
    """The slowest items of the last ten minutes: at most `KEPT` of each of the last `PERIODS` periods.

    An item that is not among the slowest costs two comparisons, another one O(log `KEPT`). `now` is in seconds and does
    not decrease by more than a period.
    """

    __slots__ = ("_count", "_ends", "_heap", "_periods", "_threshold")

    def __init__(self) -> None:
        #: The items of each period as a heap, the fastest first, with the time at which the period ends.
        self._periods: deque[tuple[float, list[tuple[float, int, T]]]] = deque(maxlen=PERIODS)
        self._heap: list[tuple[float, int, T]] = []
        self._ends = float("-inf")
        self._threshold = -1.0
        self._count = 0

    def add(self, seconds: float, now: float, item: T) -> None:
        """Add an item that took `seconds` and has ended now."""
        if seconds <= self._threshold and now < self._ends:
            return
        if now >= self._ends:
            self._heap, self._ends, self._threshold = [], now + PERIOD_S, -1.0
            self._periods.append((self._ends, self._heap))
        self._count += 1  # two items that took equally long are not compared
        if len(self._heap) < KEPT:
            heapq.heappush(self._heap, (seconds, self._count, item))
        else:
            heapq.heapreplace(self._heap, (seconds, self._count, item))
        if len(self._heap) == KEPT:
            self._threshold = self._heap[0][0]

    def items(self, now: float) -> list[T]:
        """Return the items that are kept, in no order. Safe from any thread."""
        recent = now - PERIODS * PERIOD_S
        return [item for ends, heap in list(self._periods) if ends > recent for _, _, item in list(heap)]


@dataclass(frozen=True, slots=True)
class SlowAttempt:
    """An attempt of a request that ended without a response."""

    replica: str
    seconds: float
    result: str
    """Such as `busy`, `draining` or `lost`."""


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """A request or call that has ended, with its stages. Their sum is `seconds`."""

    at: float
    """When it began, in seconds since 1970."""
    seconds: float
    """From its beginning to its end."""
    kind: str
    """`http`, `websocket` or `call`."""
    deployment: str
    """`APPLICATION/DEPLOYMENT`, and only `DEPLOYMENT` in one process."""
    replica: str
    """The replica of the last attempt; `-`: there was no attempt."""
    method: str
    """The method of the request, or that of the object."""
    path: str
    """The path of the request without its query; empty for a call."""
    status: int
    outcome: str
    """As in the access log."""
    request_id: str
    body_s: float
    """Until the first bytes of the body had arrived, and other pauses between attempts."""
    queued_s: float
    """Without a permit, in the queue of the proxy or of the process that made the call."""
    attempts: tuple[SlowAttempt, ...]
    """The attempts that ended without a response."""
    app_s: float
    """In the replica of the last attempt, until the response began. Its calls are a part of this time."""
    response_s: float
    """From the beginning of the response to its end."""
    calls: tuple["SlowRequest", ...] = ()
    """The slow calls that were made for the request, in the order in which they began."""

    @property
    def until_response_s(self) -> float:
        """How slow the request is: the time until its response began."""
        return self.seconds - self.response_s


def slowest(requests: Iterable[SlowRequest], last: int) -> list[SlowRequest]:
    """Return at most `last` of the requests, the slowest first."""
    return heapq.nlargest(last, requests, key=lambda request: request.until_response_s)


def is_selected(request: SlowRequest, name: str | None) -> bool:
    """Return whether a request or call is one of those that a user asks for.

    `name`: None for the requests of all applications, `APPLICATION` for those of one, and `APPLICATION/DEPLOYMENT` for
    the requests and calls of one deployment. Both with all live revisions.
    """
    if name is not None and "/" in name:
        return "/" in request.deployment and ReplicaSetKey.parse(request.deployment).main.name == name
    if request.kind == "call":
        return False
    key = live_revision_of(request.deployment) or LiveRevisionKey.parse(request.deployment)
    return name in (None, key.application)


def with_calls(requests: Iterable[SlowRequest], calls: Iterable[SlowRequest]) -> Sequence[SlowRequest]:
    """Return the requests, each with the calls that have its ID and began while it ran.

    A client may use an ID again, so the time is compared, too. A call is shown without its own calls.
    """
    by_id: dict[str, list[SlowRequest]] = {}
    for call in calls:
        by_id.setdefault(call.request_id, []).append(call)

    def calls_of(request: SlowRequest) -> tuple[SlowRequest, ...]:
        if request.kind == "call":
            return ()
        first, last = request.at - SKEW_S, request.at + request.seconds + SKEW_S
        made = [call for call in by_id.get(request.request_id, ()) if first <= call.at <= last]
        return tuple(sorted(made, key=lambda call: call.at))

    return [replace(request, calls=calls_of(request)) for request in requests]
