"""The connection of a caller to the replica: HTTP/1.1, one request after another."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from contextvars import copy_context
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from app_toolkit.replica.admission.admitted_request import BODYLESS
from app_toolkit.replica.admission.replica import SERVER_ERROR, TEXT, Replica, Reported
from app_toolkit.transport.corked import CorkedTransport
from app_toolkit.types import Header, Message, Scope

logger = logging.getLogger("app_toolkit.replica")

HIGH_WATER = 64 * 1024
"""Bytes of a body that the app has not received yet. Above this limit, no more is read from the connection."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UNREADABLE = b"Invalid HTTP request received."
STATUSES = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


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
        # Not the context of a request: a request often begins while the previous one ends.
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
        transaction = self._arriving = Transaction(self, self._scope(version), keep_alive, self._expects)
        if self._is_free:
            self._begin(transaction)
        else:
            self._queued.append(transaction)
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        if self._arriving is not None:
            self._arriving.take(body)

    def on_message_complete(self) -> None:
        arrived, self._arriving = self._arriving, None
        if arrived is not None:
            arrived.more_body = False
            arrived.wake()

    # For a transaction

    def pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and not (self._queued or self.transport.is_closing()):
            self._paused = False
            self.transport.resume_reading()

    def response_sent(self, transaction: "Transaction") -> None:
        """Flush a response that was completely written, and begin the next request."""
        if transaction.complete:
            # Without this flush, a complete response would wait until the loop iteration has processed what arrived
            # meanwhile.
            self.transport.flush()
        if transaction is self._current:
            self._go_on(transaction)

    def ended(self, transaction: "Transaction", task: "asyncio.Task[None]") -> None:
        """Remove a request whose app has returned."""
        self._server_state.tasks.discard(task)
        self._running.discard(transaction)
        if transaction is self._current:
            self._go_on(transaction)

    def _go_on(self, current: "Transaction") -> None:
        if current.complete or current not in self._running:
            self._current = None
            if self._queued and current.keep_alive:
                self._begin(self._queued.popleft())
        self.resume_reading()

    @property
    def _is_free(self) -> bool:
        """Whether the next request may begin.

        The caller of a response with a known length sees its end before the app returns, and may then send its next
        request.
        """
        current = self._current
        return current is None or (current.whole and current.keep_alive)

    def _begin(self, transaction: "Transaction") -> None:
        self._current = transaction
        self._running.add(transaction)
        serving = self._replica(transaction.scope, transaction.receive, transaction.send, transaction.put)
        task = self._loop.create_task(serving, context=self._context.copy())
        self._server_state.tasks.add(task)
        task.add_done_callback(transaction.ended)

    def _scope(self, version: str) -> Scope:
        raw_path, _, query = self._target.partition(b"?")
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "root_path": "",
            "headers": self._headers,
            "state": self._app_state.copy(),
            "method": self._parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
        }

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
            transaction.disconnected = not transaction.complete
            transaction.wake()


