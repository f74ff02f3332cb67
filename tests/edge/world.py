"""A proxy and replicas for the tests: each a real server, on a thread or in a process of its own."""

import asyncio
import contextlib
import fcntl
import itertools
import json
import multiprocessing
import re
import socket
import ssl
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
import uvloop

from app_toolkit.config.models import HTTPOptions
from app_toolkit.contract.snapshots import PublishedReplica, StartBlocked
from app_toolkit.edge.protocol import Timeouts, not_acknowledged
from app_toolkit.edge.server import ProxyServer
from app_toolkit.edge.state import ProxyState
from app_toolkit.exchange.router import Router
from app_toolkit.exchange.upload_rate import MinimumRate
from app_toolkit.host.edge import EdgeUpstreams, NearReplica
from app_toolkit.interfaces import Snapshot, Version
from app_toolkit.observability.access import AccessLog
from app_toolkit.replica.admission.replica import Replica
from tests import published
from tests.edge.app import SECRET, Journal, build, serve, serve_alone
from tests.keys import key
from tests.patience import PATIENCE_S

T = TypeVar("T")

CALM = Timeouts(head_s=60.0, keep_alive_s=60.0, body=MinimumRate(500.0, 20.0), discard_s=60.0, linger_s=60.0)
"""So long that no client of a test is late on a busy machine. Those who wait for the end of it use `later`."""

PATIENCE = Timeouts(head_s=1.0, keep_alive_s=30.0, body=MinimumRate(500.0, 1.0), discard_s=2.0, linger_s=1.0)
"""For tests of clients that are really late."""

WAIT_S = 60.0
"""How long a request may wait in a queue, where a test says nothing else."""

TESTS = Path(__file__).parents[1]

on_both = pytest.mark.parametrize("near", [False, True], ids=["connected", "near"])
"""For tests of any replica: it has connections to the proxy, or runs on the event loop of the proxy."""

FORKS = multiprocessing.get_context("forkserver")
"""One process that has imported the app, from which others fork: each would take most of a second to import it."""
FORKS.set_forkserver_preload(["tests.edge.app"])


def eventually(condition: Callable[[], T], timeout: float = PATIENCE_S) -> T:
    """Wait until it holds; gives what it gave."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {condition}"
        time.sleep(0.005)
    return result


class RunningProxy:
    """A proxy on a thread of its own."""

    def __init__(self, timeouts: Timeouts | None = PATIENCE, **options: Any) -> None:
        """`timeouts` None: as the options say."""
        self._timeouts = timeouts
        self._options = HTTPOptions(port=0, **options)
        self._versions = itertools.count(1)
        self._ready = threading.Event()
        self.snapshots: dict[str, Any] = {}
        self._lines: list[str] = []
        self.access = AccessLog(self._lines.append)
        self.stopping: list[Any] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self._ready.wait(PATIENCE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.proxy = ProxyState(SECRET, Router, access=self.access, new_upstreams=EdgeUpstreams)
        self.server = ProxyServer(self.proxy, self._options, timeouts=self._timeouts, drain_timeout_s=0.0)
        self._stop = asyncio.Event()
        async with self.server:
            self._ready.set()
            await self._stop.wait()

    def call(self, function: Callable[[], T]) -> T:
        """What it gives on the proxy's own loop."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_S)

    def post(self, values: dict[str, Any]) -> None:
        version = Version(1, next(self._versions))
        self.snapshots.update(values)
        self.call(lambda: self.proxy.registry.update({key: Snapshot(version, value) for key, value in values.items()}))

    def drain(self, timeout: float) -> Any:
        return asyncio.run_coroutine_threadsafe(self.server.drain(timeout), self.loop)

    def stop(self, timeout: float) -> Any:
        return asyncio.run_coroutine_threadsafe(self.server.stop(timeout), self.loop)

    def statistics(self) -> Any:
        return self.call(self.server.statistics)

    def records(self) -> list[dict[str, Any]]:
        """The access log so far."""
        self.call(self.access.flush)
        return self.written()

    def written(self) -> list[dict[str, Any]]:
        """What of it the proxy has written by itself."""
        return [json.loads(line) for batch in self._lines for line in batch.splitlines()]

    def end(self) -> None:
        """Tell it to; `close` waits for it."""
        if self.thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it ends just now: its loop is closed
                self.loop.call_soon_threadsafe(self._stop.set)

    def close(self) -> None:
        for replica in self.stopping:
            replica.join()
        self.end()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


