"""What a router keeps: replicas as one caller sees them, permits at them, and places in the queue."""

from asyncio import TimerHandle
from collections.abc import Callable
from dataclasses import dataclass, field

from app_toolkit.core.balance import Load
from app_toolkit.interfaces import Endpoint, QueuePosition
from app_toolkit.types import ReplicaId

Failed = Callable[[Exception], None]
"""Told why a request that waits gets no permit."""


@dataclass(eq=False, slots=True)
class Upstream:
    """One replica as one caller sees it."""

    endpoint: Endpoint
    #: The requests of this caller that the replica runs: exact, because we begin and end them.
    permits: set["Permit"] = field(default_factory=set)
    #: Permits whose responses are open streams or WebSockets: they hold no slot.
    opened: set["Permit"] = field(default_factory=set)
    #: The position in its wait queue if others filled the replica. It reserves slots then, and is not asked.
    position: QueuePosition | None = None
    #: It was not reached, or is draining: left alone until this timer fires.
    rest: TimerHandle | None = None

    @property
    def has_room(self) -> bool:
        return self.position is None and self.rest is None and self.below_limit and not self.endpoint.unresponsive

    @property
    def below_limit(self) -> bool:
        return len(self.permits) < self.endpoint.max_ongoing_requests

    @property
    def reached(self) -> str:
        """The limit of a replica that has no room, for error messages."""
        reached = f"max_ongoing_requests is {self.endpoint.max_ongoing_requests:,}"
        if any(permit.kept for permit in self.permits):
            streams = f"{self.endpoint.max_open_streams:,}"
            reached += f"; {streams} of {streams} max_open_streams are open, and more streams hold slots"
        return reached

    def load(self) -> Load:
        return len(self.permits), len(self.opened)


@dataclass(eq=False, slots=True)
class Permit:
    """The right to run one request at one replica. Whoever takes it gives it back."""

    target: Upstream
    #: The replica reserved the slot, and no request has redeemed the reservation yet.
    reserved: bool = False
    #: Its response is a stream that has kept its slot, because the replica has `max_open_streams` open.
    kept: bool = False

    @property
    def endpoint(self) -> Endpoint:
        return self.target.endpoint

    def redeem(self) -> bool:
        """Whether the request that is sent now redeems a reservation. True once."""
        reserved, self.reserved = self.reserved, False
        return reserved


@dataclass(eq=False, slots=True)
class Waiter:
    """One request's place in the queue. `done` once it was granted, failed or given up."""

    granted: Callable[[Permit], None]
    failed: Failed
    since: float
    avoid: frozenset[ReplicaId]
    done: bool = False
