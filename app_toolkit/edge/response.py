"""The response to one request, as it is sent to the client."""

from functools import lru_cache
from typing import Protocol

from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.edge.request_parser import Request
from app_toolkit.exchange.builtin import BuiltinResponse
from app_toolkit.exchange.preference import Preference
from app_toolkit.exchange.request import DISCARDED_BODY
from app_toolkit.types import Header
from app_toolkit.wire.corked import CorkedTransport
from app_toolkit.wire.frames import WebSocketFrames, close_frame
from app_toolkit.wire.pool import ResponseHead, lines_of

SMALL = 32 * 1024
"""The most bytes of a body that are copied, so that they are written together with the head."""

SERVICE_RESTART = 1012
"""The close code of a WebSocket that the server ends. The client may connect again."""


class Client(Protocol):
    """The connection of a client, as the response to a request uses it."""

    host: str
    peers: bytes
    served: dict[ReplicaSetKey, Preference]

    @property
    def default_headers(self) -> list[Header]: ...

    @property
    def closing(self) -> bool:
        """Whether the connection closes after this response, even if the request allows to keep it open."""

    @property
    def writable(self) -> bool: ...

    transport: CorkedTransport | None
    """None: the connection is lost."""

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


class ClientResponse:
    """The downstream of a request that a client has sent to a proxy: it composes the response, and writes it."""

    __slots__ = (
        "_client",
        "_composed",
        "_frames",
        "_request",
        "continued",
        "head",
        "host",
        "keep",
        "peers",
        "regulate",
        "served",
        "size",
    )

    def __init__(self, request: Request, client: Client) -> None:
        self._request = request
        self._client = client
        self.host = client.host
        self.peers = client.peers
        self.served = client.served
        self.regulate = client.regulate
        #: The head of the app's response. None: it has not arrived.
        self.head: ResponseHead | None = None
        self._composed = b""
        #: The WebSocket frames from the replica. None: the exchange is not a tunnel.
        self._frames: WebSocketFrames | None = None
        #: Whether a 100 allowed the client to send the body.
        self.continued = False
        #: Whether the client's connection may serve another request after this one.
        self.keep = False
        #: Bytes of the body that were written.
        self.size = 0

    @property
    def writable(self) -> bool:
        return self._client.writable

    # Responses of the app

    def inform(self, head: ResponseHead) -> None:
        request = self._request
        visible = request.version == "1.1"
        if head.status == 100 and not request.websocket:
            visible = visible and request.expects and not self.continued
            self.continued = True
        if visible:
            self._client.write(b"%b\r\n%b\r\n" % (head.status_line, head.lines))

    def prepare(self, head: ResponseHead) -> bool:
        """Compose the head. Return whether to `start` at once, or else with the first bytes of the body."""
        request, client = self._request, self._client
        self.head = head
        self.keep = self._may_keep(head)
        if request.version == "1.0":
            head.fields = [field for field in head.fields if field[0] != b"transfer-encoding"]
        end = self._id_line(head) if self.keep else b"connection: close\r\n" + self._id_line(head)
        # The replica's response to a WebSocket handshake already has a Date field.
        defaults = b"" if request.websocket else _defaults(*client.default_headers)
        self._composed = b"%b\r\n%b%b%b" % (head.status_line, defaults, head.lines, end)
        return head.extent != "sized" and head.extent != "none"

    def start(self, data: bytes | None = None) -> None:
        """Write the head, and the first bytes of the body. From now on, the request cannot be retried."""
        composed, self._composed = self._composed, b""
        if data is not None:
            self.size += len(data)
            if len(data) > SMALL:
                self._client.write(composed)
                composed = data
            else:
                composed += data
        self._client.write(composed)

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self._frames is None:
            transport = self._client.transport
            if transport is not None and data:
                transport.write(data)
        else:
            self._frames.follow(data)
            self._client.pass_on(data)

    def take_back(self) -> None:
        """Drop a response of which no bytes have been sent to the client."""
        self.head = None
        self._composed = b""

    def cut(self, error: Exception) -> None:
        """Close the connection because the response has begun and cannot be completed."""
        assert self.head is not None
        # A body without framing ends with the connection. After an orderly close, it would look complete.
        unframed = self._request.version == "1.0" or self.head.extent == "until_close"
        self._client.cut(reset=self._frames is None and unframed)

    # Tunnels

    def open_tunnel(self, head: ResponseHead) -> None:
        self.head = head
        self._frames = WebSocketFrames()
        defaults = _defaults(*self._client.default_headers)
        self._client.write(b"%b\r\n%b%b%b" % (head.status_line, defaults, head.lines, self._id_line(head)))

    def close_tunnel(self, why: str) -> None:
        """Close the tunnel, with a close frame unless the replica has sent one or was lost within a frame."""
        frames = self._frames
        assert frames is not None
        if frames.may_close:
            self._client.part(close_frame(SERVICE_RESTART, why))
        elif frames.closed:
            self._client.part()
        else:
            self._client.cut(reset=False)

    # Responses of the proxy

    def give(self, response: BuiltinResponse) -> None:
        request = self._request
        assert request.id is not None
        self.keep = request.error is None and self._may_keep(None)
        body = b"" if request.method == b"HEAD" else response.body
        self.size = len(body)
        end = b"%bcontent-length: %d\r\nx-request-id: %b\r\n%b\r\n" % (
            response.lines,
            len(response.body),
            request.id,
            b"" if self.keep else b"connection: close\r\n",
        )
        defaults = _defaults(*self._client.default_headers)
        self._client.write(b"%b\r\n%b%b%b" % (response.status_line, defaults, end, body))

    def finished(self) -> None:
        self._client.finished(self._request, self.keep)

    def _may_keep(self, head: ResponseHead | None) -> bool:
        """Return whether the connection may serve another request. None for a response of the proxy."""
        request = self._request
        if not request.keep_alive or self._client.closing:
            return False
        if head is not None and (head.extent == "until_close" or (head.closes and not request.websocket)):
            return False
        if request.complete:
            return True
        if request.expects and not self.continued:
            return False  # the client may or may not send the body
        missing = request.missing
        return missing is None or missing <= DISCARDED_BODY

    def _id_line(self, head: ResponseHead) -> bytes:
        """Return the end of a head, with the request id unless the app's response has one."""
        for name, _ in head.fields:
            if name == b"x-request-id":
                return b"\r\n"
        assert self._request.id is not None
        return b"x-request-id: %b\r\n\r\n" % self._request.id


@lru_cache(16)
def _defaults(*fields: Header) -> bytes:
    """Encode the default fields of a server as lines. They are the same for one second, because one is the date."""
    return lines_of(fields)