class Served:
    """A replica of `app.build` on a thread of its own."""

    def __init__(self, name: str, path: Path | None, app: Any = None, most: int = 100, secret: bytes = SECRET) -> None:
        """`path`: of its Unix socket; None: it listens on TCP."""
        self.name = name
        self.most = most
        self.journal = Journal()
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
            self.address = f"unix:{path}"
        self.admission = Replica(app or build(name, self.journal), name=name, max_ongoing_requests=most, secret=secret)
        self._server = serve(self.admission)
        self._begin()
        eventually(lambda: self._server.started)

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self._loop = runner.get_loop()
            runner.run(self._server.serve([self._listener]))

    def endpoint(self, most: int | None = None) -> PublishedReplica:
        return published.replica(self.name, self.address, most or self.most)

    @property
    def connections(self) -> int:
        """That its callers have with it."""
        return len(self._server.server_state.connections)

    def release(self) -> None:
        """Let what waits in the app go on."""
        self._loop.call_soon_threadsafe(self.journal.release.set)

    def drain(self) -> Any:
        return asyncio.run_coroutine_threadsafe(self.admission.drain(PATIENCE_S), self._loop)

    def stop(self) -> None:
        self._server.config.timeout_graceful_shutdown = 0
        self._server.should_exit = True

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


class Near(Served):
    """A replica of `app.build` on the event loop of the proxy. Only other callers connect to it."""

    def __init__(self, edge: RunningProxy, name: str, path: Path, app: Any, most: int, secret: bytes) -> None:
        self._edge = edge
        self._loop = edge.loop
        super().__init__(name, path, app, most, secret)

    def _begin(self) -> None:
        self._served = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)

    async def _serve(self) -> None:
        server = self._server
        server.config.load()
        near = NearReplica(self.address, self.admission, server.config, server.server_state, {})
        self._edge.proxy.upstreams.add(near)
        try:
            await server.serve([self._listener])
        finally:
            self._edge.proxy.upstreams.remove(near)
            for listening in server.servers:  # its proxy may end before
                listening.close()
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            for task in server.server_state.tasks:
                task.cancel()

    def join(self) -> None:
        with contextlib.suppress(CancelledError):  # its proxy has ended before
            self._served.result(PATIENCE_S)
        eventually(lambda: not self._server.server_state.tasks)


class Killable:
    """A replica in a process of its own."""

    def __init__(self, name: str, path: Path, marks: Path, most: int = 100) -> None:
        self.name = name
        self.most = most
        self.path = path
        self.marks = marks
        self.process = FORKS.Process(target=serve_alone, args=(path, name, marks, most), daemon=True)
        self.process.start()

    def wait(self) -> None:
        def listens() -> bool:
            assert self.process.is_alive(), f"the replica {self.name} ended while it started"
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.path))
                return True
            return False

        eventually(listens)

    def endpoint(self) -> PublishedReplica:
        return published.replica(self.name, f"unix:{self.path}", self.most)

    def stop(self) -> None:
        self.process.kill()

    def join(self) -> None:
        self.process.join(PATIENCE_S)
        assert not self.process.is_alive()


