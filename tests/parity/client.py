"""A client that shows an answer as it is on the wire: every header in order, nothing followed or repaired."""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

HOST = "parity.test"

Headers = Sequence[tuple[str, str]]
Observation = Any  # plain data: what JSON can say


class Exchange:
    """One request that was sent, and its answer as it arrives."""

    def __init__(self, reader: asyncio.StreamReader, method: str) -> None:
        self._reader = reader
        self._method = method
        self.interim: list[Observation] = []
        self.status = ""
        self.headers: list[list[str]] = []
        self._seen = b""

    async def head(self) -> "Exchange":
        while True:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = [line.split(": ", 1) for line in lines[1:-2]]
            headers = [[name.lower(), *rest] for name, *rest in pairs]
            if not lines[0].startswith("HTTP/1.1 1"):
                self.status, self.headers = lines[0], headers
                return self
            self.interim.append([lines[0], headers])

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes, without its framing. Raises where the server breaks off in the middle."""
        fields = {header[0]: header[-1] for header in self.headers}
        code = self.status.split(" ")[1]
        if self._method == "HEAD" or code in ("204", "304"):
            return
        if fields.get("transfer-encoding") == "chunked":
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readexactly(2)
        elif "content-length" in fields:
            left = int(fields["content-length"])
            while left:
                piece = await self._reader.read(min(left, 65536))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", left)
                left -= len(piece)
                yield piece
        else:
            while piece := await self._reader.read(65536):
                yield piece

    async def answer(self) -> Observation:
        await self.head()
        body, truncated = b"", False
        parts: list[bytes] = []
        try:
            async for piece in self.pieces():
                parts.append(piece)
        except (asyncio.IncompleteReadError, ConnectionError):
            truncated = True
        body = b"".join(parts)
        observed: dict[str, Observation] = {"status": self.status, "headers": self.headers, "body": shown(body)}
        if self.interim:
            observed["interim"] = self.interim
        if truncated:
            observed["truncated"] = True
        return observed


def shown(body: bytes) -> str:
    if len(body) > 20_000:
        return f"{len(body)} bytes, sha256 {hashlib.sha256(body).hexdigest()}"
    return body.decode("latin-1")


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.port: int = writer.get_extra_info("sockname")[1]

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def request(
        self,
        method: str,
        target: str | bytes,
        headers: Headers = (),
        body: bytes | Iterable[bytes] = b"",
        version: str = "HTTP/1.1",
    ) -> Exchange:
        """Send one request; a body that is not bytes goes out in chunks."""
        await self.send(head(method, target, headers, body, version))
        if isinstance(body, bytes):
            await self.send(body)
        else:
            for piece in body:
                await self.send(chunk(piece))
            await self.send(b"0\r\n\r\n")
        return Exchange(self.reader, method)

    async def closed_by_server(self) -> bool:
        """Whether the server ends this connection, rather than answer the next request on it."""
        try:
            await self.send(head("GET", "/outputs/json"))
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


def head(
    method: str,
    target: str | bytes,
    headers: Headers = (),
    body: bytes | Iterable[bytes] = b"",
    version: str = "HTTP/1.1",
) -> bytes:
    fields = [("host", HOST), *headers]
    if any(name == "host" for name, _ in headers):
        fields = list(headers)
    if not isinstance(body, bytes):
        fields.append(("transfer-encoding", "chunked"))
    elif body and not any(name == "content-length" for name, _ in headers):
        fields.append(("content-length", str(len(body))))
    raw = target if isinstance(target, bytes) else target.encode("ascii")
    lines = [f"{name}: {value}".encode("latin-1") for name, value in fields]
    return b"\r\n".join([b"%s %s %s" % (method.encode(), raw, version.encode()), *lines, b"", b""])


class Client:
    def __init__(self, port: int, folder: Path) -> None:
        self.port = port
        self._folder = folder
        self._marks = itertools.count()

    def mark(self) -> str:
        """A folder of this probe, in which requests leave what later ones look for."""
        mark = self._folder / f"mark-{next(self._marks)}"
        mark.mkdir()
        return str(mark)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        connection = Connection(reader, writer)
        try:
            yield connection
        finally:
            writer.close()
            with suppress(ConnectionError):  # the server was first
                await writer.wait_closed()

    async def ask(
        self, method: str, target: str | bytes, headers: Headers = (), body: bytes | Iterable[bytes] = b""
    ) -> Observation:
        """One request on a connection of its own, and its whole answer."""
        async with self.connection() as connection:
            return await (await connection.request(method, target, headers, body)).answer()

    async def release(self, mark: str, step: int) -> None:
        answer = await self.ask("POST", f"/live/release/{step}?mark={mark}")
        assert answer["status"].endswith("200 OK"), answer

    async def left(self, mark: str, name: str) -> Observation:
        """What a request left behind, as soon as it is there."""
        while True:
            answer = await self.ask("GET", f"/live/left/{name}?mark={mark}")
            if answer["body"] != "null":
                return [answer["status"], answer["body"]]
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def websocket(self, target: str, host: str = HOST, **options: Any) -> AsyncIterator[ClientConnection]:
        async with connect(
            f"ws://{host}{target}", host="127.0.0.1", port=self.port, proxy=None, ping_interval=None, **options
        ) as websocket:
            yield websocket

    async def converse(
        self, target: str, messages: Sequence[str | bytes] = (), leave: bool = False, **options: Any
    ) -> Observation:
        """Send messages and read until the server closes; with `leave`, one answer per message, and close."""
        try:
            async with self.websocket(target, **options) as websocket:
                observed: dict[str, Observation] = {
                    "handshake": _handshake(websocket.response),
                    "subprotocol": websocket.subprotocol,
                    "messages": [],
                }
                try:
                    for message in messages:
                        await websocket.send(message)
                        if leave:
                            observed["messages"].append(_message(await websocket.recv()))
                    while not leave:
                        observed["messages"].append(_message(await websocket.recv()))
                except ConnectionClosed as closed:
                    frame = closed.rcvd
                    observed["closed"] = [frame.code, frame.reason] if frame else None
                return observed
        except InvalidStatus as refused:
            return {**_handshake(refused.response), "body": refused.response.body.decode("latin-1")}


def _message(message: str | bytes) -> Observation:
    if isinstance(message, bytes):
        return {"bytes": shown(message)}
    return {"text": shown(message.encode())} if len(message) > 20_000 else {"text": message}


def _handshake(response: Any) -> dict[str, Observation]:
    return {
        "status": response.status_code,
        "headers": [
            [name.lower(), value]
            for name, value in response.headers.raw_items()
            if name.lower() != "sec-websocket-accept"  # answers the client's random key
        ],
    }
