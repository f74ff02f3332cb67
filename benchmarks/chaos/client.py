"""Load clients: send requests with unique IDs, and record the outcome of each.

In an open loop, each request is sent at its scheduled time, whether or not earlier responses have arrived, and its
latency is measured from that time. So a stalled server cannot hide its latency by delaying later requests.
"""

import asyncio
import contextlib
import itertools
import math
import secrets
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httptools
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from benchmarks.load import percentile

OK, WRONG, RESET, TRUNCATED, TIMEOUT, REFUSED = "OK", "WRONG", "RESET", "TRUNCATED", "TIMEOUT", "REFUSED"
"""Outcomes of a request. For a response without a 2xx status, the outcome is the status as a string.

WRONG: the body is not the expected one. RESET: the connection was lost before the response began. TRUNCATED: the
connection was lost during the response. REFUSED: no process listens.
"""

VERSION = b"x-version"
"""The response header with the version of the application."""

REQUEST_ID = b"x-request-id"
"""The response header with the request ID that the proxy assigned. The part before the dash identifies the proxy."""

IDLE_S = 2.0
"""A connection is not reused after it was idle for this long. The server's keep-alive timeout is much longer."""

ANSWER_S = 10.0
"""How long a client waits for a WebSocket to open and for each echoed message."""

_process = secrets.token_hex(4)
_numbers = itertools.count(1)


def new_id() -> str:
    return f"{_process}-{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Done:
    """A request and its outcome. Times are `time.monotonic()`."""

    id: str
    outcome: str
    due: float
    sent: float
    answered: float
    retry_after: bool = False
    """Whether the response has a Retry-After header."""
    version: str = ""
    """The version of the application according to the response."""
    proxy: str = ""
    """The proxy that responded."""

    @property
    def latency_s(self) -> float:
        return self.answered - self.due


class Broken(Exception):
    """The connection ended before the response was complete."""

    def __init__(self, began: bool) -> None:
        super().__init__()
        self.began = began


@dataclass(frozen=True, slots=True)
class ResponseHead:
    status: int
    fields: dict[bytes, bytes]
    body: bytes


