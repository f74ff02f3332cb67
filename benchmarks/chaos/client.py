"""The client's side: requests on a fixed schedule, each with an id of its own, and what became of each.

Open loop: a request is sent when it is due, whether or not those before it were answered, and its latency counts from
when it was due. So a server that stalls cannot hide it by keeping its clients from asking.
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
"""What becomes of a request; any status that is no success is an outcome, too, as its number.

WRONG: not what this request asks for. RESET: the connection broke before the answer began; TRUNCATED: after.
REFUSED: nobody listens.
"""

VERSION = b"x-version"
"""The field in which an answer says which version of an app it is of."""

REQUEST_ID = b"x-request-id"
"""The field of the proxy's own id for the request: what is before the dash is the proxy's."""

IDLE_S = 2.0
"""An idle connection is not used again after this: well below the server's own patience."""

ANSWER_S = 10.0
"""How long a client waits for a WebSocket to open, and for what it said to be said back."""

_process = secrets.token_hex(4)
_numbers = itertools.count(1)


def new_id() -> str:
    return f"{_process}-{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Done:
    """One request and what became of it. Times are `time.monotonic()`."""

    id: str
    outcome: str
    due: float
    sent: float
    answered: float
    retry_after: bool = False
    """Whether the answer says when to come again."""
    version: str = ""
    """Which version of an app the answer says that it is of."""
    proxy: str = ""
    """Which proxy has answered."""

    @property
    def latency_s(self) -> float:
        return self.answered - self.due


class Broken(Exception):
    """The connection ended before the answer did."""

    def __init__(self, began: bool) -> None:
        super().__init__()
        self.began = began


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    fields: dict[bytes, bytes]
    body: bytes


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.keeps = False
        self._answer: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    async def ask(self, request: bytes) -> Answer:
        """Raises `Broken`."""
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
            self._answer.set_result(Answer(self._parser.get_status_code(), self._fields, bytes(self._body)))

    def connection_lost(self, error: Exception | None) -> None:
        self.keeps = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Broken(self._began))


class Client:
    """Asks one server over as many connections as it takes."""

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
        """`/` answers with the id, and is checked; of other paths only the status is."""
        id = new_id()
        return await self.ask("GET", path, id, due, expected=b'{"id":"%b"}' % id.encode() if path == "/" else None)

    async def post(self, due: float | None = None, *, path: str = "/tx") -> Done:
        id = new_id()
        return await self.ask("POST", path, id, due, expected=b'{"id":"%b"}' % id.encode() if path == "/tx" else None)

    async def ask(self, method: str, path: str, id: str, due: float | None, *, expected: bytes | None) -> Done:
        """Whatever becomes of it is told, never raised."""
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

    async def _once(self, request: bytes) -> Answer:
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
    """So many requests a second, each sent when it is due, for so many seconds or until it is over."""

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
    """Each client asks as soon as it was answered."""
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
    """None of nobody."""
    return percentile([done.latency_s for done in found], percent) * 1e3 if found else None


# Clients that talk


@dataclass(slots=True)
class Dialogue:
    """One WebSocket from its opening to its end."""

    opened: float
    messages: list[Done] = field(default_factory=list)
    """What was said, and whether it was said back. What a close left unanswered is not among them."""
    closed: str = ""
    """The code of its end, by whichever side; or, as of a request, why it was never opened."""
    ended: float = math.inf


async def talk(address: tuple[str, int], path: str, every_s: float, over: asyncio.Event) -> Dialogue:
    """Say something again and again until it is over, and wait each time for it to be said back with a version."""
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
    """Raises `ConnectionClosed`."""
    id, sent, version, outcome = new_id(), time.monotonic(), "", TIMEOUT
    await socket.send(id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            version, _, said = str(await socket.recv()).partition(" ")
            outcome = OK if said == id else WRONG
    return Done(id, outcome, sent, sent, time.monotonic(), version=version)


# Clients that do not behave


async def connected(address: tuple[str, int], window: int | None = None) -> socket.socket:
    """A bare connection; `window` is how many bytes the kernel may take in advance, in either direction."""
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
    """Close, politely or not."""
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


async def read_slowly(connection: socket.socket, rate: int, over: asyncio.Event) -> int | None:
    """Bytes that were read, `rate` a second, until it is over; None where the server ended it."""
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
    """Seconds since `begun` until the server ends the connection; None where it does not within `seconds`.

    Meanwhile one byte a second of `drip` is sent.
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
