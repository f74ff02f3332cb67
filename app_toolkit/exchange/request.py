"""The request of a client, as an exchange and its filters see it."""

import re
from collections.abc import Sequence
from typing import Protocol

from app_toolkit.config.affinity import KeySource
from app_toolkit.errors import ContentTooLarge, DeadlineExceeded, RequestError
from app_toolkit.exchange.attempts import is_repeatable
from app_toolkit.exchange.dispatcher import IDLE, RESPONDING, WAITING, Dispatchable, Stage
from app_toolkit.exchange.session_pins import from_cookies, from_query
from app_toolkit.observability.trace_context import Trace
from app_toolkit.types import Header, Retry

KEPT_BODY = 64 * 1024
"""Bytes of a body that are retained for a retry, and that may be buffered before an exchange stops reading it."""

DISCARDED_BODY = 1024 * 1024
"""Bytes of an unneeded body that are read and discarded, so that the connection can be reused."""


OVERDUE = {
    IDLE: "the body of the request did not arrive",
    WAITING: "no replica took the request",
    RESPONDING: "the request was not answered in full",
}
"""What has not happened when the deadline of a request passes, by its stage."""

IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))

REQUEST_ID_GRAMMAR = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Request ids that are safe in a file name, a log line, a shell command and a URL."""


class RequestBody(Protocol):
    """The body of a request, which arrives piece by piece."""

    waiting: int
    """Bytes that have arrived and were not taken."""

    @property
    def received(self) -> int:
        """Bytes that have arrived."""

    def take(self) -> Sequence[bytes | memoryview]:
        """Return the pieces that have arrived since the last call."""

    def rewind(self) -> None:
        """Let the next `take` begin at the first byte again. Allowed only while the body is retained."""

    def forget(self) -> None:
        """Drop what was taken, because the request will not be sent again."""


class ClientRequest(Dispatchable, Protocol):
    """One request of a client whose head is complete."""

    id: bytes | None
    """The ID of the request. None: the client has sent none, and the exchange makes one."""
    method: bytes
    version: str
    """`1.1` or `1.0`."""
    path: str
    error: RequestError | None
    """Why the request is refused: it is invalid. None: it is not."""
    timeout: bytes | None
    """The unparsed value of `X-Request-Timeout-Seconds`. None: there is none."""
    shard_key: str | None
    """The value of `X-SERVE-SHARD-KEY`. None: there is none."""
    trace: Trace | None
    """Its place in its trace. None: tracing is off."""
    forwarded: list[Header]
    """The forwarded fields, if a trusted proxy sent the request."""
    length: int | None
    """The announced size of the body in bytes. None: it is unknown."""
    complete: bool
    """Whether the body has arrived, or is none of the exchange's business."""
    expects: bool
    """Whether the client waits for a 100 before it sends the body."""
    websocket: bool
    """Whether the request is the handshake of a WebSocket."""

    @property
    def body(self) -> RequestBody: ...

    @property
    def raw_path(self) -> bytes:
        """The path as the client has sent it, without the query."""

    @property
    def body_on_demand(self) -> bool:
        """Whether the body waits for a 100 of the replica, because it is too large to be retained for a retry."""

    @property
    def missing(self) -> int | None:
        """Bytes of the body that have not arrived. None: unknown."""

    @property
    def query(self) -> bytes: ...

    @property
    def fields(self) -> list[Header]:
        """The fields that replicas receive, except for the internal ones. Names are in lower case."""

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of a field that replicas receive. `name`: in lower case."""

    def copied(self) -> "ClientRequest | None":
        """Return a copy of a complete request, with a body of its own. None: the body is not retained."""

    def check_body(self, most: int, name: str) -> None:
        """Raise `ContentTooLarge` if the announced or received size of the body is more than `most` bytes."""


class HTTPRequest:
    """What the requests of HTTP clients have in common, whoever has parsed them."""

    __slots__ = ()

    id: bytes | None
    method: bytes
    websocket: bool
    length: int | None
    complete: bool

    @property
    def name(self) -> str:
        return f"this {self.method.decode()}"

    @property
    def request_id(self) -> str:
        return (self.id or b"").decode()

    def is_repeatable(self, policy: Retry) -> bool:
        return not self.websocket and is_repeatable(policy, self.method in IDEMPOTENT)

    def late(self, stage: Stage, timeout: float, deployment: str) -> DeadlineExceeded:
        if self.websocket:
            return DeadlineExceeded(f"the WebSocket was not accepted within its {timeout:g} s")
        if stage is IDLE and self.complete:
            stage = WAITING
        return DeadlineExceeded(f"{OVERDUE.get(stage, 'the request was not answered')} within its {timeout:g} s")

    def check_body(self: ClientRequest, most: int, name: str) -> None:
        received = self.body.received
        if max(self.length or 0, received) > most:
            has = f"{self.length} bytes" if self.length is not None else f"{received} bytes or more"
            raise ContentTooLarge(f"the body has {has}, the max_body_size of {name} is {most}")


def value_at(source: KeySource, request: ClientRequest, own_cookie: str = "") -> str | None:
    """Return what a request has in a header, a query or a cookie; None: nothing. `own_cookie`: the proxy's cookie."""
    if source.where == "query":
        return from_query(request.query, source.name)
    if source.where == "header":
        values = request.values(source.name.encode())
        return values[0].decode("latin-1") or None if values else None
    return from_cookies(b"; ".join(request.values(b"cookie")), source.name or own_cookie)
