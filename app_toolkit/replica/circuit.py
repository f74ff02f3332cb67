"""A caller's circuit at the replica: small requests, one after another, read without a parser.

Over a connection of its own anybody may speak, and what is said there is uvicorn's to judge. A circuit is part of a
trunk, which only a caller of ours could open: what it says was written by this same code, each field as `name: value`
with its name in small letters. To read that it is enough to cut it at the ends of its lines.

To the app both are the same: what it is told, what it may send, and what becomes of its mistakes.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextvars import copy_context
from typing import Any, cast
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from app_toolkit.replica.head import LONGEST_LENGTH
from app_toolkit.replica.replica import BODYLESS, SERVER_ERROR, TEXT, Replica, Reported
from app_toolkit.transport.trunk import Circuit
from app_toolkit.types import Header, Message

logger = logging.getLogger("app_toolkit.replica")

MOST_HEAD = 256 * 1024
"""Bytes of a head; a proxy takes a quarter of that from a client, and adds little."""

UNKNOWN = -1
"""The length of a body that a circuit does not carry."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class CallerCircuit:
    """What one caller says on one circuit: a request, and when that is answered the next.

    One that says what no caller of ours does is given up, with what runs for it.
    """

    def __init__(
        self,
        gate: Replica,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        self._gate = gate
        self._app_state = app_state
        self._asgi = {"version": config.asgi_version, "spec_version": "2.3"}
        # Which uvicorn looks at when it shuts down.
        self._connections = cast(set[Any], server_state.connections)
        self._tasks = server_state.tasks
        self._loop = asyncio.get_running_loop()
        #: Whose answer its caller waits for.
        self._cycle: Cycle | None = None
        #: Those before it whose callers have all of their answers, and whose apps have not ended.
        self._behind: set[Cycle] = set()
        #: Of a request that has not begun.
        self._head = b""
        #: Bytes of the body that are still to come.
        self._missing = 0
        self.transport: Circuit
        self.flow: FlowControl

    # What the trunk says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        circuit = self.transport = cast(Circuit, transport)
        self.flow = FlowControl(circuit)
        self._server = get_local_addr(circuit)
        self._client = get_remote_addr(circuit)
        self._scheme = "https" if is_ssl(circuit) else "http"
        # No request's own: one often begins where the one before it ends.
        self._context = copy_context()
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._cycle is not None:
            self._behind.add(self._cycle)
        for cycle in self._behind:
            cycle.disconnected = not cycle.complete
            cycle.tell()
        self._cycle = None
        self.flow.resume_writing()

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._missing:
            data = self._take_body(data)
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self._go_on(data)

    # What uvicorn's server says

    def shutdown(self) -> None:
        """Nothing new; what runs may end."""
        if self._cycle is None:
            self.transport.close()
        else:
            self._cycle.keep_alive = False

    # Requests

    def _go_on(self, data: bytes) -> None:
        """Begin the next request, if it is its turn."""
        head, end, rest = data.partition(b"\r\n\r\n")
        if end and (self._cycle is None or self._cycle.whole):
            self._begin(head, rest)
        else:
            self._head = data
            if len(data) > MOST_HEAD:
                self._give_up(f"more than {MOST_HEAD} bytes of a head, or before its request is answered")

    def _begin(self, head: bytes, rest: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        headers: list[Header] = []
        missing, expects = 0, False
        for line in lines:
            name, _, value = line.partition(b": ")
            headers.append((name, value))
            if name == b"content-length":
                missing = int(value) if value.isdigit() and len(value) <= LONGEST_LENGTH and missing == 0 else UNKNOWN
            elif name == b"expect":
                expects = value.lower() == b"100-continue"
            elif name == b"transfer-encoding":
                missing = UNKNOWN
        method, _, target = first.partition(b" ")
        target, _, version = target.partition(b" ")
        if version != b"HTTP/1.1" or missing < 0 or not (method.isalpha() and target and target.isascii()):
            self._give_up("a head that cannot be read")
            return
        self._missing = missing
        raw_path, _, query = target.partition(b"?")
        path = raw_path.decode("ascii")
        scope = {
            "type": "http",
            "asgi": self._asgi.copy(),
            "http_version": "1.1",
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "root_path": "",
            "headers": headers,
            "state": self._app_state.copy(),
            "method": method.decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
        }
        before = self._cycle
        cycle = self._cycle = Cycle(self, scope, expects)
        if before is not None:  # of an answer of known length a caller sees the end before its app says so
            self._behind.add(before)
            cycle.keep_alive, before.keep_alive = before.keep_alive, True  # the last one closes
        serving = self._gate(scope, cycle.receive, cycle.send, cycle.put)
        task = self._loop.create_task(serving, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(cycle.ended)
        if rest:
            self._head = self._take_body(rest)
        elif not missing:
            cycle.more_body = False
            cycle.tell()

    def _take_body(self, data: bytes) -> bytes:
        """Of the request that was begun; gives what is behind it."""
        cycle = self._cycle
        body, rest = data[: self._missing], data[self._missing :]
        self._missing -= len(body)
        if cycle is not None:  # else nobody wants it any more
            cycle.body += body
            cycle.more_body = self._missing > 0
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.tell()
        return rest

    def answered(self, cycle: "Cycle") -> None:
        """Its app has sent all of it."""
        if cycle is not self._cycle:
            return
        self._cycle = None
        # What came meanwhile is served before the turn ends: a whole answer does not wait for that.
        self.transport.flush()
        self.flow.resume_reading()
        if self._head and not self.transport.is_closing():
            data, self._head = self._head, b""
            self._go_on(data)

    def ended(self, cycle: "Cycle", task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if self._behind:
            self._behind.discard(cycle)
        if cycle is self._cycle:
            self._cycle = None

    def _give_up(self, said: str) -> None:
        logger.warning("a circuit is given up, because its caller says %s", said)
        self.transport.abort()


class Cycle:
    """One request and its answer; to the app, and in what it makes of an app's mistakes, as uvicorn's own is.

    What it is to send has passed the gate: names are in small letters, and there is nothing in a field that ends it.
    """

    # What few requests ever change is not set for each.
    disconnected = started = whole = complete = False
    keep_alive = more_body = True
    body = b""
    _chunked: bool | None = None
    _left = 0
    """Bytes that the app has announced, and not sent."""
    _news = False
    _waiting: asyncio.Event | None = None

    def __init__(self, circuit: "CallerCircuit", scope: dict[str, Any], expects: bool) -> None:
        """`expects`: the caller waits for a `100 Continue`."""
        self._circuit = circuit
        self._transport = circuit.transport
        self._flow = circuit.flow
        self._scope = scope
        self._expects = expects

    def tell(self) -> None:
        """There is something to receive."""
        self._news = True
        if self._waiting is not None:
            self._waiting.set()

    async def receive(self) -> Message:
        if self._expects and not self._transport.is_closing():
            self._transport.write(CONTINUE)
            self._expects = False
        if not (self.disconnected or self.complete):
            self._flow.resume_reading()
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
            await self._flow.drain()

    def put(self, message: Message) -> bool:
        """Send it, unless that has to wait. Gives whether it is sent, or nobody wants it any more."""
        if self.disconnected:
            return True
        if self._flow.write_paused:
            return False
        kind = message["type"]
        if not self.started:
            if kind != "http.response.start":
                raise RuntimeError(f"the app sent {kind!r}, and not 'http.response.start', first")
            self.started = True
            self._expects = False
            self._put_head(message["status"], message.get("headers", ()))
        elif self.complete or kind != "http.response.body":
            raise RuntimeError(f"the app sent {kind!r} after {'its answer' if self.complete else 'a head'}")
        else:
            self._put_body(message.get("body", b""), message.get("more_body", False))
        return True

    def _put_head(self, status: int, headers: Iterable[Header]) -> None:
        pieces = [STATUS_LINE[status]]
        closes = False
        for name, value in headers:
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
            pieces += (name, b": ", value, b"\r\n")
        if not (self.keep_alive or closes):
            pieces.append(b"connection: close\r\n")
        bodyless = self._scope["method"] == "HEAD" or status in BODYLESS
        if self._chunked is None and not bodyless:
            self._chunked = True
            pieces.append(b"transfer-encoding: chunked\r\n")
        pieces.append(b"\r\n")
        self._transport.write(b"".join(pieces))
        self.whole = bodyless or not (self._chunked or self._left)

    def _put_body(self, body: Any, more: bool) -> None:
        if self._scope["method"] == "HEAD":
            self._left = 0
        elif self._chunked:
            framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self._transport.write(framed if more else framed + b"0\r\n\r\n")
        else:
            if len(body) > self._left:
                raise RuntimeError("the body is longer than its content-length")
            self._left -= len(body)
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
        self._circuit.answered(self)

    def ended(self, task: "asyncio.Task[None]") -> None:
        """The app has returned, or raised: nobody is left without an answer, and none is taken for a whole one."""
        self._circuit.ended(self, task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Reported):
            logger.error("a request failed beyond its gate", exc_info=error)
        if self.complete or self.disconnected or (self.whole and self.keep_alive):
            return
        if error is None:
            logger.error("the app returned before it had answered")
        if not self.started:
            self.keep_alive = False
            headers = [*TEXT, (b"content-length", b"%d" % len(SERVER_ERROR))]
            if self.put({"type": "http.response.start", "status": 500, "headers": headers}):
                self.put({"type": "http.response.body", "body": SERVER_ERROR})
        if not self.complete:
            self._transport.close()
