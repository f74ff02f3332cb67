"""The state of a router: its replicas, the permits at them, and the waiters in its queue."""

from asyncio import TimerHandle
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from app_toolkit.contract.holdings import Holdings
from app_toolkit.exchange.preference import Outcome, Preference
from app_toolkit.interfaces import Endpoint, QueuePosition
from app_toolkit.types import ReplicaId

Load = tuple[int, int]
"""The load of one replica: its ongoing requests, and its open streams and WebSockets, which are compared only if the
ongoing requests are equal."""

Failed = Callable[[Exception], None]
"""Takes the error if a waiting request gets no permit."""


@dataclass(eq=False, slots=True)
class ReplicaPermits:
    """The permits of one router at one replica, and what the router knows of the replica."""

    endpoint: Endpoint
    #: The permits for the requests of this caller that run at the replica.
    permits: set["Permit"] = field(default_factory=set)
    #: The permits whose responses are open streams or WebSockets. They hold no slot.
    opened: set["Permit"] = field(default_factory=set)
    #: The position in the replica's wait queue, if other callers have filled the replica. Then the replica reserves
    #: slots, and no permits are granted without a reservation. None: there is no position.
    position: QueuePosition | None = None
    #: The reservations that this router has received and not used, because it has all of its permits at the replica.
    reservations: int = 0
    #: Until this timer fires, no permits are granted, because the replica was lost, was not reached, drains, or ended
    #: the position. None: the replica does not rest.
    rest: TimerHandle | None = None
    #: The keys that the replica holds, and the report from which they were decoded. None: it has not reported any.
    holdings: Holdings | None = None
    reported: bytes | None = None
    #: When this router has last assigned a request that displaced a key.
    displaced_at: float = -inf

    @property
    def has_room(self) -> bool:
        endpoint = self.endpoint
        below_limit = len(self.permits) < endpoint.max_ongoing_requests  # not the property, which costs a call
        return below_limit and self.position is None and self.rest is None and not endpoint.unresponsive

    @property
    def below_limit(self) -> bool:
        return len(self.permits) < self.endpoint.max_ongoing_requests

    @property
    def keeps_streams(self) -> bool:
        """Whether streams of this caller hold slots."""
        return any(permit.kept for permit in self.permits)

    @property
    def reached(self) -> str:
        """The limit of a replica that has no room, for error messages."""
        reached = f"max_ongoing_requests is {self.endpoint.max_ongoing_requests:,}"
        if self.endpoint.max_open_streams and self.keeps_streams:
            streams = f"{self.endpoint.max_open_streams:,}"
            reached += f"; {streams} of {streams} max_open_streams are open, and more streams hold slots"
        if without := self.without_item:
            reached += f"; {len(without):,} of the calls that hold slots have not yielded their first item"
        return reached

    @property
    def without_item(self) -> list["Permit"]:
        """The permits of calls that leave their slots with their first item, and have yielded none yet."""
        if not self.endpoint.max_open_streams:
            return []
        return [permit for permit in self.permits if permit.yields and not permit.kept]

    def load(self) -> Load:
        return len(self.permits), len(self.opened)


@dataclass(eq=False, slots=True)
class Permit:
    """The right to run one request at one replica. The caller that acquires a permit must release it."""

    replica: ReplicaPermits
    #: Whether the replica has reserved the slot, and no request has redeemed the reservation yet.
    reserved: bool = False
    #: Whether the replica has the session or holds the key of the request, as far as the router knows.
    holds_key: bool = False
    #: What became of the affinity key of the request, or of the preference of its routing policy. None: it has none.
    affinity: Outcome | None = None
    #: Whether the response is a stream that keeps its slot, because the replica has `max_open_streams` open.
    kept: bool = False
    #: The name of the request, for a warning that lists what holds the slots: a path, or the method of a call.
    request: str = ""
    #: Whether the request is a call of a method that yields items. It leaves its slot with the first item.
    yields: bool = False

    @property
    def endpoint(self) -> Endpoint:
        return self.replica.endpoint

    def redeem(self) -> bool:
        """Return whether the request that is sent next must redeem a reservation. True only once."""
        reserved, self.reserved = self.reserved, False
        return reserved


@dataclass(eq=False, slots=True)
class Waiter:
    """The place of one request in the queue. It is `done` once it was granted a permit, has failed, or has left."""

    granted: Callable[[Permit], None]
    failed: Failed
    since: float
    avoid: frozenset[ReplicaId]
    preference: Preference
    done: bool = False
