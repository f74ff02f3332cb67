"""With `edge = "replica"`, the replicas of routes accept clients themselves."""

import hashlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path

import httpx
import psutil
import pytest
from websockets.sync.client import connect

from app_toolkit.config.settings import RUNTIME_DIR
from app_toolkit.control.operations import Delete, Deploy, Scale
from app_toolkit.control.queries import GetApplications, GetStatus
from app_toolkit.engines.processes.engine import ProcessEngine
from app_toolkit.observability.counts import REQUESTS
from app_toolkit.observability.log_query import LogQuery
from app_toolkit.operate.client import Client
from tests.patience import PATIENCE_S, wait_until
from tests.running import Run, runs

APP = """
import asyncio, hashlib, os
from pathlib import Path
from fastapi import APIRouter, Depends, Request, WebSocket
from fastapi.responses import StreamingResponse
from app_toolkit import Deployment, DeploymentConfig, Toolkit

app, router = Toolkit(), APIRouter()

class Adder(Deployment):
    async def add(self, one: int, other: int) -> int:
        return one + other

adder = Adder.bind()

@router.get("/pid")
async def pid() -> int:
    return os.getpid()

@router.get("/reported")
async def reported() -> None: ...

@router.get("/count")
async def count(number: int) -> StreamingResponse:
    async def numbers():
        for each in range(number):
            yield f"{each}\\n"
            await asyncio.sleep(0)
    return StreamingResponse(numbers())

@router.post("/digest")
async def digest(request: Request) -> str:
    sum = hashlib.sha256()
    async for piece in request.stream():
        sum.update(piece)
    return sum.hexdigest()

@router.get("/sum")
async def sum(one: int, other: int, summing: Adder = Depends(adder)) -> int:
    return await summing.add(one, other)

@router.websocket("/echo")
async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)

@router.get("/wait")
async def wait(file: str) -> None:
    try:
        await asyncio.sleep(600)
    finally:
        Path(file).write_text("left")

app.include_router(router, deployment=DeploymentConfig(name="api", num_replicas=2))
"""

OTHER = """
import threading
from app_toolkit import Toolkit

app = Toolkit()
threading.Thread(target=threading.Event().wait, daemon=True).start()  # prevents forks of this process

@app.get("/name")
async def name() -> str:
    return "other"
"""

FILE = """
edge: replica
applications:
  shop: {target: "api:app"}
  other: {target: "other:app", route_prefix: /other}
"""


def get(connection: socket.socket, path: str) -> str:
    """Return the body of a response on a connection."""
    connection.sendall(f"GET {path} HTTP/1.1\r\nhost: shop\r\n\r\n".encode())
    with HTTPResponse(connection) as response:
        response.begin()
        return response.read().decode()


def begin_upload(connection: socket.socket, length: int) -> None:
    """Begin a request with a body of some bytes, and return when a replica waits for the first of them."""
    head = f"POST /digest HTTP/1.1\r\nhost: shop\r\ncontent-length: {length}\r\nexpect: 100-continue\r\n\r\n"
    connection.sendall(head.encode())
    assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"


class Instance:
    """An instance of two applications: one is forked, and the replicas of the other import it themselves."""

    def __init__(self, run: Run) -> None:
        self.url = run.url()
        run.url()
        self.run = run
        self.supervisor = psutil.Process(run.process.pid)
        self.client: Client = ProcessEngine().connect(f"processes-{run.process.pid}")

    def processes(self) -> list[str]:
        names = []
        for process in self.supervisor.children():
            with suppress(psutil.NoSuchProcess):
                names.append(process.name())
        return names

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", httpx.URL(self.url).port or 0))
        connection.settimeout(PATIENCE_S)
        return connection

    def accepter(self, connection: socket.socket) -> int:
        """Return the process that has accepted a connection, which has got a response."""
        client = connection.getsockname()
        for process in self.supervisor.children():
            with suppress(psutil.NoSuchProcess):  # it ends now
                if process.name() == "at-replica" and client in {peer.raddr for peer in process.net_connections("tcp")}:
                    return process.pid
        raise AssertionError("no replica has accepted the connection")

    @contextmanager
    def connections(self) -> Iterator[dict[int, socket.socket]]:
        """Open a connection that each replica of a route has accepted, by the process of the replica."""
        connections: dict[int, socket.socket] = {}
        with ExitStack() as opened:

            def are_accepted() -> bool:
                connection = opened.enter_context(self.connect())
                get(connection, "/pid")
                connections[self.accepter(connection)] = connection
                return len(connections) == 4

            wait_until(are_accepted)
            yield connections

    def is_healthy(self) -> bool:
        return self.client.execute(GetStatus()).status == "healthy"


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    folder = tmp_path_factory.mktemp("app")
    for name, text in {"api.py": APP, "other.py": OTHER, "app_toolkit.yaml": FILE}.items():
        (folder / name).write_text(text)
    with runs() as start:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(RUNTIME_DIR, str(folder))  # commands of other tests must not find this instance
            instance = Instance(start(str(folder / "app_toolkit.yaml"), "--engine", "processes", "--admin"))
        yield instance


