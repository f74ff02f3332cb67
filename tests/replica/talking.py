"""A connection of a caller to a replica, over a transport in memory: bytes in, bytes out."""

import asyncio
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

import httpx
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from app_toolkit.replica.admission.replica import Replica, ReplicaStatistics
from app_toolkit.replica.http.connection import CallerConnection
from app_toolkit.replica.http.websocket import BoundedWebSocket
from app_toolkit.types import ASGIApp
from tests.patience import until

from .client import SECRET, field


class Wire(asyncio.Transport):
    """A transport in memory. It accepts all writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written: list[bytes] = []
        self.ended = ""
        self.reading = True
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        if not self.ended:
            self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return bool(self.ended)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    @property
    def said(self) -> bytes:
        return b"".join(self.written)


class Talking:
    """One caller, and an app behind a replica. No socket is used."""

    def __init__(self, app: ASGIApp, *, ours: bool = True, max_ongoing_requests: int = 10, **options: Any) -> None:
        """`ours`: over our own connection, not uvicorn's. `options`: those of `Replica`."""
        self.replica = Replica(app, name="r", max_ongoing_requests=max_ongoing_requests, secret=SECRET, **options)
        self.state = ServerState()
        self._config = uvicorn.Config(
            self.replica, ws=BoundedWebSocket, lifespan="off", log_config=None, server_header=False, date_header=False
        )
        self._config.load()
        self._make: Any = partial(CallerConnection, self.replica) if ours else HttpToolsProtocol
        self._connect()

    def _connect(self) -> None:
        self.wire = Wire()
        self.ended = ""
        self.talker: Any = self._make(self._config, self.state, {"app": "state"})
        self.talker.connection_made(self.wire)

    def beside(self) -> "Talking":
        """Another caller of the same replica."""
        other = copy(self)
        other._connect()
        return other

    async def response(self) -> httpx.Response:
        """Wait for one response, whose length is announced."""
        await until(lambda: b"\r\n\r\n" in self.wire.said)
        start, _, _ = self.wire.said.partition(b"\r\n\r\n")
        status, *lines = start.split(b"\r\n")
        fields = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        length = int(dict(fields)[b"content-length"])
        await until(lambda: len(self.wire.said) == len(start) + 4 + length)
        return httpx.Response(int(status.split()[1]), headers=fields, content=self.wire.said[len(start) + 4 :])

    def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.talker.data_received(piece)

    def leave(self) -> None:
        """Disconnect."""
        self.talker.connection_lost(None)

    async def idle(self) -> None:
        """Wait until no request and no background task runs."""
        await until(lambda: self.replica.statistics() == ReplicaStatistics(0, 0, 0, draining=False))

    async def settle(self) -> None:
        """Wait until no request runs, or those that run wait for their caller. Then disconnect."""
        for _ in range(50):
            await asyncio.sleep(0)
        self.ended = self.wire.ended  # uvicorn also closes a lost connection
        self.talker.connection_lost(None)
        await until(lambda: not self.state.tasks)
        await asyncio.sleep(0)  # callbacks of a task run one turn after its end
        assert (self.replica.statistics().ongoing, self.replica.statistics().running) == (0, 0)
        assert not self.state.connections


def head(method: str = "GET", target: bytes = b"/", fields: Sequence[tuple[bytes, bytes]] = (), **of_hop: Any) -> bytes:
    name, value = field(**of_hop)
    lines = [b"%b %b HTTP/1.1" % (method.encode(), target), b"%b: %b" % (name.encode(), value)]
    return b"\r\n".join([*lines, *(b"%b: %b" % each for each in fields), b"", b""])


def get(path: bytes = b"/") -> bytes:
    return head(target=path, fields=[(b"host", b"shop")])


def post(body: bytes, *fields: tuple[bytes, bytes]) -> bytes:
    return head("POST", fields=[(b"host", b"shop"), (b"content-length", b"%d" % len(body)), *fields]) + body


def handshake(path: bytes = b"/", *fields: tuple[bytes, bytes], **of_hop: Any) -> bytes:
    """The request that opens a WebSocket."""
    upgrade = [
        (b"host", b"shop"),
        (b"connection", b"keep-alive, Upgrade"),
        (b"upgrade", b"WebSocket"),
        (b"sec-websocket-version", b"13"),
        (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    ]
    return head(target=path, fields=[*fields, *upgrade], **of_hop)


HANDSHAKE = handshake()