class Scripted:
    """A replica that answers by a script, byte for byte.

    The script gets the connection and a request's head, once that has come; it says whether to go on with the
    connection, which is closed otherwise.
    """

    def __init__(self, name: str, path: Path, script: Callable[[socket.socket, bytes], bool]) -> None:
        self.name = name
        self.address = f"unix:{path}"
        self.connections = 0
        self._script = script
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        read = b""
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65_536):
                read += data
                while b"\r\n\r\n" in read:
                    head, _, read = read.partition(b"\r\n\r\n")
                    if not self._script(connection, head):
                        return

    def endpoint(self) -> PublishedReplica:
        return published.replica(self.name, self.address)

    def stop(self) -> None:
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@dataclass
class World:
    """The shared proxy with the replicas of one test behind it."""

    edge: RunningProxy
    folder: Path
    near: bool = False
    """Whether replicas run on the event loop of the proxy."""
    replicas: list[Any] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=itertools.count)

    @property
    def port(self) -> int:
        return self.edge.server.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def replica(self, app: Any = None, most: int = 100, secret: bytes = SECRET, *, tcp: bool = False) -> Served:
        name = f"replica-{next(self.names)}"
        path = self.folder / f"{name}.sock"
        if self.near:
            replica: Served = Near(self.edge, name, path, app, most, secret)
        else:
            replica = Served(name, None if tcp else path, app, most, secret)
        self.replicas.append(replica)
        return replica

    def killable(self, count: int = 2, most: int = 100) -> list[Killable]:
        marks = self.folder / "marks"
        marks.touch()
        found = []
        for _ in range(count):
            name = f"killable-{next(self.names)}"
            found.append(Killable(name, self.folder / f"{name}.sock", marks, most))
        self.replicas += found
        for replica in found:
            replica.wait()
        return found

    def scripted(self, script: Callable[[socket.socket, bytes], bool]) -> Scripted:
        name = f"scripted-{next(self.names)}"
        replica = Scripted(name, self.folder / f"{name}.sock", script)
        self.replicas.append(replica)
        return replica

    def says(self, *is_serving: bytes, close: bool = False) -> Scripted:
        """One replica that says these in turn, whatever it is asked, and then the last one again and again."""
        left = list(is_serving)

        def script(connection: socket.socket, head: bytes) -> bool:
            connection.sendall(left.pop(0) if len(left) > 1 else left[0])
            return not close

        replica = self.scripted(script)
        self.route(replica.endpoint())
        return replica

    def route(
        self,
        *endpoints: PublishedReplica,
        queued: int = 100,
        wait_s: float = WAIT_S,
        cannot_start: str | None = None,
        **policy: Any,
    ) -> None:
        """One application at `/`, whose default ingress these are. `cannot_start`: the exception of their starts."""
        self.edge.post(
            {
                "routes": published.routes(published.application()),
                "replicas/shop/web": published.replica_set(
                    *endpoints,
                    reported=True,
                    cannot_start=None if cannot_start is None else StartBlocked("starts_fail", cannot_start),
                    max_queued_requests=queued,
                    max_queue_wait_s=wait_s,
                    **policy,
                ),
            }
        )

    def one(self, **options: Any) -> Served:
        replica = self.replica(**options)
        self.route(replica.endpoint())
        return replica

    def record(self, request_id: str) -> dict[str, Any]:
        """The one line of the access log about this request, once it is there."""

        def found() -> list[dict[str, Any]]:
            return [record for record in self.edge.records() if record.get("request_id") == request_id]

        (record,) = eventually(found)
        return record

    def raw(self) -> "Raw":
        return Raw(self.port)

    def load(self) -> tuple[int, int, int, int]:
        """Who waits, who is ongoing, and which WebSockets are open."""
        return self.edge.call(self.edge.proxy.loads).get(key("shop/web"), (0, 0, 0, 0))

    def settled(self) -> bool:
        statistics = self.edge.statistics()
        nobody = (statistics.waiting, statistics.ongoing) == (0, 0) and self.load() == (0, 0, 0, 0)
        return nobody and not self.edge.call(lambda: self.edge.proxy.registry.waiting)

    def close(self) -> None:
        for replica in self.replicas:
            replica.stop()
        self.edge.stopping += self.replicas  # that takes a moment, which the next test need not wait for


def later(world: World, seconds: float) -> None:
    """What the proxy would do if so much time had passed."""
    world.edge.call(lambda: world.edge.server.sweep(time.monotonic() + seconds))


def lingering_ends(world: World) -> None:
    """Let the time pass for which the proxy waits for clients to close."""
    passed = itertools.count(1)  # what was on its way at one look starts the clock anew
    eventually(lambda: later(world, next(passed) * (CALM.linger_s + 1)) or world.edge.statistics().connections == 0)