@pytest.fixture(autouse=True)
def healthy(instance: Instance) -> None:
    wait_until(instance.is_healthy)


def test_each_replica_of_a_route_accepts_clients_and_serves_those_of_its_route(instance: Instance) -> None:
    with instance.connections() as connections:
        assert {get(connection, "/other/name") for connection in connections.values()} == {'"other"'}
        served_here = [pid for pid, connection in connections.items() if int(get(connection, "/pid")) == pid]
    assert len(served_here) == 2, "the others are those of the other routes"
    assert "at-proxy" not in instance.processes()


def test_streams_uploads_calls_and_websockets_are_served(instance: Instance) -> None:
    with instance.http() as http:
        assert http.get("/count?number=200").text.split() == [str(number) for number in range(200)]
        upload = os.urandom(3_000_000)
        assert http.post("/digest", content=upload).json() == hashlib.sha256(upload).hexdigest()
        assert http.get("/sum?one=2&other=3").json() == 5
        assert http.get("/nothing").status_code == 404
    with connect(f"{instance.url.replace('http', 'ws')}/echo") as websocket:
        websocket.send("hello")
        assert websocket.recv() == "hello"


def test_a_slow_client_delays_no_other_one(instance: Instance) -> None:
    with instance.connect() as slow:
        begin_upload(slow, 10)
        slow.sendall(b"abc")
        with instance.connections() as connections:
            assert all(get(connection, "/pid").isdigit() for connection in connections.values())


def test_a_request_ends_when_its_client_leaves(instance: Instance, tmp_path: Path) -> None:
    left = tmp_path / "left"
    with instance.http() as http, pytest.raises(httpx.ReadTimeout):
        http.get("/wait", params={"file": str(left)}, timeout=0.5)
    wait_until(left.exists)


def test_the_replicas_report_what_a_proxy_would(instance: Instance) -> None:
    def counted() -> int:
        url = instance.client.execute(GetStatus()).admin_url
        assert url is not None
        lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
        values = [line for line in lines if line.startswith(f"{REQUESTS}{{") and 'route="/reported"' in line]
        return sum(int(float(line.rpartition(" ")[2])) for line in values)

    wait_until(lambda: instance.client.execute(GetStatus()).admin_url is not None)
    with instance.http() as http:
        for _ in range(7):
            http.get("/reported")
    wait_until(lambda: counted() >= 7)
    assert counted() == 7
    assert any(request.path == "/reported" for request in instance.client.slow(None, 100))
    assert instance.client.load()["shop/api"].proxies == 0
    assert instance.client.logs(LogQuery(), 10).missing == ()


def under_load(instance: Instance, path: str, change: Callable[[], None]) -> list[Exception]:
    """Return the errors of clients that send requests until the change is complete."""
    ended, failures = threading.Event(), []

    def request() -> None:
        with instance.http() as http:
            while not ended.wait(0.01):
                try:
                    http.get(path).raise_for_status()
                except httpx.HTTPError as error:
                    failures.append(error)

    clients = [threading.Thread(target=request) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        change()
    finally:
        ended.set()
        for client in clients:
            client.join()
    return failures


def test_an_update_and_a_scaling_lose_no_request(instance: Instance) -> None:
    applications, _ = instance.client.execute(GetApplications())
    spec = applications["shop"].model_copy(update={"name": "updated", "route_prefix": "/updated"})

    def serve(operation: Deploy | Scale) -> None:
        revision = instance.client.execute(operation)
        instance.client.wait_until_serving({"updated": revision}, PATIENCE_S)

    def update() -> None:
        serve(Deploy(spec.model_copy(update={"loop": "asyncio"})))
        for number in (3, 2):
            serve(Scale("updated/api", number))

    serve(Deploy(spec))
    assert under_load(instance, "/updated/pid", update) == []
    instance.client.execute(Delete("updated"))
    wait_until(lambda: instance.client.execute(GetStatus()).application("updated") is None)


def test_a_killed_replica_resets_only_the_connections_that_it_has_accepted(instance: Instance) -> None:
    with instance.connections() as connections:
        killed = next(pid for pid, connection in connections.items() if int(get(connection, "/pid")) == pid)
        os.kill(killed, signal.SIGKILL)
        with suppress(ConnectionResetError):
            assert connections.pop(killed).recv(1) == b""
        assert all(int(get(connection, "/pid")) != killed for connection in connections.values())


def test_an_application_that_no_other_one_calls_can_be_deleted(instance: Instance) -> None:
    instance.client.execute(Delete("other"))
    with instance.http() as client:
        wait_until(lambda: client.get("/other/name").status_code == 404)
        assert client.get("/sum?one=1&other=2").json() == 3


def test_a_request_that_has_begun_is_completed_at_the_shutdown(instance: Instance) -> None:
    with instance.connect() as connection:
        begin_upload(connection, 3)
        connection.sendall(b"a")
        instance.run.process.send_signal(signal.SIGTERM)
        instance.run.until_said("Draining")
        connection.sendall(b"bc")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK")
    assert instance.run.wait() == 0
