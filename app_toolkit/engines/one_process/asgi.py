"""Both ends of an exchange in one process: the request of an ASGI server, and the replica that the server's task runs.

Messages stay ASGI messages between the two. The exchange is told what they mean.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, cast

from starlette.requests import ClientDisconnect

from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.targets import SHARD_KEY, shard_key
from app_toolkit.engines.one_process.local_call import CALLER
from app_toolkit.errors import ReplicaGone, RequestError
from app_toolkit.exchange.allowed_time import TIMEOUT_FIELD
from app_toolkit.exchange.builtin import BuiltinResponse
from app_toolkit.exchange.dispatcher import RESPONDING, SENT
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.preference import Preference
from app_toolkit.exchange.request import REQUEST_ID_GRAMMAR, ClientRequest, HTTPRequest
from app_toolkit.exchange.upstream import Terms
from app_toolkit.observability import tracing
from app_toolkit.observability.context import REPLICA, ReplicaContext
from app_toolkit.observability.trace_context import TRACEPARENT, TRACESTATE, Trace, trace_of
from app_toolkit.replica.admission.client import HANG_UPS, ClientMessages
from app_toolkit.replica.admission.replica import Replica
from app_toolkit.replica.http.head import BODYLESS
from app_toolkit.types import Address, Header, Message, Receive, Scope, Send
from app_toolkit.wire import hop
from app_toolkit.wire.hop import INTERNAL_PREFIX
from app_toolkit.wire.pool import Extent, ResponseHead

logger = logging.getLogger("app_toolkit.replica")

FORBIDDEN = 403

AGAIN_S = 0.05
"""Seconds after which a request that waits for something else than its place in a queue looks at its queue again."""

HEADS = frozenset({"http.response.start", "websocket.http.response.start"})

UNSUPPORTED = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})
"""The extensions of servers with which a response does not end with its body."""


class ASGIRequest(HTTPRequest):
    """One request of an ASGI server: both the request of an exchange, and its downstream.

    The task of the server runs `serve`, and in it the app. The exchange decides what is sent, and `flush` sends it. The
    body is read by the app alone.
    """

    __slots__ = (
        "_changed",
        "_complete",
        "_kind",
        "_next",
        "_runs",
        "_trace_fields",
        "body",
        "client",
        "deliver",
        "error_of_cut",
        "flushing",
        "has_id",
        "head",
        "id",
        "length",
        "method",
        "path",
        "peers",
        "pending",
        "receive",
        "refusal",
        "scope",
        "served",
        "shard_key",
        "size",
        "timeout",
        "trace",
        "version",
        "waiting",
        "websocket",
    )

    # A request of an ASGI server is never invalid, and its body is the business of the app.
    error: RequestError | None = None
    forwarded: list[Header] = []  # noqa: RUF012 - never changed
    complete = True
    expects = False
    body_on_demand = False
    missing: int | None = 0
    body_retained = True
    continued = False
    writable = True

    def __init__(self, scope: Scope, receive: Receive, send: Send, served: dict[ReplicaSetKey, Preference]) -> None:
        self.scope = scope
        self.receive = receive
        #: Sends a message to the server.
        self.deliver = send
        self.served = served
        self.websocket = scope["type"] == "websocket"
        self.method: bytes = scope.get("method", "GET").encode()
        self.version: str = scope.get("http_version", "1.1")
        self.path: str = scope["path"]
        self.client = scope.get("client")
        self.peers = b"- 0" if self.client is None else f"{self.client[0]} {self.client[1]}".encode()
        self.id: bytes | None = None
        self.timeout: bytes | None = None
        self.shard_key: str | None = None
        self.trace: Trace | None = None
        self.length: int | None = None
        #: What replicas are told of the trace. None: nothing.
        self._trace_fields: Any = None
        self._read_fields(scope["headers"])
        self.body = LazyBody()
        # The response
        self.head: ResponseHead | None = None
        #: Whether the app has set the ID of the request itself.
        self.has_id = False
        #: The message with which the app has refused a WebSocket. None: it has not.
        self.refusal: Message | None = None
        self.size = 0
        #: The messages of the response that were not sent yet.
        self.pending: list[Message] = []
        self._complete = False
        #: Why the response was cut off. None: it was not.
        self.error_of_cut: Exception | None = None
        # The task of the server
        #: The attempt that is to run. None: there is none yet.
        self._next: ASGIUpstream | None = None
        self._runs = False
        self._changed: asyncio.Event | None = None
        self.flushing: asyncio.Task[None] | None = None

    def _read_fields(self, fields: list[Header]) -> None:
        """Read the fields that concern the toolkit, and drop internal ones."""
        traced: list[Header] = []
        internal = False
        for name, value in fields:
            first = name[:1]
            if first == b"x":
                if name.replace(b"_", b"-").startswith(INTERNAL_PREFIX):
                    internal = True
                elif name == b"x-request-id":
                    if self.id is None and REQUEST_ID_GRAMMAR.fullmatch(value) is not None:
                        self.id = value
                elif name == TIMEOUT_FIELD:
                    self.timeout = value if self.timeout is None else self.timeout + b", " + value
                elif name == SHARD_KEY and self.shard_key is None:
                    self.shard_key = shard_key(value)
            elif first == b"t":
                if name in (TRACEPARENT, TRACESTATE):
                    traced.append((name, value))
            elif name == b"content-length":
                self.length = int(value)
        if internal:
            self.scope["headers"] = [field for field in fields if not hop.is_internal(field[0])]
        trace: Any = trace_of(traced) if traced else None
        if tracing.current is not None:
            self.trace = tracing.current.begin(trace)
            trace = self.trace.forwarded
        self._trace_fields = trace

    # The request

    @property
    def raw_path(self) -> bytes:
        return self.path.encode("latin-1", "replace")

    @property
    def query(self) -> bytes:
        query: bytes = self.scope.get("query_string", b"")
        return query

    @property
    def fields(self) -> list[Header]:
        fields: list[Header] = self.scope["headers"]
        return fields

    def values(self, name: bytes) -> list[bytes]:
        return [value for field, value in self.fields if field == name]

    def copied(self) -> ClientRequest | None:
        return None  # the app alone has read the body

    def extend_scope(self, stream_log: str) -> None:
        """Add what the replica is told of the request."""
        ours: dict[str, Any] = {"request_id": self.request_id}
        if stream_log != "memory":
            ours["stream_log"] = stream_log
        if self._trace_fields is not None:
            ours["trace"] = self._trace_fields
        if self.shard_key is not None:
            ours["shard_key"] = self.shard_key
        scope = self.scope
        theirs = scope.get("extensions")
        extensions = (
            {name: extension for name, extension in theirs.items() if name not in UNSUPPORTED} if theirs else {}
        )
        scope["extensions"] = {**extensions, "app_toolkit": ours}

    # The downstream

    @property
    def host(self) -> str:
        return "" if self.client is None else self.client[0]

    def regulate(self) -> None: ...

    def inform(self, head: ResponseHead) -> None: ...

    def prepare(self, head: ResponseHead) -> bool:
        self.head = head
        return head.extent == "chunked"

    def take_back(self) -> None:
        self.head = None

    def start(self, data: bytes | None = None) -> None:
        head = self.head
        assert head is not None
        if self.refusal is not None:
            self._complete = True
            self.pending.append(self.refusal)
        else:
            if not self.has_id:
                head.fields.append((b"x-request-id", self.id or b"-"))
            self._append("start", status=head.status, headers=head.fields)
        if data is not None:
            self.write(data)

    def write(self, data: bytes) -> None:
        if self.method != b"HEAD":
            self.size += len(data)
        self._append("body", body=data, more_body=True)

    def finished(self) -> None:
        if self._complete:
            return
        self._complete = True
        if self.pending and "more_body" in self.pending[-1]:
            self.pending[-1]["more_body"] = False
        else:
            self._append("body", body=b"", more_body=False)

    def open_tunnel(self, head: ResponseHead) -> None:
        self.head = head
        fields = head.fields if self.has_id else [*head.fields, (b"x-request-id", self.id or b"-")]
        protocol = next((value.decode() for name, value in fields if name == b"sec-websocket-protocol"), None)
        fields = [field for field in fields if field[0] != b"sec-websocket-protocol"]
        self.pending.append({"type": "websocket.accept", "subprotocol": protocol, "headers": fields})

    def close_tunnel(self, why: str) -> None:
        """Do nothing: the message of the app, or the server, closes the WebSocket."""

    def give(self, response: BuiltinResponse) -> None:
        self._complete = True
        body = b"" if self.method == b"HEAD" else response.body
        self.size = len(body)
        framing = (b"content-length", b"%d" % len(response.body)), (b"x-request-id", self.id or b"-")
        self._append("start", status=response.status, headers=[*response.fields, *framing])
        self._append("body", body=body, more_body=False)
        self._wake()

    def cut(self, error: Exception) -> None:
        self.error_of_cut = error
        self._wake()

    def _append(self, part: str, **message: Any) -> None:
        prefix = "websocket.http.response." if self.websocket else "http.response."
        message["type"] = prefix + part
        self.pending.append(message)

    # The task of the server

    async def serve(self, exchange: Exchange) -> None:
        """Serve the request to its end, and to that of the app. Raise what the app raises, or why a response is cut."""
        exchange.begin()
        try:
            while True:
                upstream, self._next = self._next, None
                if upstream is not None:
                    self._runs = True
                    try:
                        await upstream.run()
                    except Exception as error:
                        await self.flush()
                        if self.error_of_cut is not None:
                            raise self.error_of_cut from error
                        raise
                    finally:
                        self._runs = False
                if self.pending or self.flushing is not None:
                    await self.flush()
                if exchange.done:
                    break
                if self._next is None:
                    await self._wait(exchange)
        finally:
            if not exchange.done:  # the server has cancelled its task
                exchange.client_gone()
            flushing, self.flushing = self.flushing, None
            if flushing is not None:
                flushing.cancel()
        if self.error_of_cut is not None:
            raise self.error_of_cut

    def run_next(self, upstream: "ASGIUpstream") -> None:
        """Let the task of the server run this attempt."""
        self._next = upstream
        if self._changed is not None:
            self._changed.set()

    async def flush(self) -> None:
        """Send the pending messages, in order."""
        if self.flushing is not None:
            await asyncio.wait((self.flushing,))
            self.flushing = None
        await self._flush()

    async def _flush(self) -> None:
        while self.pending:
            await self.deliver(self.pending.pop(0))

    def _wake(self) -> None:
        """Send what is pending while the app runs, or let the task of the server do so."""
        if self._runs:
            self.flushing = asyncio.get_running_loop().create_task(self._flush())
        elif self._changed is not None:
            self._changed.set()

    async def _wait(self, exchange: Exchange) -> None:
        """Wait for an attempt, or for the end of the exchange. Meanwhile, read ahead to detect a disconnect."""
        client = ClientMessages(self.receive)
        self.receive = client.receive
        changed = self._changed = asyncio.Event()
        watch = client.watch(exchange.client_gone)
        watch.add_done_callback(lambda _: changed.set() if exchange.done else None)
        attempts, clock = exchange.dispatcher.attempts, exchange.plane.clock
        router = exchange.plane.router(exchange.ingress)
        assert router is not None, "no ingress of this process is removed"
        try:
            while not (self._next is not None or exchange.done):
                left = attempts.since + router.policy.max_queue_wait_s - clock()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(left, 0.0)):
                        await changed.wait()
                        continue
                router.expire(clock())
                with suppress(TimeoutError):  # the request may wait for something else than its place in the queue
                    async with asyncio.timeout(AGAIN_S):
                        await changed.wait()
        finally:
            self._changed = None
            watch.cancel()
            await asyncio.wait((watch,))  # before the app receives messages of the client


class LazyBody:
    """The body of a request that the app reads: it is counted, and not kept."""

    __slots__ = ("received", "waiting")

    def __init__(self) -> None:
        self.received = self.waiting = 0

    def take(self) -> tuple[bytes, ...]:
        return ()

    def rewind(self) -> None: ...

    def forget(self) -> None: ...


class ServedHere(Protocol):
    """An ingress in this process."""

    replica: Replica
    context: ReplicaContext
    stream_log: str


class ASGIUpstream:
    """One attempt at the replica in this process."""

    __slots__ = ("_aborted", "_exchange", "_ingress", "_interrupted", "_over", "_reader", "_request", "_terms")

    def __init__(self, ingress: ServedHere) -> None:
        self._ingress = ingress
        self._exchange: Exchange
        self._request: ASGIRequest
        self._terms: Terms
        #: Whether the attempt has ended: the response is complete, or the exchange has aborted it.
        self._over = False
        self._aborted = False
        #: Whether `abort` has cancelled the wait for a message of the client.
        self._interrupted = False
        #: The task that waits for a message of the client. None: there is none.
        self._reader: asyncio.Task[Any] | None = None

    def begin(self, exchange: Exchange, terms: Terms) -> None:
        """Let the task of the server run the app."""
        self._exchange = exchange
        self._request = cast(ASGIRequest, exchange.request)
        self._terms = terms
        self._request.run_next(self)

    # For the exchange

    def write_all(self, pieces: Any) -> None: ...

    def pass_on(self, data: bytes) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        """Let the app see a disconnect, and drop what it sends from now on."""
        self._over = self._aborted = True
        if self._reader is not None:
            self._interrupted = True
            self._reader.cancel()

    close = abort

    # The app

    async def run(self) -> None:
        """Run the app to its end. Raise what it raises."""
        exchange, request, terms = self._exchange, self._request, self._terms
        if self._over:  # the exchange has ended before the task came to it
            return
        timeout_s = None if terms.timeout_ms is None else terms.timeout_ms / 1_000
        caller = CALLER if terms.redeems else None
        ingress, outer = self._ingress, REPLICA.get()
        request.extend_scope(ingress.stream_log)
        REPLICA.set(ingress.context)
        try:
            refusal = await ingress.replica.serve(request.scope, self.receive, self.send, timeout_s, caller=caller)
        except Exception as error:
            is_told = self._over and isinstance(error, ClientDisconnect)
            was_cut = request.error_of_cut is not None
            self._end()
            if is_told:
                return
            if not was_cut:
                request.error_of_cut = None  # the server gets what the app raises
                # The ASGI server logs the traceback, and a test client raises it, but without the request ID.
                log_fields = {"request_id": request.request_id}  # the context of the request has ended
                text = "request %s failed in %s: %r"
                logger.error(text, request.request_id, exchange.ingress_name, request.path, extra=log_fields)
            raise
        finally:
            REPLICA.set(outer)
        if refusal is None:
            self._end()
        elif not self._over:
            self._over = True
            exchange.response_started(ResponseHead(503, b"", [], "none", refusal.encode(), True))
            exchange.ended(True)

    def _end(self) -> None:
        """Tell the exchange that the app has ended. If it has not responded, it has failed."""
        if self._over:
            return
        self._over = True
        exchange, request = self._exchange, self._request
        if exchange.dispatcher.stage is RESPONDING:
            exchange.lost(ReplicaGone("the app ended before its response did"))
            return
        request.take_back()
        exchange.response_started(ResponseHead(500, b"", [], "none", None, True))
        exchange.ended(True)
        request.pending.clear()  # the server responds

    async def receive(self) -> Message:
        if self._aborted:
            return self._disconnect()
        reader = self._reader = asyncio.current_task()
        try:
            message = await self._request.receive()
        except asyncio.CancelledError:
            # `abort` has cancelled only this wait. Any other cancellation is that of the task.
            if not self._interrupted or reader is None or reader.uncancel() > 0:
                raise
            return self._disconnect()
        finally:
            self._reader = None
        if not self._over:
            self._note(message)
        return self._disconnect() if self._aborted and message["type"] not in HANG_UPS else message

    def _note(self, message: Message) -> None:
        """Tell the exchange of a message of the client."""
        kind = message["type"]
        if kind == "http.request":
            body = message.get("body")
            if body:
                self._request.body.received += len(body)
                self._exchange.body_arrived()
        elif kind in HANG_UPS:
            self._over = True
            self._exchange.client_gone()

    def _disconnect(self) -> Message:
        return (
            {"type": "websocket.disconnect", "code": 1006} if self._request.websocket else {"type": "http.disconnect"}
        )

    async def send(self, message: Message) -> None:
        exchange, request, kind = self._exchange, self._request, message["type"]
        if self._over:
            if request.head is not None and request.head.status == 101:  # the server raises an error
                await request.deliver(message)
            return
        if (kind == "http.response.body" or kind == "websocket.http.response.body") and request.head is not None:
            body = message.get("body", b"")
            if body:
                exchange.received(body)
            if not (message.get("more_body", False) or self._over):
                self._over = True
                exchange.ended(True)
        elif kind in HEADS and exchange.dispatcher.stage is SENT:
            exchange.response_started(self._head(message))
        elif kind == "websocket.accept" and not exchange.tunnels:
            fields = list(message.get("headers", ()))
            request.has_id = any(name == b"x-request-id" for name, _ in fields)
            if protocol := message.get("subprotocol"):
                fields.append((b"sec-websocket-protocol", protocol.encode()))
            exchange.response_started(ResponseHead(101, b"", fields, "none", None, False))
        elif kind == "websocket.close" and not exchange.tunnels:
            self._over = True
            request.refusal = message
            exchange.response_started(ResponseHead(FORBIDDEN, b"", [], "none", None, True))
            exchange.ended(True)
        else:  # of an open WebSocket, of an extension, or out of order, for which the server raises an error
            await request.deliver(message)
            if kind == "websocket.close":
                self._over = True
                exchange.lost(ReplicaGone("the app has closed the WebSocket"))
        if request.flushing is not None:
            await request.flush()
        while request.pending:
            await request.deliver(request.pending.pop(0))

    def _head(self, message: Message) -> ResponseHead:
        fields: list[Header] = message["headers"]
        stream = fields.pop()[1] if fields and fields[-1][0] == hop.STREAM else None
        status, request = message["status"], self._request
        extent: Extent = "none" if request.method == b"HEAD" or status in BODYLESS else "chunked"
        for name, _ in fields:
            if name == b"content-length":
                if extent == "chunked":
                    extent = "sized"
            elif name == b"x-request-id":
                request.has_id = True
        return ResponseHead(status, b"", fields, extent, None, True, stream)


class ASGIUpstreams:
    """The replicas in this process. `ingress`: returns the one at an address."""

    def __init__(self, ingress: Callable[[Address], ServedHere]) -> None:
        self._ingress = ingress

    def take(self, address: Address) -> ASGIUpstream:
        return ASGIUpstream(self._ingress(address))

    def dial(
        self, address: Address, reached: Callable[[ASGIUpstream], None], failed: Callable[[ReplicaGone], None]
    ) -> None:
        reached(self.take(address))

    def send(self, upstream: ASGIUpstream, exchange: Exchange, terms: Terms) -> None:
        upstream.begin(exchange, terms)

    def give_back(self, upstream: ASGIUpstream) -> None: ...

    def distrust(self, address: Address) -> None: ...