class _Connection(asyncio.Protocol):
    """An HTTP/1.1 connection with one request at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.keeps = False
        self._answer: asyncio.Future[ResponseHead] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    async def ask(self, request: bytes) -> ResponseHead:
        """Send a request and return its response. Raises `Broken`."""
        self._parser = httptools.HttpResponseParser(self)
        self._began, self._fields, self._body = False, dict[bytes, bytes](), bytearray()
        self._answer = asyncio.get_running_loop().create_future()
        if self.transport.is_closing():
            raise Broken(began=False)
        self.transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._began = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            self.keeps = self._parser.should_keep_alive()
            self._answer.set_result(ResponseHead(self._parser.get_status_code(), self._fields, bytes(self._body)))

    def connection_lost(self, error: Exception | None) -> None:
        self.keeps = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Broken(self._began))


class Client:
    """Sends requests to one server, over as many connections as are needed at once."""

    def __init__(self, address: tuple[str, int], prefix: str = "", patience_s: float = 10.0) -> None:
        self.address = address
        self.prefix = prefix
        self._patience_s = patience_s
        self._idle: list[_Connection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._idle:
            connection.transport.abort()
        await asyncio.sleep(0)

    async def get(self, due: float | None = None, *, path: str = "/") -> Done:
        """Send a GET request. The body of a response from `/` must contain the ID; other bodies are not checked."""
        id = new_id()
        return await self.ask("GET", path, id, due, expected=b'{"id":"%b"}' % id.encode() if path == "/" else None)

    async def post(self, due: float | None = None, *, path: str = "/tx") -> Done:
        id = new_id()
        return await self.ask("POST", path, id, due, expected=b'{"id":"%b"}' % id.encode() if path == "/tx" else None)

    async def ask(self, method: str, path: str, id: str, due: float | None, *, expected: bytes | None) -> Done:
        """Send a request and return its outcome, also if it fails."""
        sent = time.monotonic()
        retry_after, version, proxy = False, "", ""
        try:
            async with asyncio.timeout(self._patience_s):
                answer = await self._once(self.head(method, path, id))
        except TimeoutError:
            outcome = TIMEOUT
        except ConnectionRefusedError:
            outcome = REFUSED
        except Broken as broken:
            outcome = TRUNCATED if broken.began else RESET
        except OSError:
            outcome = RESET
        else:
            retry_after = b"retry-after" in answer.fields
            version = answer.fields.get(VERSION, b"").decode()
            proxy = answer.fields.get(REQUEST_ID, b"").decode().partition("-")[0]
            outcome = str(answer.status)
            if 200 <= answer.status < 300:
                outcome = OK if expected is None or answer.body == expected else WRONG
        return Done(id, outcome, sent if due is None else due, sent, time.monotonic(), retry_after, version, proxy)

    def head(self, method: str, path: str, id: str, *fields: str) -> bytes:
        length = () if fields or method == "GET" else ("content-length: 0",)
        lines = (f"{method} {self.prefix}{path} HTTP/1.1", "host: victim", f"x-ledger-id: {id}", *length, *fields)
        return "\r\n".join((*lines, "\r\n")).encode()

    async def _once(self, request: bytes) -> ResponseHead:
        connection = await self._connected()
        try:
            answer = await connection.ask(request)
        except BaseException:
            connection.transport.abort()
            raise
        if connection.keeps:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.transport.close()
        return answer

    async def _connected(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.keeps and time.monotonic() - connection.idle_since < IDLE_S:
                return connection
            connection.transport.abort()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, *self.address)
        return connection


Ask = Callable[[float], Awaitable[Done]]


async def open_loop(ask: Ask, rate: float, seconds: float, over: asyncio.Event | None = None) -> list[Done]:
    """Send `rate` requests per second, each at its scheduled time, for `seconds` or until `over` is set."""

    async def one(due: float) -> Done:
        return await ask(due)

    began = time.monotonic()
    tasks = []
    async with asyncio.TaskGroup() as group:
        for number in itertools.count():
            if number / rate >= seconds or (over is not None and over.is_set()):
                break
            due = began + number / rate
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            tasks.append(group.create_task(one(due)))
    return [task.result() for task in tasks]


async def closed_loop(ask: Callable[[], Awaitable[Done]], clients: int, seconds: float) -> list[Done]:
    """Let each client send its next request as soon as it has received a response, for `seconds`."""
    until = time.monotonic() + seconds
    found: list[Done] = []

    async def one() -> None:
        while time.monotonic() < until:
            found.append(await ask())

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(one())
    return found


def not_ok(found: Sequence[Done]) -> list[Done]:
    return [done for done in found if done.outcome != OK]


def ok(found: Sequence[Done]) -> list[Done]:
    return [done for done in found if done.outcome == OK]


def latency_ms(found: Sequence[Done], percent: float) -> float | None:
    """Return a percentile of the latencies in ms, or None if there are no requests."""
    return percentile([done.latency_s for done in found], percent) * 1e3 if found else None


# WebSocket clients


@dataclass(slots=True)
class Dialogue:
    """The messages and the end of one WebSocket."""

    opened: float
    messages: list[Done] = field(default_factory=list)
    """The sent messages with their outcomes, without a message that was not echoed because the WebSocket closed."""
    closed: str = ""
    """The close code, from either side, or the outcome of the opening handshake if it failed."""
    ended: float = math.inf


async def talk(address: tuple[str, int], path: str, every_s: float, over: asyncio.Event) -> Dialogue:
    """Send a message every `every_s` seconds until `over` is set, and wait each time for its echo with a version."""
    dialogue = Dialogue(time.monotonic())
    host, port = address
    try:
        socket = await connect(
            f"ws://{host}:{port}{path}", open_timeout=ANSWER_S, ping_interval=None, compression=None, proxy=None
        )
    except InvalidStatus as refused:
        dialogue.closed = str(refused.response.status_code)
    except TimeoutError:
        dialogue.closed = TIMEOUT
    except ConnectionRefusedError:
        dialogue.closed = REFUSED
    except (OSError, InvalidHandshake):
        dialogue.closed = RESET
    else:
        async with socket:
            with contextlib.suppress(ConnectionClosed):
                while not over.is_set():
                    dialogue.messages.append(message := await _said_back(socket))
                    if message.outcome == TIMEOUT:
                        break
                    await asyncio.sleep(every_s)
        dialogue.closed = str(socket.close_code)
    dialogue.ended = time.monotonic()
    return dialogue


async def _said_back(socket: ClientConnection) -> Done:
    """Send a message and wait for its echo. Raises `ConnectionClosed`."""
    id, sent, version, outcome = new_id(), time.monotonic(), "", TIMEOUT
    await socket.send(id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            version, _, said = str(await socket.recv()).partition(" ")
            outcome = OK if said == id else WRONG
    return Done(id, outcome, sent, sent, time.monotonic(), version=version)


# Misbehaving clients


async def connected(address: tuple[str, int], window: int | None = None) -> socket.socket:
    """Open a TCP connection. `window` is the size of its kernel buffers in bytes; None: the system's default."""
    bare = socket.socket()
    bare.setblocking(False)
    try:
        if window is not None:
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, window)
        await asyncio.get_running_loop().sock_connect(bare, address)
    except BaseException:
        bare.close()
        raise
    return bare


def hang_up(connection: socket.socket, reset: bool) -> None:
    """Close the connection. With `reset`, send RST instead of FIN."""
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


async def read_slowly(connection: socket.socket, rate: int, over: asyncio.Event) -> int | None:
    """Read `rate` bytes per second until `over` is set. Return the number of bytes, or None if the server closed."""
    loop, read = asyncio.get_running_loop(), 0
    while not over.is_set():
        with contextlib.suppress(ConnectionError):
            got = await loop.sock_recv(connection, rate)
            if got:
                read += len(got)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), 1)
                continue
        return None
    return read


async def closes_after(
    connection: socket.socket, seconds: float, drip: bytes = b"", begun: float = 0.0
) -> float | None:
    """Return the seconds from `begun` until the server closes the connection; None if it does not within `seconds`.

    Meanwhile, one byte of `drip` is sent per second.
    """
    loop = asyncio.get_running_loop()

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            for byte in drip:
                await asyncio.sleep(1)
                await loop.sock_sendall(connection, bytes([byte]))

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                while await loop.sock_recv(connection, 4_096):
                    pass
            return time.monotonic() - begun
    except TimeoutError:
        return None
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        connection.close()
