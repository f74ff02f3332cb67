"""The gate in front of the user's app: who may come in, what the app is told, and who is still inside."""

import asyncio
import json
import logging
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from types import TracebackType
from typing import Any

import anyio.to_thread
from uvicorn.protocols.utils import ClientDisconnected

from app_toolkit.core.disconnect import stops
from app_toolkit.errors import DeadlineExceeded, ReplicaBusy, TooManyWebSockets
from app_toolkit.interfaces import LiveOptions
from app_toolkit.observability.context import DEADLINE, READINGS, REQUEST_ID, TRACE, Reading
from app_toolkit.replica.batching import buffered
from app_toolkit.replica.client import Client
from app_toolkit.replica.disconnect import wish_of
from app_toolkit.replica.generators import notice_generators
from app_toolkit.replica.head import checked
from app_toolkit.replica.line import Line, hold
from app_toolkit.replica.streams import is_stream
from app_toolkit.transport import hop
from app_toolkit.transport.frames import why_not_closed_with
from app_toolkit.transport.hop import Hop, Refusal
from app_toolkit.types import ASGIApp, Header, Message, OnDisconnect, Receive, Scope, Send

logger = logging.getLogger("app_toolkit.replica")

BODIES = frozenset({"http.response.body", "websocket.http.response.body"})
ANSWERS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
CHUNKS_PER_TURN = 64
"""After so many the event loop gets a turn: to a client that has gone uvicorn sends without ever waiting, and
a stream that does not wait either would keep the loop, and so never hear that its client has gone."""

WEBSOCKET_SCHEMES = {"http": "ws", "https": "wss"}
SWEEP_S = 0.25
"""How often exchanges are looked at; one that was there the time before is watched for a hang-up of its client."""
THREAD_S = 0.05
"""How often a handler that is to be stopped is asked whether its thread has ended."""

