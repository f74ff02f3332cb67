"""The interface of a client connection that an exchange uses."""

from typing import Protocol

from app_toolkit.core.identity import ReplicaSetKey
from app_toolkit.proxy.request import Request
from app_toolkit.types import Header, ReplicaId


class Downstream(Protocol):
    """The client connection of an exchange."""

    host: str
    peers: bytes

    served: dict[ReplicaSetKey, tuple[ReplicaId, bool]]
    """By ingress: the replica of this connection's previous request, and whether that response was a stream."""

    @property
    def default_headers(self) -> list[Header]: ...

    @property
    def closing(self) -> bool:
        """Whether the connection closes after this response, even if the request allows to keep it open."""

    @property
    def writable(self) -> bool: ...

    def write(self, data: bytes) -> None: ...

    def pass_on(self, data: bytes) -> None:
        """Write data of a tunnel at once."""

    def regulate(self) -> None:
        """Pause or resume reading from the client, as the exchange's `wants_body` requires."""

    def finished(self, request: Request, keep: bool) -> None:
        """Handle the end of a response. `keep`: the connection may serve another request."""

    def cut(self, reset: bool) -> None:
        """Close the connection because the response cannot be completed. `reset`: with a TCP reset.

        The client must be able to detect the truncation.
        """

    def part(self, last: bytes = b"") -> None:
        """Write `last`, and close the connection once all written bytes have been delivered."""
