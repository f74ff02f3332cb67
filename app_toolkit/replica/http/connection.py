"""The connection of a caller to the replica: HTTP/1.1, one request after another."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from app_toolkit.replica.admission.replica import Replica
from app_toolkit.replica.admission.replica_request import TEXT
from app_toolkit.replica.http.head import CheckedHead, encode
from app_toolkit.replica.http.hop_request import HopRequest, new_scope
from app_toolkit.types import Header
from app_toolkit.wire.corked import CorkedTransport

logger = logging.getLogger("app_toolkit.replica")

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UNREADABLE = b"Invalid HTTP request received."
SMALL = 32 * 1024
"""Bytes of a body that are written together with the head."""


class CallerConnection(asyncio.Protocol):
    """One connection of a caller: a request, and after its response the next request.

    A request that arrives before the previous response is complete waits. The handshake of a WebSocket hands the
    connection over to uvicorn's protocol.
    """

    def __init__(self, replica: Replica, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        """`config` and `server_state` are those of the server that shuts this connection down."""
        self._replica = replica
        self._config = config
        self._server_state = server_state
        self._app_state = app_state
        # The server closes these connections when it shuts down.
        self._connections = cast(set[Any], server_state.connections)
        self._loop = asyncio.get_running_loop()
        # Input
        self._parser: Any = HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._paused = False
        self._target = b""
        self._headers: list[Header] = []
        self._expects = False
        #: The request whose body is being received.
        self._arriving: HopRequest | None = None
        self._is_handshake = False
        # Writing
        #: The request whose response is next on the connection, and the requests that wait behind it.
        self._current: HopRequest | None = None
        self._queued: deque[HopRequest] = deque()
        #: All requests whose app has not returned, including those whose response is complete.
        self._running: set[HopRequest] = set()
        self.blocked: asyncio.Event | None = None
        self.transport: CorkedTransport

    # For the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = CorkedTransport(cast(asyncio.Transport, transport))
        self._server = get_local_addr(self.transport)
        self._client = get_remote_addr(self.transport)
        self._scheme = "https" if is_ssl(self.transport) else "http"
        self.write, self.hang_up = self.transport.write, self.transport.close
        self._context = copy_context()
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._parser = None  # it refers to this object, too
        self._queued.clear()
        self._disconnect()
        self.resume_writing()

    def pause_writing(self) -> None:
        if self.blocked is None:
            self.blocked = asyncio.Event()

    def resume_writing(self) -> None:
        blocked, self.blocked = self.blocked, None
        if blocked is not None:
            blocked.set()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            if self._is_handshake:
                self._hand_over()
        except HttpParserError as error:
            logger.warning("closing a connection whose caller sent invalid HTTP: %s", error)
            headers = [TEXT, (b"content-length", b"%d" % len(UNREADABLE)), (b"connection", b"close")]
            self.transport.write(encode(400, headers) + b"\r\n" + UNREADABLE)
            self.transport.close()

    # For the server

    def shutdown(self) -> None:
        """Accept no new request. A running request may end."""
        if self._is_free:
            self.transport.close()
        else:
            assert self._current is not None
            self._current.keep_alive = False

    # For the parser

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = []
        self._expects = False

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect":
            self._expects = value.lower() == b"100-continue"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._is_handshake = self._parser.should_upgrade() and (b"upgrade", b"websocket") in [
            (name, value.lower()) for name, value in self._headers
        ]
        if self._is_handshake:
            return
        version = self._parser.get_http_version()
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        scope = new_scope(
            self._parser.get_method(),
            self._target,
            version,
            self._headers,
            self._app_state,
            self._config.asgi_version,
            self._server,
            self._client,
            self._scheme,
        )
        live = self._replica.live
        request = self._arriving = HopRequest(self, live, scope, keep_alive=keep_alive, expects=self._expects)
        if self._is_free:
            self._begin(request)
        else:
            self._queued.append(request)
            self.pause_body()

    def on_body(self, body: bytes) -> None:
        if self._arriving is not None:
            self._arriving.take(body)

    def on_message_complete(self) -> None:
        arrived, self._arriving = self._arriving, None
        if arrived is not None:
            arrived.body_ended()

    # For a request

    def pause_body(self) -> None:
        if not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume_body(self) -> None:
        if self._paused and not (self._queued or self.transport.is_closing()):
            self._paused = False
            self.transport.resume_reading()

    def ask_for_body(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(CONTINUE)

    def start(self, head: CheckedHead, more: Sequence[Header], body: Any, *, head_only: bool, whole: bool) -> None:
        lines = encode(head.status, head.fields) if head.unframed and head_only else head.lines
        for name, value in more:
            lines += b"%b: %b\r\n" % (name, value)
        if len(body) <= SMALL:
            self.transport.write(b"%b\r\n%b" % (lines, body))
        else:
            self.transport.write(lines + b"\r\n")
            self.transport.write(body)

    def response_sent(self, request: HopRequest) -> None:
        """Flush a response that was completely written, and begin the next request."""
        # Without this flush, the response would wait until the loop iteration has processed what arrived meanwhile.
        self.transport.flush()
        if request is self._current:
            self._go_on(request)

    def ended(self, request: HopRequest, task: "asyncio.Task[None]") -> None:
        """Remove a request whose app has returned."""
        self._server_state.tasks.discard(task)
        self._running.discard(request)
        if request is self._current:
            self._go_on(request)

    def _go_on(self, current: HopRequest) -> None:
        if current.over or current not in self._running:
            self._current = None
            if self._queued and current.keep_alive:
                self._begin(self._queued.popleft())
        self.resume_body()

    @property
    def _is_free(self) -> bool:
        """Whether the next request may begin.

        The caller of a response with a known length sees its end before the app returns, and may then send its next
        request.
        """
        current = self._current
        return current is None or (current.whole and current.keep_alive)

    def _begin(self, request: HopRequest) -> None:
        self._current = request
        self._running.add(request)
        request.begin(self._replica.answer(request), self._loop, self._context, self._server_state.tasks)

    def _hand_over(self) -> None:
        """Hand the connection over to the WebSocket protocol."""
        lines = [b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._target)]
        lines += [b"%b: %b\r\n" % field for field in self._headers]
        self._connections.discard(self)
        self._disconnect()
        transport = self.transport.uncork()
        websocket = cast(Any, self._config.ws_protocol_class)(
            config=self._config, server_state=self._server_state, app_state=self._app_state
        )
        websocket.connection_made(transport)
        websocket.data_received(b"".join((*lines, b"\r\n")))
        transport.set_protocol(websocket)

    def _disconnect(self) -> None:
        """Mark the running requests as disconnected: their responses cannot be sent any more."""
        for request in self._running:
            request.disconnect()
