"""A real replica over a real socket, and a client that speaks the hop byte by byte."""

import http.client
import itertools
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.uri import parse_uri

from app_toolkit.config.models import ApplicationConfig, ClassConfig, DeploymentConfig
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.host.replica_server import ReplicaServer
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.types import Address, OnDisconnect, ReplicaId
from app_toolkit.wire import hop
from app_toolkit.wire.preface import RESPONSE, first_line, read_response
from tests.patience import PATIENCE_S

SECRET = b"0123456789abcdef"
_numbers = itertools.count()


def wait_until(condition: Callable[[], bool], what: str, within: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(0.005)


def field(
    secret: bytes = SECRET,
    *,
    request_id: bytes = b"req-1",
    version: bytes = b"1.1",
    client: tuple[str, int] | None = ("203.0.113.9", 40_000),
    server: tuple[str, int] | None = ("shop.example", 443),
    scheme: str = "https",
    timeout_ms: int | None = None,
) -> tuple[str, bytes]:
    return hop.HOP.decode(), hop.encode(
        hop.token(secret), request_id, version, hop.peers(client, server, scheme), timeout_ms
    )


class Connection(http.client.HTTPConnection):
    """One HTTP/1.1 connection to an address; header fields go out in the order they are given."""

    def __init__(self, address: Address) -> None:
        super().__init__("replica", timeout=PATIENCE_S)
        self.sock = dial(address)

    def send_head(self, method: str, path: str, fields: list[tuple[str, str | bytes]]) -> None:
        self.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in fields:
            self.putheader(name, value)
        if not any(name == "host" for name, _ in fields):
            self.putheader("host", "shop.example")
        self.endheaders()

    def ask(
        self,
        path: str,
        *more: tuple[str, str | bytes],
        hop: tuple[str, bytes] | None = field(),
        method: str = "GET",
        body: bytes | None = None,
    ) -> http.client.HTTPResponse:
        length = [] if body is None else [("content-length", str(len(body)))]
        self.send_head(method, path, [*([hop] if hop else []), *more, *length])
        if body:
            self.send(body)
        return self.getresponse()


class WebSocketClient:
    """The client's half of one WebSocket, with the hop field first."""

    def __init__(self, address: Address, path: str, hop: tuple[str, bytes] | None = field()) -> None:
        self._socket = dial(address)
        self._protocol = ClientProtocol(parse_uri(f"ws://shop.example{path}"))
        request = self._protocol.connect()
        if hop is not None:
            request.headers = Headers([(hop[0], hop[1].decode()), *request.headers.raw_items()])
        self._protocol.send_request(request)
        self._flush()
        self._events: list[object] = []
        answer = self._event()
        assert isinstance(answer, Response)
        self.answer = answer

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                with suppress(BrokenPipeError):  # whoever closed first does not read our half of the farewell
                    self._socket.sendall(data)

    def _event(self) -> object:
        while not self._events:
            try:
                data = self._socket.recv(65_536)
            except ConnectionResetError:  # the server has closed without reading the response to its close frame
                data = b""
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            self._flush()
            self._events += self._protocol.events_received()
            if not data and not self._events:
                return None
        return self._events.pop(0)

    def send(self, text: str) -> None:
        self._protocol.send_text(text.encode())
        self._flush()

    def receive(self) -> str:
        frame = self._event()
        assert isinstance(frame, Frame), frame
        return bytes(frame.data).decode()

    def leave(self) -> None:
        """Send a close frame, and do not read the response."""
        self._protocol.send_close(1000)
        self._flush()

    def closed_with(self) -> int:
        while self._event() is not None:
            pass
        code = self._protocol.close_code
        assert code is not None
        return code

    def close(self) -> None:
        self._socket.close()


def dial(address: Address) -> socket.socket:
    kind, _, place = address.partition(":")
    if kind == "unix":
        dialled = socket.socket(socket.AF_UNIX)
        dialled.settimeout(PATIENCE_S)
        try:
            dialled.connect(place)
        except OSError:
            dialled.close()
            raise
        return dialled
    name, _, port = place.rpartition(":")
    dialled = socket.create_connection((name, int(port)), timeout=PATIENCE_S)
    introduce(dialled)
    return dialled


def introduce(dialled: socket.socket, secret: bytes = SECRET) -> None:
    """The caller's side of what a connection over TCP begins with."""
    asked = first_line()
    dialled.sendall(asked)
    answered = b""
    while len(answered) < RESPONSE and (more := dialled.recv(RESPONSE - len(answered))):
        answered += more
    dialled.sendall(read_response(secret, asked, dialled.getpeername(), answered))


class Served:
    """One replica that a test has started."""

    def __init__(self, server: ReplicaServer, address: Address, folder: Path = Path()) -> None:
        self.server = server
        self.address = address
        self.folder = folder
        self._open: list[Connection | WebSocketClient] = []

    def connect(self) -> Connection:
        self._open.append(connection := Connection(self.address))
        return connection

    def websocket(self, path: str, hop: tuple[str, bytes] | None = field()) -> WebSocketClient:
        self._open.append(client := WebSocketClient(self.address, path, hop))
        return client

    def marked(self, name: str) -> bool:
        """Whether the app has called its `mark` with this name."""
        return (self.folder / name).exists()

    def release(self, name: str) -> None:
        """Let the app's `gate` of this name go on."""
        (self.folder / name).touch()

    def close(self) -> None:
        for one in self._open:
            one.close()
        self.server.stop(0)


PREAMBLE = """
import asyncio
from pathlib import Path
from fastapi import BackgroundTasks, FastAPI, Request, WebSocket

FOLDER = Path(__file__).parent

def mark(name):
    (FOLDER / name).touch()

async def hold_until(name):
    while not (FOLDER / name).exists():
        await asyncio.sleep(0.005)
"""


class Serve:
    """Writes an app into a folder of its own and serves it."""

    def __init__(self) -> None:
        self._replicas: list[Served] = []
        self._folders: list[Path] = []
        self._modules: list[str] = []

    def spec(
        self,
        source: str,
        *,
        attribute: str = "app",
        root_path: str = "",
        max_ongoing_requests: int = 100,
        max_open_websockets: int = 1_000,
        max_open_streams: int = 1_000,
        on_disconnect: OnDisconnect = "auto",
        kind: Literal["ingress", "class"] = "ingress",
        user_config: Mapping[str, Any] | None = None,
        loop: Literal["uvloop", "asyncio"] = "uvloop",
    ) -> ReplicaSpec:
        # Not pytest's own folders: a socket's path must be short.
        folder = Path(tempfile.mkdtemp(prefix="atk"))
        module = f"served_{os.getpid()}_{next(_numbers)}"
        (folder / f"{module}.py").write_text(PREAMBLE + dedent(source))
        self._folders.append(folder)
        self._modules.append(module)
        return ReplicaSpec(
            id=ReplicaId("shop/chat-1-1"),
            application="shop",
            config=(ClassConfig if kind == "class" else DeploymentConfig)(name="chat", on_disconnect=on_disconnect),
            target=f"{module}:{attribute}",
            app_dir=str(folder),
            root_path=root_path,
            reloadable=ReloadableOptions(max_ongoing_requests, max_open_websockets, max_open_streams, user_config),
            application_config=ApplicationConfig(loop=loop),
        )

    def __call__(
        self, source: str, *, address: str | None = None, remote_host: str | None = None, **options: Any
    ) -> Served:
        """`options`: those of `spec`."""
        spec = self.spec(source, **options)
        server = ReplicaServer()
        listening = server.start(spec, SECRET, Address(address or f"unix:{spec.app_dir}/r.sock"), remote_host)
        served = Served(server, listening, Path(spec.app_dir))
        self._replicas.append(served)
        return served

    def close(self) -> None:
        for replica in self._replicas:
            replica.close()
        for module in self._modules:
            sys.modules.pop(module, None)
        for folder in self._folders:
            if str(folder) in sys.path:
                sys.path.remove(str(folder))
            shutil.rmtree(folder)
