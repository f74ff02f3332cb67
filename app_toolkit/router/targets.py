"""What a router keeps: replicas as one caller sees them, turns at them, and places in the queue."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from app_toolkit.interfaces import Endpoint
from app_toolkit.types import ReplicaId


@dataclass(eq=False, slots=True)
class Target:
    """One replica as one caller sees it."""

    endpoint: Endpoint
    #: The requests of this caller that the replica runs: exact, because we begin and end them.
    turns: set["Turn"] = field(default_factory=set)
    #: Other callers filled it: a guess, so it is forgotten after a moment.
    full: bool = False

    @property
    def has_room(self) -> bool:
        return not self.full and len(self.turns) < self.endpoint.max_ongoing_requests

    def load(self) -> int:
        return len(self.turns)


@dataclass(eq=False, slots=True)
class Turn:
    """The right to run one request at one replica. Whoever takes it gives it back."""

    target: Target

    @property
    def endpoint(self) -> Endpoint:
        return self.target.endpoint


@dataclass(eq=False, slots=True)
class Waiter:
    """One request's place in the queue. `done` once it was granted, expired or given up."""

    granted: Callable[[Turn], None]
    since: float
    avoid: Collection[ReplicaId]
    done: bool = False
