"""The connection of a caller to the replica: HTTP/1.1, one request after another."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from contextvars import copy_context
from typing import Any, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from app_toolkit.replica.admission.replica import TEXT, Replica
from app_toolkit.replica.http.transaction import REASONS, Transaction, new_scope
from app_toolkit.transport.corked import CorkedTransport
from app_toolkit.types import Header

logger = logging.getLogger("app_toolkit.replica")

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UNREADABLE = b"Invalid HTTP request received."
STATUSES = {status: line + b"\r\n" for status, line in REASONS.items()}


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
        self._arriving: Transaction | None = None
        self._is_handshake = False
        # Writing
        #: The request whose response is next on the connection, and the requests that wait behind it.
        self._current: Transaction | None = None
        self._queued: deque[Transaction] = deque()
        #: All requests whose app has not returned, including those whose response is complete.
        self._running: set[Transaction] = set()
        self.writable = asyncio.Event()
        self.writable.set()
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
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

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
            headers = [*TEXT, (b"content-length", b"%d" % len(UNREADABLE)), (b"connection", b"close")]
            self.transport.write(head(400, headers) + UNREADABLE)
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
        transaction = self._arriving = Transaction(self, scope, keep_alive, self._expects)
        if self._is_free:
            self._begin(transaction)
        else:
            self._queued.append(transaction)
            self.pause_body()

    def on_body(self, body: bytes) -> None:
        if self._arriving is not None:
            self._arriving.take(body)

    def on_message_complete(self) -> None:
        arrived, self._arriving = self._arriving, None
        if arrived is not None:
            arrived.body_ended()

    # For a transaction

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

    def start(self, status: int, fields: list[Header], whole: bool) -> None:
        self.transport.write(head(status, fields))

    def response_sent(self, transaction: Transaction) -> None:
        """Flush a response that was completely written, and begin the next request."""
        if transaction.complete:
            # Without this flush, a complete response would wait until the loop iteration has processed what arrived
            # meanwhile.
            self.transport.flush()
        if transaction is self._current:
            self._go_on(transaction)

    def ended(self, transaction: Transaction, task: "asyncio.Task[None]") -> None:
        """Remove a request whose app has returned."""
        self._server_state.tasks.discard(task)
        self._running.discard(transaction)
        if transaction is self._current:
            self._go_on(transaction)

    def _go_on(self, current: Transaction) -> None:
        if current.complete or current not in self._running:
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

    def _begin(self, transaction: Transaction) -> None:
        self._current = transaction
        self._running.add(transaction)
        transaction.begin(self._replica, self._loop, self._context, self._server_state.tasks)

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
        for transaction in self._running:
            transaction.disconnect()


def head(status: int, fields: Iterable[Header]) -> bytes:
    pieces = [STATUSES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, value in fields:
        pieces += (name, b": ", value, b"\r\n")
    pieces.append(b"\r\n")
    return b"".join(pieces)
