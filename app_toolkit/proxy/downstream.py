"""What an exchange needs of the client's connection."""

from typing import Protocol

from app_toolkit.proxy.request import Request
from app_toolkit.types import Header, ReplicaId


class Downstream(Protocol):
    """The client's connection that an exchange answers to."""

    host: str
    peers: bytes

    served: dict[str, tuple[ReplicaId, bool]]
    """By ingress: the replica that served this connection's previous request, and whether the response was a stream."""

    @property
    def default_headers(self) -> list[Header]: ...

    @property
    def closing(self) -> bool:
        """Whether the connection closes after this response, whatever the request says."""

    @property
    def writable(self) -> bool: ...

    def write(self, data: bytes) -> None: ...

    def pass_on(self, data: bytes) -> None:
        """Write data of a tunnel."""

    def regulate(self) -> None:
        """Read from the client, or stop reading, as the exchange now wants it."""

    def finished(self, request: Request, keep: bool) -> None:
        """The response has been written."""

    def cut(self, reset: bool) -> None:
        """The response cannot be completed: close, so that the client sees the truncation."""

    def part(self, last: bytes = b"") -> None:
        """Write this and close, once all that was written has arrived."""
