"""A caller's circuit at the replica: small requests, one after another, read without a parser.

Over a connection of its own anybody may speak, and what is said there is uvicorn's to judge. A circuit is part of a
trunk, which only a caller of ours could open: what it says was written by this same code, each field as `name: value`
with its name in small letters. To read that needs no more than to cut it at the ends of its lines, and the Python
that a general server runs for each request is a sixth of all that a small one costs here.

To the app both are the same: what it is given, what it may send, and what becomes of its errors.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HEADER_RE, STATUS_LINE, RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from app_toolkit.transport.trunk import Circuit
from app_toolkit.types import Header

logger = logging.getLogger("app_toolkit.replica")
servers_logger = logging.getLogger("uvicorn.error")
"""Where uvicorn says what an app did wrong, whichever of the two it is served by."""

MOST_HEAD = 256 * 1024
"""Bytes of a head; a proxy takes a quarter of that from a client, and adds little."""

NOT_IN_A_HEAD = bytes(byte for byte in range(32) if byte != ord("\t")) + b"\x7f"
"""What the value of a field must not have in it; RFC 9110, 5.5."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class CallerCircuit:
    """What one caller says on one circuit: a request, and when that is answered the next.

    One that says what no caller of ours does is given up, with what runs for it.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = config.loaded_app
        self._app_state = app_state
        self._asgi = {"version": config.asgi_version, "spec_version": "2.3"}
        self._state = server_state
        self._connections = cast(set[Any], server_state.connections)
        self._loop = _loop or asyncio.get_running_loop()
        self._cycle: Cycle | None = None
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
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._cycle is not None:
            self._cycle.disconnected = not self._cycle.response_complete
            self._cycle.tell()
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
        if self._cycle is None or self._cycle.response_complete:
            self.transport.close()
        else:
            self._cycle.keep_alive = False

    # Requests

    def _go_on(self, data: bytes) -> None:
        """Begin the next request, if it is its turn: of an answer without a body the caller sees the end first."""
        head, end, rest = data.partition(b"\r\n\r\n")
        if end and (self._cycle is None or self._cycle.response_complete):
            self._begin(head, rest)
        else:
            self._head = data
            if len(data) > MOST_HEAD:
                self._give_up(f"more than {MOST_HEAD} bytes of a head, or before its request is answered")

    def _begin(self, head: bytes, rest: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        headers: list[Header] = []
        length, expects = b"0", False
        for line in lines:
            name, _, value = line.partition(b": ")
            headers.append((name, value))
            if name == b"content-length":
                length = value
            elif name == b"expect":
                expects = value.lower() == b"100-continue"
        method, _, target = first.partition(b" ")
        target, _, version = target.partition(b" ")
        if version != b"HTTP/1.1" or not length.isdigit():
            self._give_up(f"a head that begins with {first[:100]!r}")
            return
        self._missing = int(length)
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
        cycle = self._cycle = Cycle(self, scope, self._state.default_headers, expects)
        tasks = self._state.tasks
        task = self._loop.create_task(cycle.run_asgi(self._app))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if rest:
            self._head = self._take_body(rest)
        elif not self._missing:
            cycle.more_body = False
            cycle.tell()

    def _take_body(self, data: bytes) -> bytes:
        """Of the request that was begun; gives what is behind it."""
        cycle = self._cycle
        assert cycle is not None
        body, rest = data[: self._missing], data[self._missing :]
        self._missing -= len(body)
        if not cycle.response_complete:  # else nobody wants it any more
            cycle.body += body
            cycle.more_body = self._missing > 0
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.tell()
        return rest

    def answered(self) -> None:
        # What came meanwhile is served before the turn ends: a whole answer does not wait for that.
        self.transport.flush()
        self.flow.resume_reading()
        if self._head and not self.transport.is_closing():
            data, self._head = self._head, b""
            self._go_on(data)

    def _give_up(self, said: str) -> None:
        logger.warning("a circuit is given up, because its caller says %s", said)
        self.transport.abort()


class Cycle(RequestResponseCycle):
    """One request and its answer, to the app as uvicorn's own is; what few requests need is made when they do."""

    disconnected = response_started = response_complete = False
    keep_alive = more_body = True
    chunked_encoding: bool | None = None
    expected_content_length = 0
    body: Any = b""
    logger = servers_logger

    def __init__(
        self, circuit: CallerCircuit, scope: dict[str, Any], default_headers: list[Header], expects: bool
    ) -> None:
        # Not uvicorn's own, which sets for each what is said above for all.
        self.scope = cast(Any, scope)
        self.transport: Circuit = circuit.transport
        self.flow = circuit.flow
        self.default_headers = default_headers
        self.on_response = circuit.answered
        self.waiting_for_100_continue = expects
        #: Whether there is something to receive, and who waits for that.
        self._news = False
        self._waiting: asyncio.Event | None = None

    def tell(self) -> None:
        """There is something to receive."""
        self._news = True
        if self._waiting is not None:
            self._waiting.set()

    async def receive(self) -> Any:
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(CONTINUE)
            self.waiting_for_100_continue = False
        if not (self.disconnected or self.response_complete):
            self.flow.resume_reading()
            if not self._news:
                if self._waiting is None:
                    self._waiting = asyncio.Event()
                await self._waiting.wait()
                self._waiting.clear()
            self._news = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = self.body, b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if not self.response_started:
            if kind != "http.response.start":
                raise RuntimeError(f"Expected ASGI message 'http.response.start', but got '{kind}'.")
            self.response_started = True
            self.waiting_for_100_continue = False
            self._send_head(message["status"], message.get("headers", ()))
        elif self.response_complete:
            raise RuntimeError(f"Unexpected ASGI message '{kind}' sent, after response already completed.")
        elif kind != "http.response.body":
            raise RuntimeError(f"Expected ASGI message 'http.response.body', but got '{kind}'.")
        else:
            self._send_body(message.get("body", b""), message.get("more_body", False))

    def _send_head(self, status: int, headers: Iterable[Header]) -> None:
        pieces = [STATUS_LINE[status]]
        if self.default_headers:
            headers = (*self.default_headers, *headers)
        closes = False
        for name, value in headers:
            name = _field_name(name)
            if name == b"content-length":
                if self.chunked_encoding is None:
                    self.expected_content_length = int(value.decode())
                    self.chunked_encoding = False
            elif name == b"transfer-encoding":
                if value.lower() == b"chunked":
                    self.expected_content_length = 0
                    self.chunked_encoding = True
            elif name == b"connection" and b"close" in [token.strip().lower() for token in value.split(b",")]:
                self.keep_alive = False
                closes = True
            pieces += (name, b": ", value, b"\r\n")
        head = b"".join(pieces)
        if len(head) - len(head.translate(None, NOT_IN_A_HEAD)) != (len(pieces) + 3) // 2:
            raise RuntimeError("Invalid HTTP header value.")  # more than the ends of lines was found
        if not (self.keep_alive or closes):
            head += b"connection: close\r\n"
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            head += b"transfer-encoding: chunked\r\n"
        self.transport.write(head + b"\r\n")

    def _send_body(self, body: Any, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
        elif self.chunked_encoding:
            framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self.transport.write(framed if more else framed + b"0\r\n\r\n")
        else:
            left = self.expected_content_length = self.expected_content_length - len(body)
            if left < 0:
                raise RuntimeError("Response content longer than Content-Length")
            self.transport.write(body)
        if more:
            return
        if self.expected_content_length:
            raise RuntimeError("Response content shorter than Content-Length")
        self.response_complete = True
        if self._waiting is not None:
            self._waiting.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


@lru_cache(1_024)
def _field_name(name: bytes) -> bytes:
    """In small letters. Raises `RuntimeError` for what is none."""
    if HEADER_RE.search(name):
        raise RuntimeError("Invalid HTTP header name.")
    return name.lower()