TEXT = [(b"content-type", b"text/plain; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]
BODYLESS = (204, 304)
FRAMING = (b"content-length", b"transfer-encoding")
SERVER_ERROR = b"Internal Server Error"
INTERNAL_ERROR = 1011
"""The code for a WebSocket whose handler failed; RFC 6455, 7.4.1."""
NOTHING: Mapping[bytes, bytes] = {}
MOST_IDS = 1_000
"""Requests that are named to the controller where the loop does not answer."""


Put = Callable[[Message], bool]


class Reported(Exception):
    """The app failed and that is logged; all that is left for the server to do is to cut the connection."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A replica at one moment."""

    ongoing: int
    """HTTP requests that hold a slot: admitted, and their response is not complete."""
    running: int
    """HTTP requests whose coroutine has not ended: the ongoing ones, and background tasks."""
    websockets: int
    """WebSockets that are open, or being opened."""
    draining: bool
    """Whether it has stopped to admit anybody."""
    lines: int = 0
    """Callers that stand in line."""
    buffered: int = 0
    """Of the ongoing: items that wait for their batch."""
    streams: int = 0
    """Responses that are open streams and hold no slot."""
    reached: tuple[str, ...] = field(default=(), compare=False)
    """The limits that it has reached: `100 of 100 max_ongoing_requests`."""


class Replica:
    """The user's ASGI app behind a gate.

    * Whom it refuses never reached user code, so a refusal is always safe to hand on.
    * At most `max_ongoing_requests` HTTP requests are ongoing. A request is ongoing until its response is
      complete or its coroutine has ended; background tasks hold no slot, but a drain waits for them.
    * A request whose response is a stream leaves the ongoing ones when the head is sent, as long as fewer than
      `max_open_streams` are open. A stream beyond that limit keeps its slot: user code has run, so nobody refuses it.
    * A caller that was refused stands in line, and is offered a slot when one comes free; nobody overtakes the line.
    * Nothing is believed of a request from elsewhere before the secret has been compared, and the app sees
      none of the internal header fields.
    * A handler whose client has gone is stopped where `on_disconnect` or its own mark says so: it is cancelled, or
      hears of it where it waits for a message, never both. One whose deadline has passed is cancelled in any case.

    Called as an ASGI app it serves the wire; `admit` is the same gate for a caller in the same process. Not
    safe across threads, but for `statistics` and the attributes: everything runs on the event loop that
    serves the app.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        name: str,
        max_ongoing_requests: int,
        max_open_websockets: int = 1_000,
        max_open_streams: int = 1_000,
        on_disconnect: OnDisconnect = "auto",
        secret: bytes | None = None,
        root_path: str = "",
        trusted_without_hop: bool = False,
    ) -> None:
        """`name` is for logs; what follows `on_disconnect` is for the wire.

        `secret`: what callers must know; None: there is no wire, and who claims to come over it is refused.
        `root_path`: the application's prefix, which the path of each request contains; "" or "/": none.
        `trusted_without_hop`: serve whoever reaches a Unix socket (the kernel names its user), hop or no hop.
        """
        self.app = app
        self.name = name
        self.max_open_websockets = max_open_websockets
        self.max_open_streams = max_open_streams
        self.on_disconnect: OnDisconnect = on_disconnect
        self.draining = False
        self._token = None if secret is None else hop.token(secret)
        self._root_path = root_path.rstrip("/")
        self._trusted_without_hop = trusted_without_hop
        # Who is inside. An exchange leaves `_ongoing` when its response is complete or becomes an open stream,
        # `_streams` when its response is complete, the others when its coroutine ends.
        self._ongoing: set[Exchange] = set()
        self._streams: set[Exchange] = set()
        self._running: set[Exchange] = set()
        self._websockets: set[Exchange] = set()
        self._idle = asyncio.Event()
        self.line = Line(max_ongoing_requests, self._ongoing)
        self._sweeping = False
        #: The one that everything here runs on, as of the first sweep; it may be gone before this is.
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        # No request's own: that would be kept as long as anybody is inside.
        self._context = Context()

    def limit(self, live: LiveOptions) -> None:
        """Keep to these limits from now on; whoever is inside stays, also where that is more."""
        self.max_open_websockets = live.max_open_websockets
        self.max_open_streams = live.max_open_streams
        self.line.resize(live.max_ongoing_requests)

    # The wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send, put: Put | None = None) -> None:
        """Serve one request as uvicorn hands it over; a refusal and a failure of the app become answers.

        `put`: sends a message at once, and gives False where that has to wait, as `send` would.
        """
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        origin = self._origin(scope)
        if origin is not None and not isinstance(origin, Hop):
            await _refuse(kind, origin, send)
            return
        said = self._rewrite(scope, origin)
        if hop.PROBE in said and kind == "http":
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})
            return
        if hop.LINE in said and kind == "http":
            await self._stand(said[hop.LINE].decode(), receive, send)
            return
        caller = said.get(hop.CLAIM)
        refusal = self._refusal(kind) if caller is None else await self._come_in(kind, caller.decode())
        if refusal is not None:
            await _refuse(kind, refusal, send)
            return
        if caller is not None and _has_gone(receive):  # while it waited for its slot
            self.line.freed()
            return
        with Exchange(
            self, scope, receive, send, put, held=hop.EXPECT in said, from_caller=origin is not None
        ) as exchange:
            if origin is not None and origin.timeout_ms is not None and kind == "http":
                exchange.bound(origin.timeout_ms / 1_000)
            try:
                await self.app(scope, exchange.receive, exchange.send)
            except ClientDisconnected:
                raise  # uvicorn's word to who sends on a WebSocket that has closed; it expects it back
            except (Exception, SystemExit, KeyboardInterrupt) as error:  # no handler ends the replica
                # Starlette has answered 500 by now, and raises all the same; others leave it to their server.
                logger.error(
                    "request %s failed in %s: %s %r",
                    REQUEST_ID.get(),
                    self.name,
                    scope.get("method", "WebSocket"),
                    scope["path"],
                    exc_info=error,
                    extra={"request_id": REQUEST_ID.get()},
                )
                if not exchange.started:
                    exchange.take_back()
                    await _answer(kind, 500, TEXT, SERVER_ERROR, exchange.send)
                elif exchange.complete:
                    pass
                elif kind == "websocket":
                    # Else the proxy could not tell it from a replica that was lost.
                    await exchange.send({"type": "websocket.close", "code": INTERNAL_ERROR})
                else:
                    raise Reported from error
        if exchange.cut is not None:
            raise Reported from exchange.cut

    async def _stand(self, caller: str, receive: Receive, send: Send) -> None:
        try:
            await hold(self.line, caller, receive, send)
        except ReplicaBusy:
            await _refuse("http", "draining" if self.draining else "busy", send)

    def _origin(self, scope: Scope) -> Hop | Refusal | None:
        """Who sends this request; None: somebody without a hop field, who is trusted."""
        headers: list[Header] = scope["headers"]
        if not headers or headers[0][0] != hop.HOP:
            server = scope.get("server")
            by_file = server is not None and server[1] is None  # a Unix socket has no port
            return None if self._trusted_without_hop and by_file else "secret"
        if self._token is None:
            return "secret"
        try:
            return hop.decode(headers[0][1], self._token)
        except ValueError:  # it knows the secret, and counts its words differently
            return "protocol"

    def _rewrite(self, scope: Scope, origin: Hop | None) -> Mapping[bytes, bytes]:
        """Make the scope that of a server which the client itself had reached; gives what the caller says beside it."""
        headers: list[Header] = scope["headers"]
        scope["root_path"] = self._root_path
        if origin is None:
            scope["headers"] = [field for field in headers if not hop.is_internal(field[0])]
            return NOTHING
        said = NOTHING if len(headers) < 2 or not headers[1][0].startswith(hop.INTERNAL_PREFIX) else _said(headers)
        # What a caller asks for by itself is the field behind its own ones.
        scope["headers"] = headers[1 + len(said) + (hop.EXPECT in said) :]
        scope["client"] = origin.client
        scope["server"] = origin.server
        scope["http_version"] = origin.http_version
        scope["scheme"] = (
            origin.scheme if scope["type"] == "http" else WEBSOCKET_SCHEMES.get(origin.scheme, origin.scheme)
        )
        ours = {"request_id": origin.request_id}
        if hop.CALL in said:
            ours["call"] = said[hop.CALL].decode()
        if hop.TRACE in said:
            ours["trace"] = said[hop.TRACE].decode()
        scope["extensions"] = {**scope.get("extensions", {}), "app_toolkit": ours}
        return said

    # In one process

    async def admit(
        self, scope: Scope, receive: Receive, send: Send, timeout: float | None = None, *, caller: str | None = None
    ) -> None:
        """Run one request of a caller in this process; its scope is right already.

        `caller`: who claims an offer; None: nobody does. `timeout`: the seconds that the request has left. Its id is
        what `scope["extensions"]["app_toolkit"]["request_id"]` says, and its trace is "trace" beside it, where it is
        not that of who calls. Raises `ReplicaBusy` or `TooManyWebSockets` where no user code ran, `DeadlineExceeded`
        where the answer had begun (else that is the answer), and whatever the app raises.
        """
        kind = scope["type"]
        refusal = self._refusal(kind) if caller is None else await self._come_in(kind, caller)
        if refusal == "websockets":
            raise TooManyWebSockets(
                f"{len(self._websockets)} WebSockets are open at {self.name}, "
                f"its max_open_websockets is {self.max_open_websockets}"
            )
        if refusal is not None:
            raise ReplicaBusy(len(self._ongoing))
        with Exchange(self, scope, receive, send) as exchange:
            if timeout is not None:
                exchange.bound(timeout, to_the_moment=True)
            await self.app(scope, exchange.receive, exchange.send)
        if exchange.cut is not None:
            raise exchange.cut

    # Both

    def _refusal(self, kind: str) -> Refusal | None:
        if self.draining:
            return "draining"
        if kind == "http" and not self.line.admits_stranger:
            return "busy"
        if kind == "websocket" and len(self._websockets) >= self.max_open_websockets:
            return "websockets"
        return None

    async def _come_in(self, kind: str, caller: str) -> Refusal | None:
        """The same for a request that claims an offer. It waits for its slot, and is to take it at once."""
        if not self.line.claim(caller):
            return self._refusal(kind)
        if kind == "websocket":
            self.line.advance()  # it needs no slot
            return self._refusal(kind)
        came_in = await self.line.come_in(caller)
        if self.draining:  # meanwhile, and the drain has not counted this request
            return "draining"
        return None if came_in else "busy"

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeping = True
        self._loop = weakref.ref(loop)
        notice_generators()
        loop.call_later(SWEEP_S, self._sweep, context=self._context)

    def _sweep(self) -> None:
        """Look at who is inside, as long as anybody is: no request pays for a watch that it does not need."""
        self._sweeping = False
        now = time.monotonic()
        for exchange in (*self._ongoing, *self._streams, *self._websockets):
            exchange.look(now)
        if self._running or self._websockets:
            self._sweep_later()

    async def drain(self, timeout: float | None = None) -> bool:
        """Admit nobody any more, and wait until no HTTP request runs, nor a background task of one.

        Gives whether that came about within `timeout` seconds (None: wait for ever). Open WebSockets stay.
        """
        self.draining = True
        self.line.close()
        if not self._running:
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return not self._running
        return True

    def statistics(self) -> Statistics:
        """Safe from any thread."""
        return Statistics(
            len(self._ongoing),
            len(self._running),
            len(self._websockets),
            self.draining,
            len(self.line),
            buffered(),
            len(self._streams),
            self._reached(),
        )

    def _reached(self) -> tuple[str, ...]:
        limits = (
            ("max_ongoing_requests", len(self._ongoing), self.line.slots),
            ("max_open_streams", len(self._streams), self.max_open_streams),
            ("max_open_websockets", len(self._websockets), self.max_open_websockets),
        )
        return tuple(f"{count:,} of {most:,} {limit}" for limit, count, most in limits if count >= most > 0)

    def running_ids(self) -> tuple[str, ...] | None:
        """The ids of the requests that run; None: more than `MOST_IDS`. From any thread."""
        running = tuple(self._running)
        return tuple({each.request_id or "" for each in running}) if len(running) <= MOST_IDS else None

    def __repr__(self) -> str:
        inside = f"{len(self._ongoing)} ongoing, {len(self._streams)} streams, {len(self._websockets)} websockets"
        return f"<Replica {self.name} [{inside}]>"


class Exchange:
    """One request from its admission until its coroutine ends."""

    # What few requests ever need is not set for each.
    started = False
    complete = False
    deadline: float | None = None
    """When it is stopped, as `time.monotonic()` counts; looked at on every sweep."""
    cut: DeadlineExceeded | None = None
    """Why the answer, which had begun, cannot be completed."""
    _head: Message | None = None
    """Of an answer of known length, or of a denial, of whose body nothing has come."""
    _length: int | None = None
    _old = False
    _stopped = False
    _chunks = 0
    _outer_deadline: float | None = None
    _bounded = False
    _client: Client | None = None
    _completion: asyncio.Event | None = None
    _timer: asyncio.TimerHandle | None = None
    _watch: asyncio.Task[None] | None = None
    _ending: asyncio.Task[None] | None = None

    def __init__(
        self,
        replica: Replica,
        scope: Scope,
        receive: Receive,
        send: Send,
        put: Put | None = None,
        *,
        held: bool = False,
        from_caller: bool = False,
    ) -> None:
        """`put` as for `Replica`. `held`: its caller waits for a `100 Continue` that its client has not asked for.

        `from_caller`: a proxy or another replica sent the request over a connection of its own.
        """
        self._replica = replica
        self._scope = scope
        self._receive = receive
        self._send = send
        self._put = put
        self._held = held
        self._from_caller = from_caller
        ours = _ours(scope)
        self.request_id: str | None = ours.get("request_id")
        self._trace: str | None = ours.get("trace")
        self._live = replica._running if scope["type"] == "http" else replica._websockets

    def __enter__(self) -> "Exchange":
        self._outer_id, self._outer_readings = REQUEST_ID.get(), READINGS.get()
        REQUEST_ID.set(self.request_id)
        self._readings: set[Reading] = set()
        READINGS.set(self._readings)
        if self._trace is not None:
            self._outer_trace = TRACE.get()
            TRACE.set(self._trace)
        replica = self._replica
        if not replica._sweeping:
            replica._sweep_later()
        self._task = asyncio.current_task(replica._loop() if replica._loop is not None else None)
        self._live.add(self)
        if self._live is replica._running:
            replica._ongoing.add(self)
        return self

    def bound(self, timeout: float, *, to_the_moment: bool = False) -> None:
        """Stop it in so many seconds: at the sweep after them, or to the moment."""
        due = time.monotonic() + timeout
        self._bounded = True
        self._outer_deadline = DEADLINE.get()
        DEADLINE.set(due)
        if to_the_moment:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, timeout), self._expired)
        else:
            self.deadline = due

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # Not `reset(token)`: a coroutine that is thrown away ends in whatever context that happens in.
        REQUEST_ID.set(self._outer_id)
        READINGS.set(self._outer_readings)
        if self._readings and self._broke_off(error):
            for reading in tuple(self._readings):
                reading.leave()
        if self._trace is not None:
            TRACE.set(self._outer_trace)
        if self._bounded:
            DEADLINE.set(self._outer_deadline)
        replica = self._replica
        self._leave_slot()
        self._live.discard(self)
        if replica.draining and not replica._running:
            replica._idle.set()
        for rare in (self._timer, self._watch, self._ending):
            if rare is not None:
                rare.cancel()
        if not self._stopped:
            return False
        # Our own cancellation ends here; somebody else's, such as the server's when it ends, does not.
        assert self._task is not None
        return self._task.uncancel() == 0 and isinstance(error, asyncio.CancelledError)

    def _broke_off(self, error: BaseException | None) -> bool:
        """Whether it was not served to its end; a coroutine that is thrown away is in no event loop."""
        if error is None:
            return self._client is not None and self._client.gone and not self.complete
        return not isinstance(error, GeneratorExit)

    async def receive(self) -> Message:
        """What the app hears of its client."""
        message = await self._reader().receive()
        if message["type"] == "http.disconnect" and self._is_not_told():
            self._completion = self._completion or asyncio.Event()
            await self._completion.wait()
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind in ANSWERS:
            message = self._checked(message)
            if self._head is not None:
                return
            self.started = True
        elif self._head is not None:
            if kind in BODIES and not self._fits(message):
                await asyncio.sleep(0)  # a stream of nothing must not keep the loop
                return
            head, self._head = self._head, None
            self.started = True
            try:
                if self._put is None or not self._put(head):
                    await self._send(head)
            except BaseException:  # who waited for room is cancelled, and may try again
                self._head, self.started = head, False
                raise
        elif kind == "websocket.close":  # uvicorn's own 403, where it comes first
            if self.started:
                message = self._closable(message)
            self.started = self.complete = True
        if self._put is None or not self._put(message):
            await self._send(message)
        if kind == "http.response.body":
            if not message.get("more_body", False):
                self.complete = True
                self._leave_slot()
                if self._bounded:
                    DEADLINE.set(None)  # what runs on is background work
                if self._completion is not None:
                    self._completion.set()
                return
            self._chunks += 1
            if self._chunks % CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _closable(self, close: Message) -> Message:
        """The same, or 1011 instead of a code or a reason that no frame can carry."""
        code, reason = close.get("code") or 1000, close.get("reason") or ""
        why = why_not_closed_with(code, reason)
        if why is None:
            return close
        logger.error(
            "the app closed the WebSocket of request %s, and %s; its client is told 1011", self.request_id, why
        )
        return {"type": "websocket.close", "code": INTERNAL_ERROR}

    def _checked(self, head: Message) -> Message:
        """The same, to be sent, or kept: nothing of an answer of known length leaves before its body does, so that an
        app which fails until then has answered nothing."""
        if self._head is not None:
            raise RuntimeError("the app sends a second head")
        if self.started:
            return head  # which no server takes
        kind = head["type"]
        status = None if kind == "websocket.accept" else head["status"]
        fields, length = checked(status, head.get("headers", ()))
        if status == 503:
            fields = _without_internal(fields)
        if self._from_caller:
            _leave_to_caller(fields)
        head = {**head, "headers": fields}  # the app's own it may use again
        if kind == "websocket.http.response.start":
            self._head, self._length = head, length
        elif status in BODYLESS:
            self._send, self._put = partial(_send_bodyless, self._send), None
        elif length and kind == "http.response.start" and self._scope["method"] != "HEAD":
            self._head, self._length = head, length
        elif length is None and kind == "http.response.start" and is_stream(self._scope, fields):
            fields.append((hop.STREAM, self._open_stream()))
        return head

    def _fits(self, message: Message) -> bool:
        """Whether the body begins with it. Raises `RuntimeError` where the head has announced another one."""
        size = len(message.get("body", b""))
        more = message.get("more_body", False)
        length = self._length
        if length is not None and (size > length or (length and not size and not more)):
            raise RuntimeError(f"the app sends {size} bytes of a body, and has announced {length}")
        return size > 0 or not more

    def take_back(self) -> None:
        """Another answer comes instead of that whose head has not left."""
        self._head = None

    def _open_stream(self) -> bytes:
        """Leave the ongoing requests, if there is room for one more open stream; gives whether the caller does so."""
        replica = self._replica
        if self not in replica._ongoing or len(replica._streams) >= replica.max_open_streams:
            return hop.KEPT
        self._leave_slot()
        replica._streams.add(self)
        return hop.OPEN

    def _leave_slot(self) -> None:
        """Its response is complete, needs no slot any more, or will never come."""
        replica = self._replica
        if self in replica._ongoing:
            replica._ongoing.remove(self)
            replica.line.freed()
        else:
            replica._streams.discard(self)

    # A client that has gone

    def look(self, now: float) -> None:
        """Called now and then while it is inside: the second time it is worth a task that waits for a hang-up."""
        if self.deadline is not None and self.deadline <= now:
            self.deadline = None
            self._expired()
        if not self._old:
            self._old = True
        elif self._stops() and self._reader().watchable and not self._owes_continue():
            self._watch = self._reader().watch(self._hung_up)

    def _reader(self) -> Client:
        if self._client is None:
            self._client = Client(self._receive)
        return self._client

    def _stops(self) -> bool:
        scope = self._scope
        wish = wish_of(scope, self._replica.on_disconnect)
        return stops(wish, scope["type"], scope.get("method", ""), self.started)

    def _owes_continue(self) -> bool:
        """Whether the server would tell the client to send its body if anybody asked for a message."""
        if self.started or self._reader().asked:
            return False
        return self._held or any(name == b"expect" for name, _ in self._scope["headers"])

    def _is_not_told(self) -> bool:
        # What the client has not sent of its body never comes: whoever waits for that must hear why.
        if self.complete or wish_of(self._scope, self._replica.on_disconnect) != "continue":
            return False
        return self._reader().whole or not any(
            name in (b"content-length", b"transfer-encoding") for name, _ in self._scope["headers"]
        )

    def _hung_up(self) -> None:
        client = self._reader()
        if self._ending is None and not (self.complete or client.read or client.unread) and self._stops():
            self._end(self._stop())

    # A deadline that has passed

    def _expired(self) -> None:
        if not self.complete and self._live is self._replica._running:
            self._end(self._expire())

    async def _expire(self) -> None:
        if self.complete:  # since the deadline passed, a moment ago
            return
        if self.started and self._timer is not None:
            # What begins to the moment may be word of this deadline, from a call: the next sweep looks again.
            self._timer = self._ending = None
            self.deadline = time.monotonic()
            return
        error = DeadlineExceeded("the deadline of this request passed while its handler ran")
        send, self._send, self._put = self._send, _nowhere, None
        if self.started:
            self.cut = error
        else:
            self.started = True
            body = json.dumps(error.document(self.request_id or "")).encode()
            await _answer("http", error.status, JSON, body, send)
        await self._stop()

    # Both

    def _end(self, how: Coroutine[Any, Any, None]) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().create_task(how)

    async def _stop(self) -> None:
        """Cancel the handler, unless it has answered, or somebody else cancels it already.

        A thread cannot be cancelled: as long as a `def` endpoint runs in one, the handler stays and holds its slot.
        """
        limiter = anyio.to_thread.current_default_thread_limiter()
        while self._task in limiter.statistics().borrowers:  # noqa: ASYNC110 - a thread that ends tells nobody
            await asyncio.sleep(THREAD_S)
        if self._task is not None and not (self.complete or self._stopped or self._task.cancelling()):
            self._stopped = True
            self._task.cancel()


def _leave_to_caller(fields: list[Header]) -> None:
    """An app's `Connection: close` is about the connection of its client, which the caller closes."""
    for index, (name, value) in enumerate(fields):
        if name == b"connection" and value.lower() == b"close":
            fields[index] = (hop.CLOSES, b"1")


def _without_internal(fields: Iterable[Header]) -> list[Header]:
    """Only the gate refuses: what user code sends as a 503 is an answer, which nobody may ask for again."""
    return [field for field in fields if not hop.is_internal(field[0])]


async def _send_bodyless(send: Send, message: Message) -> None:
    """Send no body, nor what announces one: the next answer on the connection begins right behind the head.

    The length that a 304 may have goes, too: uvicorn would want that many bytes.
    """
    if message["type"] == "http.response.start":
        headers = [field for field in message["headers"] if field[0] not in FRAMING]
        message = {**message, "headers": headers}
    elif message["type"] == "http.response.body":
        message = {**message, "body": b""}
    await send(message)


def _has_gone(receive: Receive) -> bool:
    """Whether the caller has disconnected, as the server knows it without being asked.

    Both servers of a replica keep that in the object whose method `receive` is.
    """
    return getattr(getattr(receive, "__self__", None), "disconnected", False) is True


async def _nowhere(message: Message) -> None:
    """Where an app sends whose request is over."""


def _said(headers: list[Header]) -> dict[bytes, bytes]:
    """What the caller's own fields say, after the hop's."""
    return dict(takewhile(lambda field: field[0].startswith(hop.INTERNAL_PREFIX), islice(headers, 1, None)))


def _ours(scope: Scope) -> Mapping[str, Any]:
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    ours: Mapping[str, Any] = extensions.get("app_toolkit", {})
    return ours


async def _refuse(kind: str, refusal: Refusal, send: Send) -> None:
    await _answer(kind, 503, [(hop.REFUSED, refusal.encode())], b"", send)


async def _answer(kind: str, status: int, headers: list[Header], body: bytes, send: Send) -> None:
    # A WebSocket that is not accepted is answered through its denial extension, which has the same two
    # messages.
    prefix = "http.response" if kind == "http" else "websocket.http.response"
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": f"{prefix}.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})
