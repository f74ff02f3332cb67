"""The response to one request as its client gets it."""

from collections.abc import Iterable

from app_toolkit.proxy.builtin import OwnAnswer
from app_toolkit.proxy.downstream import Downstream
from app_toolkit.proxy.request import DISCARDED_BODY, Request
from app_toolkit.transport.frames import WebSocketFrames, close_frame
from app_toolkit.transport.pool import Answer
from app_toolkit.types import Header

SERVICE_RESTART = 1012
"""The code for a WebSocket that ends for no fault of its client, which may connect again."""


class ClientResponse:
    """Composes the response and writes it to the client. The exchange says when."""

    __slots__ = ("_client", "_frames", "_head", "_request", "answer", "continued", "keep", "size")

    def __init__(self, request: Request, client: Downstream) -> None:
        self._request = request
        self._client = client
        #: Of the app, once its head is here.
        self.answer: Answer | None = None
        self._head = b""
        #: Of a tunnel: what the replica has sent.
        self._frames: WebSocketFrames | None = None
        #: Whether the client was told to send the body.
        self.continued = False
        #: Whether the client's connection serves another request after this one.
        self.keep = False
        #: Bytes of the body so far.
        self.size = 0

    # The app's

    def inform(self, answer: Answer) -> None:
        """Pass an interim answer on, if the client may see it."""
        request = self._request
        visible = request.version == "1.1"
        if answer.status == 100 and not request.websocket:
            visible = visible and request.expects and not self.continued
            self.continued = True
        if visible:
            self._client.write(_head(answer.status_line, (), answer.fields, b"\r\n"))

    def prepare(self, answer: Answer) -> bool:
        """Compose the head, for `start`. Gives whether it leaves at once; else it leaves with the first of the body."""
        request, client = self._request, self._client
        self.answer = answer
        self.keep = self._may_keep(answer)
        fields = answer.fields
        if request.version == "1.0":
            fields = [field for field in fields if field[0] != b"transfer-encoding"]
        end = self._id_line(answer) if self.keep else b"connection: close\r\n" + self._id_line(answer)
        # A WebSocket handshake is answered with a date by the replica.
        defaults = [] if request.websocket else client.default_headers
        self._head = _head(answer.status_line, defaults, fields, end)
        return answer.extent != "sized" and answer.extent != "none"

    def start(self) -> None:
        """Write the head. From here on nothing can be taken back."""
        head, self._head = self._head, b""
        self._client.write(head)

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self._frames is None:
            self._client.write(data)
        else:
            self._frames.follow(data)
            self._client.pass_on(data)

    def take_back(self) -> None:
        """Forget an answer of which the client has seen nothing."""
        self.answer = None
        self._head = b""

    def cut(self) -> None:
        """The response has begun and cannot be completed."""
        assert self.answer is not None
        # Without a framing of its own a body ends with the connection: an orderly close would be a fake end.
        unframed = self._request.version == "1.0" or self.answer.extent == "until_close"
        self._client.cut(reset=self._frames is None and unframed)

    # A tunnel's

    def open_tunnel(self, answer: Answer) -> None:
        self.answer = answer
        self._frames = WebSocketFrames()
        head = _head(answer.status_line, self._client.default_headers, answer.fields, self._id_line(answer))
        self._client.write(head)

    def close_tunnel(self, why: str) -> None:
        """Tell the client why, unless the replica has closed, or was lost in the middle of a frame."""
        frames = self._frames
        assert frames is not None
        if frames.may_close:
            self._client.part(close_frame(SERVICE_RESTART, why))
        elif frames.closed:
            self._client.part()
        else:
            self._client.cut(reset=False)

    # The proxy's own

    def give(self, own: OwnAnswer) -> None:
        request = self._request
        assert request.id is not None
        self.keep = request.refusal is None and self._may_keep(None)
        body = b"" if request.method == b"HEAD" else own.body
        self.size = len(body)
        end = b"%bcontent-length: %d\r\nx-request-id: %b\r\n%b\r\n" % (
            own.fields,
            len(own.body),
            request.id,
            b"" if self.keep else b"connection: close\r\n",
        )
        self._client.write(_head(own.status_line, self._client.default_headers, (), end) + body)

    def _may_keep(self, answer: Answer | None) -> bool:
        """`answer`: None where the proxy answers."""
        request = self._request
        if not request.keep_alive or self._client.closing:
            return False
        if answer is not None and (answer.extent == "until_close" or (answer.closes and not request.websocket)):
            return False
        if request.complete:
            return True
        if request.expects and not self.continued:
            return False  # nobody knows whether the body still comes
        missing = request.missing
        return missing is None or missing <= DISCARDED_BODY

    def _id_line(self, answer: Answer) -> bytes:
        """The end of a head; an app may answer with a request id of its own."""
        for name, _ in answer.fields:
            if name == b"x-request-id":
                return b"\r\n"
        assert self._request.id is not None
        return b"x-request-id: %b\r\n\r\n" % self._request.id


def _head(status_line: bytes, first: Iterable[Header], fields: Iterable[Header], end: bytes) -> bytes:
    lines = [status_line, b"\r\n"]
    for name, value in first:
        lines += (name, b": ", value, b"\r\n")
    for name, value in fields:
        lines += (name, b": ", value, b"\r\n")
    lines.append(end)
    return b"".join(lines)
