"""One request of a caller that speaks the hop: over a connection, or from the proxy in this process."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextvars import Context
from typing import Any, Protocol
from urllib.parse import unquote

from app_toolkit.replica.admission.live_sets import LiveSets
from app_toolkit.replica.admission.replica_request import CHUNKS_PER_TURN, SERVER_ERROR, TEXT, ReplicaRequest, Reported
from app_toolkit.replica.admission.stage import COMPLETE, CUT, ENDED, HELD, REPLACED, RESPONDING, STARTED, TRANSITIONS
from app_toolkit.replica.http.head import BODYLESS, CheckedHead, checked_head, for_caller
from app_toolkit.types import Header, Message, Scope

logger = logging.getLogger("app_toolkit.replica")

HIGH_WATER = 64 * 1024
"""Bytes of a body that the app has not received yet. Above this limit, no more is read from the caller."""

READ_AHEAD = 64 * 1024
"""Bytes that may exceed `HIGH_WATER`, because only reading detects that a caller has disconnected."""

CLOSE = (b"connection", b"close")


class Caller(Protocol):
    """The way back to the caller of a request: a connection, or the proxy in this process.

    No method waits, and none raises an error.
    """

    blocked: asyncio.Event | None
    """Is set when the caller reads fast enough again. None: it does."""

    def pause_body(self) -> None:
        """Let the caller wait before it sends more of the body."""

    def resume_body(self) -> None:
        """Let the caller send more of the body, unless something else prevents that."""

    def ask_for_body(self) -> None:
        """Tell the caller that the app reads the body: `100 Continue`."""

    def start(self, head: CheckedHead, more: tuple[Header, ...], body: Any, *, head_only: bool, whole: bool) -> None:
        """Send the head of the response.

        Parameters:
            head: The head, as the app has sent it.
            more: Fields to add.
            body: The first bytes of the body, if the head announces its length.
            head_only: Whether it is the response to a HEAD.
            whole: Whether no bytes follow.
        """

    def write(self, data: Any) -> None:
        """Send bytes of the body."""

    def hang_up(self) -> None:
        """Disconnect once all written bytes are sent. The caller sees that a response that is not whole was cut off."""

    def response_sent(self, request: "HopRequest") -> None:
        """Handle that all bytes of the response are written. Called again for each message that follows."""

    def ended(self, request: "HopRequest", task: "asyncio.Task[None]") -> None:
        """Remove a request whose app has returned."""


class HopRequest(ReplicaRequest):
    """One request and its response, in a task and a context of its own."""

    # Class attributes are the defaults, because few requests change them.
    gone = asked = body_read = False
    whole = False
    """Whether all bytes of the response are written: no bytes follow."""
    received = reading = 0
    watched = False
    """Whether a disconnect ends the handler at once."""
    _notified = False
    """Whether the app has received the disconnect, or was cancelled because of it."""
    _arrived = False
    """Whether there is something that the app has not received."""
    _more_body = True
    _body = b""
    _limit = HIGH_WATER
    _bodyless = False
    """Whether the response has no body, whatever the app sends."""
    _chunked = False
    _left = 0
    """Bytes of the body that the head has announced and the app has not sent yet."""
    _yields = False
    _changed: asyncio.Event | None = None

    def __init__(
        self,
        caller: Caller,
        live: LiveSets,
        scope: Scope,
        *,
        keep_alive: bool,
        expects: bool = False,
        framed: bool = True,
    ) -> None:
        """Create a request whose head has arrived.

        Parameters:
            caller: Gets the response.
            live: Those of the replica.
            scope: The scope of the request.
            keep_alive: Whether the caller may send another request after this one.
            expects: Whether the caller waits for a `100 Continue`.
            framed: Whether chunks are written with their framing.
        """
        super().__init__(scope, live)
        self.keep_alive = keep_alive
        self.head_only = scope["method"] == "HEAD"
        self._caller = caller
        self._expects = expects
        self._framed = framed

    def begin(
        self,
        served: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop,
        context: Context,
        tasks: set["asyncio.Task[None]"],
    ) -> None:
        """Begin to serve the request in a task.

        Parameters:
            served: How the replica serves it.
            loop: The event loop of the replica.
            context: A copy of it is that of the task. It is not that of another request: a request often begins while
                the previous one ends.
            tasks: Gets the task.
        """
        task = self._task = loop.create_task(served, context=context.copy())
        tasks.add(task)
        task.add_done_callback(self._ended)

    @property
    def over(self) -> bool:
        """Whether the response is complete, so that a disconnect does not matter any more."""
        return self.stage is COMPLETE or (self.stage is REPLACED and self.whole)

    # From the caller

    def take(self, body: bytes) -> None:
        """Add a part of the request's body."""
        if self.whole:  # the next request must not wait behind a body that the app has not received by now
            self.gone = not self.over
        else:
            self._body += body
            self.received += len(body)
            if len(self._body) > self._limit:
                self._caller.pause_body()
        self._arrived = True
        self._wake()

    def body_ended(self) -> None:
        """Note that all of the request's body has arrived."""
        self._more_body = False
        self._arrived = True
        if self._changed is not None:
            self._changed.set()

    def disconnect(self) -> None:
        """Note that the caller is gone: a response that is not complete cannot be sent any more."""
        self.gone = not self.over
        if self.gone and self.watched:
            self._watch()
        self._wake()

    def _watch(self) -> None:
        if not self.watched:
            self.watched = True
            self._limit = HIGH_WATER + READ_AHEAD
            self._resume_body()
        if self.gone and not self._notified:
            self._notified = True
            self._hung_up()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def _resume_body(self) -> None:
        if len(self._body) <= self._limit:
            self._caller.resume_body()

    # For the app

    async def receive(self) -> Message:
        self.asked = True
        if self._expects:
            self._expects = False
            self._caller.ask_for_body()
        self.reading += 1
        try:
            while not self._has_message():
                if self._changed is None:
                    self._changed = asyncio.Event()
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.reading -= 1
        if self.gone or self.over:
            self._notified = True
            return {"type": "http.disconnect"}
        self._arrived = False
        self.body_read = not self._more_body
        body, self._body = self._body, b""
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    def _has_message(self) -> bool:
        if self.gone or self.over:
            return not self._withholds_disconnect()
        self._caller.resume_body()
        return self._arrived

    async def send(self, message: Message) -> None:
        while not self._put(message):
            await self._until_writable()
        if self._yields:
            self._yields = False
            await asyncio.sleep(0)

    async def _until_writable(self) -> None:
        blocked = self._caller.blocked
        if blocked is not None:
            await blocked.wait()

    def _put(self, message: Message) -> bool:
        """Send a message, unless that has to wait.

        Return whether it was sent, or was dropped because nobody gets it.
        """
        kind, stage = message["type"], self.stage
        if kind == "http.response.body" and (stage is RESPONDING or stage is HELD):
            return self._put_body(message.get("body", b""), message.get("more_body", False))
        if stage is REPLACED or stage is CUT:
            if kind == "http.response.body":
                self._sent_part(message.get("more_body", False))
            return True
        if kind == "http.response.start" and stage < RESPONDING:
            return self._put_head(message)
        if self.gone:
            if kind == "http.response.body" and stage < HELD and not message.get("more_body", False):
                self._sent_part(more=False)
            return True
        if stage is COMPLETE:
            raise RuntimeError(f"the app sent {kind!r} after its response")
        if stage < HELD:
            raise RuntimeError(f"the app sent {kind!r}, and not 'http.response.start', first")
        raise RuntimeError(f"the app sent {kind!r} after a head")

    def _put_head(self, message: Message) -> bool:
        if self.stage is HELD:
            raise RuntimeError("the app sends a second head")
        head = checked_head(message["status"], message.get("headers", ()))
        if head.closes and self.from_caller:
            head = CheckedHead(head.status, for_caller(head.fields), head.length)
        if self._keep(head):
            return True
        if not (self.gone or self._caller.blocked is None):
            return False
        more = self._stream_fields(head)
        self.stage = TRANSITIONS[self.stage, STARTED]
        if not self.gone:
            self._write_head(head, more)
        return True

    def _put_body(self, body: Any, more: bool) -> bool:
        head = self._head
        if head is not None and not self._begins_body(len(body), more):
            self._yields = True  # a response with an empty body must not block the event loop
            return True
        if not (self.gone or self._caller.blocked is None):
            return False
        if head is not None:
            self._head = None
            self.stage = TRANSITIONS[self.stage, STARTED]
            if not self.gone:
                self._write_head(head, (), body)
        elif self._chunked and not self.gone:
            if self._framed:
                body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
                if not more:
                    body += b"0\r\n\r\n"
            if body:
                self._caller.write(body)
        elif not (self._bodyless or self.gone):
            self._write_sized(body)
        if not (more or self.gone):
            if self._left:
                raise RuntimeError("the body is shorter than its content-length")
            self.whole = True
        if more and not self.whole:
            self._chunks += 1
            self._yields = self._chunks % CHUNKS_PER_TURN == 0
        else:
            self._sent_part(more)
        return True

    def _sent_part(self, more: bool) -> None:
        """Note a part of the body that was sent or dropped."""
        if not more:
            self.stage = TRANSITIONS[self.stage, ENDED]
        if self.whole and not self.gone:
            if not (more or self.keep_alive):
                self._caller.hang_up()
            self._caller.response_sent(self)
        if more:
            self._yields = True
        else:
            self._complete()

    def _write_head(self, head: CheckedHead, more: tuple[Header, ...], body: Any = b"") -> None:
        """Write the head, and the first bytes of the body if it announces their length."""
        self._expects = False
        if head.closes:
            self.keep_alive = False
        elif not self.keep_alive:
            more = (*more, CLOSE)
        self._bodyless = self.head_only or head.bodyless
        self._chunked = not self._bodyless and head.length is None
        self._left = 0 if self._bodyless else (head.length or 0) - len(body)
        whole = self._bodyless or not (self._chunked or self._left)
        self._caller.start(head, more, body, head_only=self.head_only, whole=whole)
        self.whole = whole  # not before: the caller may send the rest of the request's body meanwhile
        if self.whole and not body:
            self._caller.response_sent(self)

    def _write_sized(self, body: Any) -> None:
        if len(body) > self._left:
            raise RuntimeError("the body is longer than its content-length")
        self._left -= len(body)
        if body:
            self._caller.write(body)
        self.whole = not self._left

    # Responses of the replica itself

    async def respond(self, status: int, fields: Sequence[Header], body: bytes) -> None:
        while not self._respond(status, fields, body):
            await self._until_writable()

    def _respond(self, status: int, fields: Sequence[Header], body: bytes) -> bool:
        """Write a complete response, unless that has to wait. Return whether it was written, or nobody gets it."""
        if not (self.gone or self._caller.blocked is None):
            return False
        if self.stage is not REPLACED and self.stage is not COMPLETE:
            self.stage = TRANSITIONS[TRANSITIONS[self.stage, STARTED], ENDED]
        if not self.gone:
            if status not in BODYLESS:
                fields = [*fields, (b"content-length", b"%d" % len(body))]
            self._write_head(CheckedHead(status, fields, len(body)), (), b"" if self.head_only else body)
            if not self.keep_alive:
                self._caller.hang_up()
            self._caller.response_sent(self)
        if self.stage is COMPLETE:
            self._complete()
        self._wake()
        return True

    # The end

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Complete the response after the app has returned or raised.

        If no response has begun, send a 500. If a response cannot be completed, close the connection, so that the
        caller does not take it for a complete one.
        """
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Reported):
            logger.error("a request failed outside of the app", exc_info=error)
        if not (self.gone or (self.whole and (self.keep_alive or self.over))):
            if error is None and self.stage <= RESPONDING:
                logger.error("the app returned before its response was complete")
            begun = self.stage.begun
            if not begun:
                self._drop_head()
                self.keep_alive = False
            if begun or not self._respond(500, [TEXT], SERVER_ERROR):
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
