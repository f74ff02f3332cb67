"""One app on plain uvicorn, and the same app behind our proxy; both over real sockets, on threads of this process."""

import asyncio
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import uvicorn
import uvloop

from app_toolkit.config.models import HTTPOptions, Policy
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.routes import RoutedApplication
from app_toolkit.contract.snapshots import PublishedReplica, ReplicaSetSnapshot, RouteSnapshot, encode
from app_toolkit.contract.targets import Target
from app_toolkit.edge.hosted_proxy import HostedProxy
from app_toolkit.edge.state import ProxyState
from app_toolkit.exchange.router import Router
from app_toolkit.host.replica_server import Server
from app_toolkit.interfaces import Snapshot, Version, Watch
from app_toolkit.replica.admission.replica import Replica
from app_toolkit.types import Address, ASGIApp, NodeId, ReplicaId

SECRET = b"the-secret-of-this-run"
MOST = 100
PATIENCE_S = 5.0
"""How long a server may take to come up, or to end."""


@contextmanager
def plain(app: ASGIApp) -> Iterator[int]:
    """The port of a uvicorn that serves the app, with the protocols of a replica."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app, http="httptools", ws="websockets-sansio", log_config=None, timeout_graceful_shutdown=1
        )
        ready = threading.Event()
        with _running(_Told(config, ready), listener, ready):
            yield int(listener.getsockname()[1])


@contextmanager
def behind_proxy(app: ASGIApp) -> Iterator[int]:
    """The port of a proxy with one replica that serves the app."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / "replica.sock")
        listener.bind(path)
        listener.listen()
        replica = Replica(app, name="replica", max_ongoing_requests=MOST, secret=SECRET)
        ready = threading.Event()
        server = Server(replica, SECRET, ready.set)
        server.config.timeout_graceful_shutdown = 1
        with _running(server, listener, ready):
            edge = HostedProxy(lambda: ProxyState(SECRET, Router), HTTPOptions(port=0), _snapshots(f"unix:{path}"))
            port = int(edge.start().rpartition(":")[2])
            try:
                yield port
            finally:
                edge.stop(PATIENCE_S)


FORMS: Mapping[str, Callable[[ASGIApp], AbstractContextManager[int]]] = {
    "uvicorn": plain,
    "app_toolkit": behind_proxy,
}


class _Told(uvicorn.Server):
    """A uvicorn that says when it serves."""

    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()


@contextmanager
def _running(server: uvicorn.Server, listener: socket.socket, ready: threading.Event) -> Iterator[None]:
    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve([listener]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    if not ready.wait(PATIENCE_S):
        raise RuntimeError("the server did not come up")
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        if thread.is_alive():
            raise RuntimeError("the server did not end")


def _snapshots(address: str) -> Watch:
    """One application at `/`, served by one replica, for ever."""
    replica = PublishedReplica(
        ReplicaId("replica"), Address(address), None, NodeId(""), MOST, MOST, unresponsive=False, running=None
    )
    routes = RouteSnapshot((RoutedApplication("/", Target("app", ReplicaSetKey("app", "app"))),))
    replicas = ReplicaSetSnapshot(
        Policy(), None, idempotent=(), reported=False, scaled_to_zero=False, replicas=(replica,)
    )
    version = Version(1, 1)
    snapshots = {
        "routes": Snapshot(version, encode(routes)),
        "replicas/app/app": Snapshot(version, encode(replicas)),
    }

    async def watch(seen: Mapping[str, Version], prefixes: tuple[str, ...]) -> Mapping[str, Snapshot]:
        if seen:
            await asyncio.Event().wait()
        return snapshots

    return watch
