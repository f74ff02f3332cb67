"""The upstream of an exchange: the side that serves one attempt of the request, a replica."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from app_toolkit.errors import ReplicaGone
from app_toolkit.types import Address, Header

if TYPE_CHECKING:
    from app_toolkit.exchange.exchange import Exchange


@dataclass(slots=True)
class Terms:
    """What one attempt tells the replica, beside the request of the client. Filters may change it."""

    timeout_ms: int | None
    """The time until the deadline. None: there is none, or the exchange alone enforces it."""
    redeems: bool
    """Whether the attempt redeems a reservation in the wait queue of the replica."""
    slow_body: bool = False
    """Whether the body arrives slowly."""
    mirrored: bool = False
    """Whether the request is a copy for a mirror."""
    replaced: Header | None = None
    """A field that the replica gets instead of those of the client with this name. None: there is none."""


class Upstream(Protocol):
    """One attempt at one replica. It calls the methods of a `wire.pool.Listener`, which the exchange is."""

    def write_all(self, pieces: Any) -> None:
        """Send pieces of the body."""

    def pass_on(self, data: bytes) -> None:
        """Send data of a tunnel at once."""

    def pause_reading(self) -> None:
        """Let the replica wait before it sends more of the response."""

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        """End the attempt at once. The replica sees a disconnect of its client."""

    def close(self) -> None:
        """End the attempt once all written bytes are sent."""


class Upstreams(Protocol):
    """The ways from this process to replicas."""

    def take(self, address: Address) -> Any:
        """Return an upstream that can serve at once. None: one has to be dialled."""

    def dial(self, address: Address, reached: Callable[[Any], None], failed: Callable[[ReplicaGone], None]) -> None:
        """Open an upstream, and call `reached` with it, or `failed` with the error."""

    def send(self, upstream: Any, exchange: "Exchange", terms: Terms) -> None:
        """Begin the attempt: send the request of the exchange, and the part of its body that may be sent."""

    def give_back(self, upstream: Any) -> None:
        """Keep an upstream for other requests."""

    def distrust(self, address: Address) -> None:
        """Close the unused upstreams to a replica that was lost."""
