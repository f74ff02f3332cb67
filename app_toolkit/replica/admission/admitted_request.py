"""One admitted request: what its app receives and sends, and when its handler is cancelled."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import anyio.to_thread

from app_toolkit.core.cors import response_fields
from app_toolkit.core.disconnect import stops
from app_toolkit.core.uploads import PROMPT, Period, measured
from app_toolkit.errors import DeadlineExceeded, RequestError, RequestTimeout
from app_toolkit.observability import tracing
from app_toolkit.observability.context import DEADLINE, READ_STREAMS, REPLICA, REQUEST_ID, SHARD_KEY, TRACE, ReadStream
from app_toolkit.replica.admission.client import ClientMessages
from app_toolkit.replica.admission.live_sets import LiveSets
from app_toolkit.replica.admission.streams import LEAVE_SLOT, is_lasting, is_stream
from app_toolkit.replica.disconnect import wish_of
from app_toolkit.replica.http.head import checked
from app_toolkit.transport import hop
from app_toolkit.transport.frames import why_not_closed_with
from app_toolkit.types import ASGIApp, Header, Message, Receive, Scope, Send

logger = logging.getLogger("app_toolkit.replica")

BODIES = frozenset({"http.response.body", "websocket.http.response.body"})
RESPONSE_MESSAGES = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
CHUNKS_PER_TURN = 64
"""Number of chunks after which a stream yields to the event loop once.