class Transaction:
    """One request and its response, as the app's `receive` and `send` see them.

    `Replica` has checked the messages that are sent: names are in lower case, and no field contains a line end.
    """

    # Class attributes are the defaults, because few requests change them.
    disconnected = started = whole = complete = False
    more_body = True
    body = b""
    _chunked: bool | None = None
    _left = 0
    """Bytes of the body that the app has announced and not sent yet."""
    _news = False
    _waiting: asyncio.Event | None = None

    def __init__(self, connection: CallerConnection, scope: Scope, keep_alive: bool, expects: bool) -> None:
        """`keep_alive`: whether the connection serves another request after this one. `expects`: the caller waits for a
        `100 Continue`.
        """
        self.scope = scope
        self.keep_alive = keep_alive
        self._connection = connection
        self._transport = connection.transport
        self._head_only = scope["method"] == "HEAD"
        self._expects = expects

    def take(self, body: bytes) -> None:
        """Add a part of the request's body."""
        if self.whole:  # the next request must not wait behind a body that the app has not received by now
            self.disconnected = not self.complete
        else:
            self.body += body
            if len(self.body) > HIGH_WATER:
                self._connection.pause_reading()
        self.wake()

    def wake(self) -> None:
        """Wake `receive`: there is a new message."""
        self._news = True
        if self._waiting is not None:
            self._waiting.set()

    async def receive(self) -> Message:
        if self._expects and not self._transport.is_closing():
            self._transport.write(CONTINUE)
            self._expects = False
        if not (self.disconnected or self.complete):
            self._connection.resume_reading()
            if not self._news:
                if self._waiting is None:
                    self._waiting = asyncio.Event()
                await self._waiting.wait()
            self._news = False
            if self._waiting is not None:
                self._waiting.clear()
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        body, self.body = self.body, b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        while not self.put(message):
            await self._connection.writable.wait()

    def put(self, message: Message) -> bool:
        """Send a message, unless that has to wait.

        Return whether it was sent, or was dropped because the client has disconnected.
        """
        if self.disconnected:
            return True
        if not self._connection.writable.is_set():
            return False
        kind = message["type"]
        if not self.started:
            if kind != "http.response.start":
                raise RuntimeError(f"the app sent {kind!r}, and not 'http.response.start', first")
            self.started = True
            self._expects = False
            self._put_head(message["status"], message.get("headers", ()))
        elif self.complete or kind != "http.response.body":
            raise RuntimeError(f"the app sent {kind!r} after {'its response' if self.complete else 'a head'}")
        else:
            self._put_body(message.get("body", b""), message.get("more_body", False))
        if self.whole:
            self._connection.response_sent(self)
        return True

    def _put_head(self, status: int, headers: Iterable[Header]) -> None:
        fields = list(headers)
        closes = False
        for name, value in fields:
            if name == b"content-length":
                if self._chunked is None:
                    self._left = int(value)
                    self._chunked = False
            elif name == b"transfer-encoding":
                if value.lower() == b"chunked":
                    self._left = 0
                    self._chunked = True
            elif name == b"connection" and b"close" in [token.strip().lower() for token in value.split(b",")]:
                self.keep_alive = False
                closes = True
        if not (self.keep_alive or closes):
            fields.append((b"connection", b"close"))
        bodyless = self._head_only or status in BODYLESS
        if self._chunked is None and not bodyless:
            self._chunked = True
            fields.append((b"transfer-encoding", b"chunked"))
        self._transport.write(head(status, fields))
        self.whole = bodyless or not (self._chunked or self._left)

    def _put_body(self, body: Any, more: bool) -> None:
        if self._head_only:
            self._left = 0
        elif self._chunked:
            framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self._transport.write(framed if more else framed + b"0\r\n\r\n")
        else:
            if len(body) > self._left:
                raise RuntimeError("the body is longer than its content-length")
            self._left -= len(body)
            if body:
                self._transport.write(body)
            self.whole = not self._left
        if more:
            return
        if self._left:
            raise RuntimeError("the body is shorter than its content-length")
        self.whole = self.complete = True
        if self._waiting is not None:
            self._waiting.set()
        if not self.keep_alive:
            self._transport.close()

    def ended(self, task: "asyncio.Task[None]") -> None:
        """Complete the response after the app has returned or raised.

        If no response has begun, send a 500. If a response cannot be completed, close the connection, so that the
        caller does not take it for a complete one.
        """
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Reported):
            logger.error("a request failed outside of the app", exc_info=error)
        if not (self.complete or self.disconnected or (self.whole and self.keep_alive)):
            if error is None:
                logger.error("the app returned before its response was complete")
            if not self.started:
                self.keep_alive = False
                headers = [*TEXT, (b"content-length", b"%d" % len(SERVER_ERROR))]
                if self.put({"type": "http.response.start", "status": 500, "headers": headers}):
                    self.put({"type": "http.response.body", "body": SERVER_ERROR})
            if not self.complete:
                self.keep_alive = False
                self._transport.close()
        self._connection.ended(self, task)


def head(status: int, fields: Iterable[Header]) -> bytes:
    pieces = [STATUSES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, value in fields:
        pieces += (name, b": ", value, b"\r\n")
    pieces.append(b"\r\n")
    return b"".join(pieces)
