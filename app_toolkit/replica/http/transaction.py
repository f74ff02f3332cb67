"""One request and its response at a replica, wherever its caller is."""

import asyncio
import logging
from collections.abc import Iterable
from contextvars import Context
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import unquote

from app_toolkit.replica.admission.admitted_request import BODYLESS
from app_toolkit.replica.admission.replica import SERVER_ERROR, TEXT, Replica, Reported
from app_toolkit.types import Header, Message, Scope

logger = logging.getLogger("app_toolkit.replica")

HIGH_WATER = 64 * 1024
"""Bytes of a body that the app has not received yet. Above this limit, no more is read from the caller."""

REASONS = {int(status): b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in HTTPStatus}
"""The status line of each status that has a phrase."""


class Caller(Protocol):
    """The way back to the caller of a request: a connection, or the proxy in this process.

    No method waits, and none raises an error.
    """

    writable: asyncio.Event
    """Set while the caller reads fast enough."""

    def pause_body(self) -> None:
        """Let the caller wait before it sends more of the body."""

    def resume_body(self) -> None:
        """Let the caller send more of the body, unless something else prevents that."""

    def ask_for_body(self) -> None:
        """Tell the caller that the app reads the body: `100 Continue`."""

    def start(self, status: int, fields: list[Header], whole: bool) -> None:
        """Send the head of the response. `whole`: no bytes of a body follow."""

    def write(self, data: Any) -> None:
        """Send bytes of the body."""

    def hang_up(self) -> None:
        """Disconnect once all written bytes are sent. The caller sees that a response that is not whole was cut off."""

    def response_sent(self, transaction: "Transaction") -> None:
        """Handle that all bytes of the response are written. Called again for each message that follows."""

    def ended(self, transaction: "Transaction", task: "asyncio.Task[None]") -> None:
        """Remove a request whose app has returned."""


class Transaction:
    """One request and its response, as the app's `receive` and `send` see them.

    `Replica` has checked the messages that are sent: names are in lower case, and no field contains a line end.
    """

    # Class attributes are the defaults, because few requests change them.
    disconnected = started = whole = complete = False
    framed = True
    """Whether chunks are written with their framing."""
    more_body = True
    body = b""
    _chunked: bool | None = None
    _left = 0
    """Bytes of the body that the app has announced and not sent yet."""
    _news = False
    _waiting: asyncio.Event | None = None

    def __init__(self, caller: Caller, scope: Scope, keep_alive: bool, expects: bool) -> None:
        """`keep_alive`: whether the caller may send another request after this one. `expects`: the caller waits for a
        `100 Continue`.
        """
        self.scope = scope
        self.keep_alive = keep_alive
        self._caller = caller
        self._writable = caller.writable
        self._head_only = scope["method"] == "HEAD"
        self._expects = expects

    def begin(
        self, replica: Replica, loop: asyncio.AbstractEventLoop, context: Context, tasks: set["asyncio.Task[None]"]
    ) -> None:
        """Let the replica serve the request in a task of its own.

        `context`: a copy of it is that of the task. It is not that of a request: a request often begins while the
        previous one ends.
        """
        task = loop.create_task(replica(self.scope, self.receive, self.send, self.put), context=context.copy())
        tasks.add(task)
        task.add_done_callback(self.ended)

    def take(self, body: bytes) -> None:
        """Add a part of the request's body."""
        if self.whole:  # the next request must not wait behind a body that the app has not received by now
            self.disconnected = not self.complete
        else:
            self.body += body
            if len(self.body) > HIGH_WATER:
                self._caller.pause_body()
        self.wake()

    def body_ended(self) -> None:
        """Note that all of the request's body has arrived."""
        self.more_body = False
        self.wake()

    def disconnect(self) -> None:
        """Note that the caller is gone: a response that is not complete cannot be sent any more."""
        self.disconnected = not self.complete
        self.wake()

    def wake(self) -> None:
        """Wake `receive`: there is a new message."""
        self._news = True
        if self._waiting is not None:
            self._waiting.set()

    async def receive(self) -> Message:
        if self._expects:
            self._expects = False
            self._caller.ask_for_body()
        if not (self.disconnected or self.complete):
            self._caller.resume_body()
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
            await self._writable.wait()

    def put(self, message: Message) -> bool:
        """Send a message, unless that has to wait.

        Return whether it was sent, or was dropped because the client has disconnected.
        """
        if self.disconnected:
            return True
        if not self._writable.is_set():
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
            self._caller.response_sent(self)
        return True

    def _put_head(self, status: int, headers: Iterable[Header]) -> None:
        fields, closes = list(headers), False
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
        self.whole = bodyless or not (self._chunked or self._left)
        self._caller.start(status, fields, self.whole)

    def _put_body(self, body: Any, more: bool) -> None:
        if self._head_only:
            self._left = 0
        elif self._chunked:
            if self.framed:
                framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
                self._caller.write(framed if more else framed + b"0\r\n\r\n")
            elif body:
                self._caller.write(body)
        else:
            if len(body) > self._left:
                raise RuntimeError("the body is longer than its content-length")
            self._left -= len(body)
            if body:
                self._caller.write(body)
            self.whole = not self._left
        if more:
            return
        if self._left:
            raise RuntimeError("the body is shorter than its content-length")
        self.whole = self.complete = True
        if self._waiting is not None:
            self._waiting.set()
        if not self.keep_alive:
            self._caller.hang_up()

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
                self._caller.hang_up()
        self._caller.ended(self, task)


def new_scope(
    method: bytes,
    target: bytes,
    version: str,
    headers: list[Header],
    app_state: dict[str, Any],
    asgi_version: str,
    server: tuple[str, int | None] | None = None,
    client: tuple[str, int] | None = None,
    scheme: str = "http",
) -> Scope:
    """Return the scope of an HTTP request. `target`: in origin form. `app_state`: that of the app's lifespan."""
    raw_path, _, query = target.partition(b"?")
    path = raw_path.decode("ascii")
    return {
        "type": "http",
        "asgi": {"version": asgi_version, "spec_version": "2.3"},
        "http_version": version,
        "server": server,
        "client": client,
        "scheme": scheme,
        "root_path": "",
        "headers": headers,
        "state": app_state.copy(),
        "method": method.decode("ascii"),
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
    }