When its client has disconnected, the server's `send` never waits. A stream that does not wait either would block the
event loop, and the disconnect would never be noticed.
"""
THREAD_S = 0.05
"""Interval in seconds at which a handler that is to be cancelled is checked: whether its thread has ended."""
JSON = [(b"content-type", b"application/json")]
BODYLESS = (204, 304)
FRAMING = (b"content-length", b"transfer-encoding")
INTERNAL_ERROR = 1011
"""The close code of a WebSocket that its handler closes with an invalid code; RFC 6455, 7.4.1."""


Put = Callable[[Message], bool]
"""Send a message at once. Return False if that has to wait, as `send` would."""


class AdmittedRequest:
    """One request from its admission until its coroutine ends."""

    # Class attributes are the defaults, because few requests change them.
    started = False
    complete = False
    deadline: float | None = None
    """The time on `time.monotonic()` at which the request is cancelled; checked at every sweep. None: no deadline."""
    cut: RequestError | None = None
    """The reason why a response that has begun cannot be completed; None: there is none."""
    _head: Message | None = None
    """The head of a response of known length, or of a denial response, until the first bytes of the body are sent."""
    _length: int | None = None
    _old = False
    _stopped = False
    _body_period: Period | None = None
    """The period in which the rate of the body is measured; None: the app has not waited for the body yet."""
    _chunks = 0
    _span: tracing.ReplicaSpan | None = None
    _outer_deadline: float | None = None
    _bounded = False
    _client: ClientMessages | None = None
    _completion: asyncio.Event | None = None
    _error_sent: asyncio.Event | None = None
    """Set when the error that replaces the response of the handler has been sent: the 504 of a late handler, or the 408
    of a slow body."""
    watcher: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None

    def __init__(
        self,
        live: LiveSets,
        scope: Scope,
        receive: Receive,
        send: Send,
        put: Put | None = None,
        *,
        held: bool = False,
        from_caller: bool = False,
    ) -> None:
        """`put` as for `Replica`. `held`: the caller waits for a `100 Continue` that its client has not asked for.

        `from_caller`: a proxy or another replica sent the request over its own connection.
        """
        self._live = live
        self._scope = scope
        self._receive = receive
        self._send = send
        self._put = put
        self._held = held
        self._from_caller = from_caller
        own = extension(scope)
        self.request_id: str | None = own.get("request_id")
        self._trace: str | None = own.get("trace")
        self._shard_key: str | None = own.get("shard_key")

    def __enter__(self) -> "AdmittedRequest":
        self._outer_id, self._outer_read_streams = REQUEST_ID.get(), READ_STREAMS.get()
        REQUEST_ID.set(self.request_id)
        self._read_streams: set[ReadStream] = set()
        READ_STREAMS.set(self._read_streams)
        if self._trace is not None:
            self._outer_trace = TRACE.get()
            if tracing.current is not None:
                self._span = tracing.ReplicaSpan(tracing.current, self._trace, REPLICA.get())
                self._trace = self._span.forwarded
                self._scope["headers"] = tracing.with_trace(self._scope["headers"], self._trace)
            TRACE.set(self._trace)
        if self._shard_key is not None:
            self._outer_shard_key = SHARD_KEY.get()
            SHARD_KEY.set(self._shard_key)
        self._task = self._live.enter(self, self._scope["type"])
        return self

    def bound(self, timeout: float) -> None:
        """Set the deadline to `timeout` seconds from now. The handler is cancelled at the next sweep after it."""
        self.deadline = time.monotonic() + timeout
        self._bounded = True
        self._outer_deadline = DEADLINE.get()
        DEADLINE.set(self.deadline)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # Not `reset(token)`: a coroutine that is discarded is closed in another context.
        REQUEST_ID.set(self._outer_id)
        READ_STREAMS.set(self._outer_read_streams)
        if self._read_streams and self._broke_off(error):
            for read_stream in tuple(self._read_streams):
                read_stream.leave()
        if self._trace is not None:
            TRACE.set(self._outer_trace)
            if self._span is not None:
                self._span.end(error)
        if self._shard_key is not None:
            SHARD_KEY.set(self._outer_shard_key)
        if self._bounded:
            DEADLINE.set(self._outer_deadline)
        self._live.leave(self)
        for rare in (self.watcher, self.ending):
            if rare is not None:
                rare.cancel()
        if not self._stopped:
            return False
        # This class handles the cancellation that it caused itself. Any other one, such as the server's, propagates.
        assert self._task is not None
        return self._task.uncancel() == 0 and isinstance(error, asyncio.CancelledError)

    def _broke_off(self, error: BaseException | None) -> bool:
        """Whether the request was aborted. A coroutine that is discarded does not count: no event loop runs it."""
        if error is None:
            return self._client is not None and self._client.gone and not self.complete
        return not isinstance(error, GeneratorExit)

    async def serve(self, app: ASGIApp) -> None:
        """Call the app. If an error replaces its response meanwhile, return when the error has been sent whole."""
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            await self._until_error_sent()
            raise
        await self._until_error_sent()

    async def _until_error_sent(self) -> None:
        """Wait until the error that replaces the response has been sent, if there is one."""
        if self._error_sent is not None:
            self.complete = True  # the handler has ended: nothing is left to cancel
            await self._error_sent.wait()

    async def receive(self) -> Message:
        """Return the next message of the client for the app."""
        message = await self._reader().receive()
        if message["type"] == "http.disconnect" and self._withholds_disconnect():
            self._completion = self._completion or asyncio.Event()
            await self._completion.wait()
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind in RESPONSE_MESSAGES:
            message = self._checked(message)
            if self._head is not None:
                return
            self.started = True
        elif self._head is not None:
            if kind in BODIES and not self._fits(message):
                await asyncio.sleep(0)  # a response with an empty body must not block the event loop
                return
            head, self._head = self._head, None
            self.started = True
            try:
                if self._put is None or not self._put(head):
                    await self._send(head)
            except BaseException:  # the sender may be cancelled while it waits, and may try again
                self._head, self.started = head, False
                raise
        elif kind == "websocket.close":  # also uvicorn's own 403, if that is the first message
            if self.started:
                message = self._closable(message)
            self.started = self.complete = True
        if self._put is None or not self._put(message):
            await self._send(message)
        if kind == "http.response.body":
            if not message.get("more_body", False):
                self.complete = True
                self._live.leave_slot(self)
                if self._bounded:
                    DEADLINE.set(None)  # what runs from here on is background work
                if self._completion is not None:
                    self._completion.set()
                return
            self._chunks += 1
            if self._chunks % CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _closable(self, close: Message) -> Message:
        """Return the message, or one with code 1011 if a frame cannot carry the code or the reason."""
        code, reason = close.get("code") or 1000, close.get("reason") or ""
        why = why_not_closed_with(code, reason)
        if why is None:
            return close
        logger.error("the app closed the WebSocket of request %s, and %s; closing it with 1011", self.request_id, why)
        return {"type": "websocket.close", "code": INTERNAL_ERROR}

    def _checked(self, head: Message) -> Message:
        """Return the head, checked and without internal fields.

        A head of a response of known length, or of a denial response, is kept and sent with the first bytes of its
        body. So an app that fails before that has not begun its response.
        """
        if self._head is not None:
            raise RuntimeError("the app sends a second head")
        if self.started:
            return head  # no server accepts it
        kind = head["type"]
        status = None if kind == "websocket.accept" else head["status"]
        fields, length = checked(status, head.get("headers", ()))
        if status == 503:
            fields = _without_internal(fields)
        if self._from_caller:
            _leave_to_caller(fields)
        head = {**head, "headers": fields}  # a copy: the app may use its own again
        if kind == "websocket.http.response.start":
            self._head, self._length = head, length
        elif status in BODYLESS:
            self._send, self._put = partial(_send_bodyless, self._send), None
        elif length and kind == "http.response.start" and self._scope["method"] != "HEAD":
            self._head, self._length = head, length
        elif length is None and kind == "http.response.start" and is_stream(self._scope, fields):
            fields.append((hop.STREAM, self._open_stream()))
        return head

    def _open_stream(self) -> bytes:
        """Make the response an open stream. Return what the caller learns about it."""
        lasting = is_lasting(self._scope)
        self._scope[LEAVE_SLOT] = partial(self._live.leave_slot, self)
        if lasting:
            self.deadline = None
        if not self._live.open_stream(self):
            return hop.KEPT
        return hop.LASTING if lasting else hop.OPEN

    def _fits(self, message: Message) -> bool:
        """Return whether the body begins with this message. Raises `RuntimeError` if its length is wrong."""
        size = len(message.get("body", b""))
        more = message.get("more_body", False)
        length = self._length
        if length is not None and (size > length or (length and not size and not more)):
            raise RuntimeError(f"the app sends {size} bytes of a body, and has announced {length}")
        return size > 0 or not more

    def unfinished(self) -> str:
        """Name the part of the request that has not ended, for a log."""
        scope = self._scope
        name = f"{scope.get('method', 'WebSocket')} {scope['path']!r} (request {self.request_id})"
        return f"the background tasks of {name}" if self.complete and scope["type"] == "http" else name

    def take_back(self) -> None:
        """Discard the head that was kept back, because another response follows."""
        self._head = None

    # Client disconnect

    def look(self, now: float) -> None:
        """Check the deadline, the body and the client; called at every sweep.

        From the second call on, a task watches for a disconnect. A short request does not need that task.
        """
        if self.deadline is not None and self.deadline <= now:
            self.deadline = None
            self._expired()
        if self._client is not None and not self._client.whole and self._scope["type"] == "http":
            self._look_at_body(self._client, now)
        if not self._old:
            self._old = True
        elif self._stops() and self._reader().watchable and not self._owes_continue():
            self.watcher = self._reader().watch(self._hung_up)

    def _reader(self) -> ClientMessages:
        if self._client is None:
            self._client = ClientMessages(self._receive)
        return self._client

    def _stops(self) -> bool:
        scope = self._scope
        wish = wish_of(scope, self._live.on_disconnect)
        return stops(wish, scope["type"], scope.get("method", ""), self.started)

    def _owes_continue(self) -> bool:
        """Whether the server would send `100 Continue` to the client if a message were requested."""
        if self.started or self._reader().asked:
            return False
        return self._held or any(name == b"expect" for name, _ in self._scope["headers"])

    def _withholds_disconnect(self) -> bool:
        # The rest of a body that is not complete never arrives, so an app that waits for it must get the disconnect.
        if self.complete or wish_of(self._scope, self._live.on_disconnect) != "continue":
            return False
        return self._reader().whole or not any(
            name in (b"content-length", b"transfer-encoding") for name, _ in self._scope["headers"]
        )

    def _hung_up(self) -> None:
        client = self._reader()
        if self.ending is None and not (self.complete or client.read or client.unread) and self._stops():
            self._end(self._stop())

    # Slow bodies

    def _look_at_body(self, client: ClientMessages, now: float) -> None:
        """Measure the rate at which the body arrives. Only time in which the app waits for the body counts."""
        period = self._body_period
        if period is None:
            self._body_period = Period(now, client.received)
        elif not client.read:
            self._body_period = replace(period, looked_at=now)
        else:
            self._body_period = measured(period, now, client.received, PROMPT)
            if self._body_period is None:
                self._slow_body()

    def _slow_body(self) -> None:
        """Count the request among those with slow bodies, or end it if there are too many. A call is never ended."""
        if "call" not in extension(self._scope) and not (self._live.slow_body(self) or self.started or self.ending):
            self._end(self._refuse_body())

    async def _refuse_body(self) -> None:
        if not self.started:
            slow = f"the body arrives at less than {PROMPT.bytes_per_s:,.0f} bytes a second"
            most = self._live.max_slow_bodies
            await self._replace_response(
                RequestTimeout(
                    f"{slow}, and requests with such bodies hold {most} slots of the replica, the most possible"
                )
            )

    # Deadline

    def _expired(self) -> None:
        if not self.complete and self._scope["type"] == "http":
            self._end(self._expire())

    async def _expire(self) -> None:
        if self.complete:  # the response was completed just after the deadline
            return
        await self._replace_response(DeadlineExceeded("the deadline of this request passed while its handler ran"))

    async def _replace_response(self, error: RequestError) -> None:
        """Send an error instead of the response, or cut off the response that has begun. Cancel the handler."""
        send, self._send, self._put = self._send, _nowhere, None
        if self.started:
            self.cut = error
        else:
            self.started = True
            self._error_sent = asyncio.Event()
            body = json.dumps(error.document(self.request_id or "")).encode()
            try:
                headers = [*JSON, *response_fields(self._live.cors, self._scope["headers"])]
                await respond("http", error.status, headers, body, send)
            finally:
                self._error_sent.set()
        await self._stop()

    # Client disconnect and deadline

    def _end(self, how: Coroutine[Any, Any, None]) -> None:
        if self.ending is not None:
            self.ending.cancel()
        self.ending = asyncio.get_running_loop().create_task(how)

    async def _stop(self) -> None:
        """Cancel the handler, unless its response is complete or it is being cancelled already.

        A thread cannot be cancelled: while a `def` endpoint runs in a thread, the handler continues and keeps its slot.
        """
        limiter = anyio.to_thread.current_default_thread_limiter()
        while self._task in limiter.statistics().borrowers:  # noqa: ASYNC110 - a thread does not report its end
            await asyncio.sleep(THREAD_S)
        if self._task is not None and not (self.complete or self._stopped or self._task.cancelling()):
            self._stopped = True
            self._task.cancel()


def _leave_to_caller(fields: list[Header]) -> None:
    """Replace `Connection: close` with an internal field: the app means the connection of the client, which the caller
    closes.
    """
    for index, (name, value) in enumerate(fields):
        if name == b"connection" and value.lower() == b"close":
            fields[index] = (hop.CLOSES, b"1")


def _without_internal(fields: Iterable[Header]) -> list[Header]:
    """Return the fields without the internal ones.

    Only `Replica` refuses requests. A 503 of user code is a response, and callers must not retry it.
    """
    return [field for field in fields if not hop.is_internal(field[0])]


async def _send_bodyless(send: Send, message: Message) -> None:
    """Send the response without a body and without the fields that announce one.

    The next response on the connection begins directly after the head. The `content-length` that a 304 may have is
    removed as well, because uvicorn would expect that many bytes.
    """
    if message["type"] == "http.response.start":
        headers = [field for field in message["headers"] if field[0] not in FRAMING]
        message = {**message, "headers": headers}
    elif message["type"] == "http.response.body":
        message = {**message, "body": b""}
    await send(message)


async def _nowhere(message: Message) -> None:
    """Discard a message of an app whose request has ended."""


def extension(scope: Scope) -> Mapping[str, Any]:
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    ours: Mapping[str, Any] = extensions.get("app_toolkit", {})
    return ours


async def respond(kind: str, status: int, headers: list[Header], body: bytes, send: Send) -> None:
    # A WebSocket that is not accepted is answered through its denial extension, which has the same two
    # messages.
    prefix = "http.response" if kind == "http" else "websocket.http.response"
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": f"{prefix}.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})
