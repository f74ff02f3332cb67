"""The choice of a replica, and its reason, as the router uses it."""

from collections.abc import Callable
from dataclasses import dataclass

from app_toolkit.exchange.permits import ReplicaPermits
from app_toolkit.exchange.preference import Outcome


@dataclass(eq=False, slots=True)
class Choice:
    """The replica that a request gets if the router grants it a permit now. It is never changed."""

    replica: ReplicaPermits
    outcome: Outcome | None = None
    """What becomes of its preference. None: it has none, or only that of a client."""
    holds_key: bool = False
    """Whether the replica has the session or holds the key, as far as the router knows."""
    gives_way: bool = False
    """Whether requests that displace nothing go first: other replicas hold the key, or this one gave up a key less than
    `holders.DISPLACEMENT_S` ago."""
    granted: Callable[[], None] | None = None
    """Is called when the permit is granted. None: the placement keeps nothing about it."""