def has_read(world: World, raw: "Raw") -> bool:
    """Whether the proxy has read all that its only client has sent."""

    def unread() -> list[int]:
        connections = world.edge.server.connections()
        sockets = [each.transport.get_extra_info("socket") for each in connections]  # type: ignore[attr-defined]
        return [
            int.from_bytes(fcntl.ioctl(each.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder) for each in sockets
        ]

    sent = fcntl.ioctl(raw.socket.fileno(), termios.TIOCOUTQ, bytes(4)) == bytes(4)
    return sent and world.edge.call(unread) == [0]


def still(measure: Any) -> int:
    """What it gives once it does not change any more."""
    last, since = measure(), time.monotonic()
    while time.monotonic() - since < 0.3:
        if (now := measure()) != last:
            last, since = now, time.monotonic()
        time.sleep(0.01)
    return int(last)


def takes_a_little(world: World, raw: "Raw") -> None:
    """A client that takes some of an endless answer, each time just before it would be cut off: too little for the
    kernel to ask for more."""

    def taken() -> int:
        (transport,) = (each.transport for each in world.edge.server.connections())  # type: ignore[attr-defined]
        return int(transport.written - transport.get_write_buffer_size() - not_acknowledged(transport))

    raw.send(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n")
    eventually(lambda: world.edge.call(lambda: any(not each.writable for each in world.edge.server.connections())))
    for times in range(1, 5):
        before = still(lambda: world.edge.call(taken))
        while world.edge.call(taken) == before:
            raw.exactly(16_384)
        later(world, times * (CALM.stalled_write_s - 1))
        assert world.edge.statistics().ongoing == 1


class Raw:
    """A client that sends bytes, and reads answers one by one."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.buffer = bytearray()

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> "Raw":
        self.socket.sendall(data)
        return self

    def more(self) -> bool:
        data = self.socket.recv(65_536)
        self.buffer += data
        return bool(data)

    def until(self, end: bytes) -> bytes:
        while end not in self.buffer:
            assert self.more(), f"the server closed after {self.buffer!r}"
        return self._take(self.buffer.index(end) + len(end))

    def exactly(self, length: int) -> bytes:
        while len(self.buffer) < length:
            assert self.more(), f"the server closed after {self.buffer!r}"
        return self._take(length)

    def rest(self) -> bytes:
        """All up to the end."""
        while self.more():
            pass
        return self._take(len(self.buffer))

    def _take(self, length: int) -> bytes:
        taken = bytes(self.buffer[:length])
        del self.buffer[:length]
        return taken

    def answer(self, method: str = "GET") -> "Got":
        return read_response(self, method)

    def closed(self) -> bool:
        """Whether nothing more comes and the server has closed."""
        try:
            return not self.buffer and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


@dataclass
class Got:
    status: int
    headers: list[Any]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) < 2, f"{name} came {len(found)} times"
        return found[0] if found else None

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        content = self.json()
        assert self.header("content-type") == "application/json"
        assert content["request_id"] == self.header("x-request-id")
        assert re.fullmatch(r"[^<>]+", content["detail"])
        return str(content["error"])


class Readable(Protocol):
    """The client's end of a connection."""

    def until(self, end: bytes) -> bytes: ...

    def exactly(self, length: int) -> bytes: ...

    def rest(self) -> bytes: ...


def read_response(connection: Readable, method: str) -> Got:
    """Read the response to a request with this method."""
    line, *lines = connection.until(b"\r\n\r\n").decode("latin-1").split("\r\n")[:-2]
    got = Got(int(line.split(" ")[1]), [tuple(each.lower().split(": ", 1)) for each in lines], b"")
    if got.status < 200 or got.status in (204, 304) or method == "HEAD":
        return got
    if got.header("transfer-encoding") == "chunked":
        while size := int(connection.until(b"\r\n"), 16):
            got.body += connection.exactly(size)
            connection.exactly(2)
        connection.exactly(2)
    else:
        length = got.header("content-length")
        got.body = connection.rest() if length is None else connection.exactly(int(length))
    return got
