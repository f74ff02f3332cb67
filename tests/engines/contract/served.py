"""The contract's app as each engine serves it."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from app_toolkit.control.weights import SetSplit
from app_toolkit.declare.deployment import Bound
from app_toolkit.declare.split import Split
from app_toolkit.declare.toolkit import Toolkit
from app_toolkit.engines.one_process.calls import IN_PROCESS, Local
from app_toolkit.host.orders import GetCallLoads, GetStatistics, Order
from app_toolkit.observability.counts import Counts
from app_toolkit.userapp.graph import find
from app_toolkit.wire.uvicorn_server import EventServer
from tests import cluster
from tests.engines.contract import app as contract
from tests.engines.contract.ground import AGAIN_S
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Load:
    """What goes on in an engine at one moment."""

    waiting: int
    """Requests in the queues of its routers."""
    ongoing: int
    """Turns that its routers have given, and slots that its replicas hold."""
    running: int
    """Coroutines of its replicas that have not ended, and open WebSockets."""
    streams: int = 0
    """Open streams at its replicas."""


class Served(Protocol):
    """The app under one engine."""

    @property
    def url(self) -> str: ...

    @property
    def application(self) -> str: ...

    def transport(self) -> httpx.AsyncBaseTransport | None:
        """What brings requests to it; None: sockets."""
        ...

    def spoken(self, ingress: str) -> str:
        """The name that sentences give an ingress."""
        ...

    async def load(self) -> Load: ...

    async def outcomes(self, ingress: str) -> dict[str, int]:
        """The number of ended requests of an ingress by outcome."""
        ...

    def set_weights(
        self, split: Split[Any], weights: Mapping[Bound[Any], float], mirror: Mapping[Bound[Any], float] | None = None
    ) -> None:
        """Change the weights and mirrors of a split of the app."""
        ...


def serving(request: pytest.FixtureRequest, module: ModuleType) -> Iterator["Served"]:
    """The `app` of a module under the engine, or the form of one, that the fixture's parameter names."""
    running: AbstractContextManager[Served]
    match request.param:
        case "embedded":
            running = InOneProcess.running(module.app)
        case "test client":
            running = UnderTestClient.running(module.app, lifespan=True)
        case "test client without lifespan":
            running = UnderTestClient.running(module.app, lifespan=False)
        case "processes":
            running = InInstance.running(request.getfixturevalue("processes"), module.__name__)
        case "ray":
            running = InInstance.running(request.getfixturevalue("cluster"), module.__name__)
        case other:
            raise ValueError(f"no engine has the name {other!r}")
    with running as served:
        yield served


class _Here:
    """The app in this process."""

    def set_weights(
        self, split: Split[Any], weights: Mapping[Bound[Any], float], mirror: Mapping[Bound[Any], float] | None = None
    ) -> None:
        split.set_weights(weights, mirror=mirror)


class InOneProcess(_Here):
    """The app as `uvicorn module:app` serves it, on a thread instead of in a process."""

    application = "default"

    def __init__(self, app: Toolkit) -> None:
        self._app = app
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._server = EventServer(
            uvicorn.Config(app, ws="websockets-sansio", log_config=None, access_log=False, timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._run, name="contract server", daemon=True)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._server.serve([self._listener]))

    def transport(self) -> None:
        return None

    def spoken(self, ingress: str) -> str:
        return ingress

    async def load(self) -> Load:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._load(), self._loop))

    async def _load(self) -> Load:
        # One process has no controller that could be asked.
        assert self._app._one_process is not None
        classes = [deployed for deployed in IN_PROCESS.deployed.values() if deployed.loop is self._loop]
        return _load_of([*self._app._one_process.planes[self._loop].ingresses.values(), *classes])

    async def outcomes(self, ingress: str) -> dict[str, int]:
        return IN_PROCESS.counters.copy().get(ingress, Counts()).outcomes

    @classmethod
    @contextmanager
    def running(cls, app: Toolkit = contract.app) -> Iterator["InOneProcess"]:
        served = cls(app)
        served._thread.start()
        try:
            while not served._server.started:
                assert served._thread.is_alive(), "the app did not start"
                time.sleep(AGAIN_S)
            yield served
        finally:
            served._server.should_exit = True
            served._thread.join(PATIENCE_S)


def _load_of(deployments: Iterable[Local]) -> Load:
    replicas = [each.replica.statistics() for each in deployments]
    return Load(
        waiting=sum(each.router.waiting for each in deployments),
        ongoing=sum(each.router.ongoing for each in deployments) + sum(s.ongoing for s in replicas),
        running=sum(s.running + s.websockets for s in replicas),
        streams=sum(s.streams for s in replicas),
    )


class UnderTestClient(_Here):
    """The app as a test of its own calls it: no socket, and every request a blocking call."""

    url = "http://testserver"
    application = "default"

    def __init__(self, client: TestClient) -> None:
        self._client = client

    def transport(self) -> httpx.AsyncBaseTransport:
        return Threads(self._client)

    def spoken(self, ingress: str) -> str:
        return ingress

    async def load(self) -> Load:
        # An ingress that has a loop for each request has gone with the last of these.
        return _load_of(list(IN_PROCESS.deployed.values()))

    async def outcomes(self, ingress: str) -> dict[str, int]:
        return IN_PROCESS.counters.copy().get(ingress, Counts()).outcomes

    @classmethod
    @contextmanager
    def running(cls, app: Toolkit, *, lifespan: bool) -> Iterator["UnderTestClient"]:
        client = TestClient(app)
        try:
            with client if lifespan else nullcontext():
                for bound in find(app):  # where no lifespan runs, threads that stay would begin in somebody's test
                    deployed = IN_PROCESS.deployed_of(bound)
                    asyncio.run_coroutine_threadsafe(deployed.start(), deployed.loop).result(PATIENCE_S)
                yield cls(client)
        finally:
            IN_PROCESS.close()


class Threads(httpx.AsyncBaseTransport):
    """Sends each request through a test client, on a thread of its own."""

    AT_ONCE = 64

    def __init__(self, client: TestClient) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(self.AT_ONCE)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._send, request)

    def _send(self, request: httpx.Request) -> httpx.Response:
        headers = list(request.headers.items())
        response = self._client.request(request.method, str(request.url), headers=headers, content=request.content)
        return httpx.Response(response.status_code, headers=list(response.headers.items()), content=response.content)

    async def aclose(self) -> None:
        self._threads.shutdown()


class InInstance:
    """The app in an instance, whose processes answer questions."""

    def __init__(self, served: cluster.Served) -> None:
        self._served = served
        self.url = served.url
        self.application = served.spec.name
        (proxy,) = served.cluster.status()["proxies"][0]["replicas"]
        self._proxy: str = proxy["id"]
        self._replicas: list[str] = [
            replica["id"] for ingress in served.status()["deployments"] for replica in ingress["replicas"]
        ]

    def transport(self) -> None:
        return None

    def set_weights(
        self, split: Split[Any], weights: Mapping[Bound[Any], float], mirror: Mapping[Bound[Any], float] | None = None
    ) -> None:
        shares = {member.name: weight for member, weight in weights.items()}
        percentages = {member.name: share * 100 for member, share in (mirror or {}).items()}
        self._served.cluster.client.execute(SetSplit(f"{self.application}/{split.name}", shares, percentages))

    def spoken(self, ingress: str) -> str:
        return f"{self._served.spec.name}/{ingress}"

    async def load(self) -> Load:
        statistics = await self._ask([self._proxy, *self._replicas], GetStatistics())
        calling = await self._ask(self._replicas, GetCallLoads())
        replicas = [statistics[replica] for replica in self._replicas]
        routers = [statistics[self._proxy], *(load for loads in calling.values() for load in loads.values())]
        return Load(
            waiting=sum(router.waiting for router in routers),
            ongoing=sum(router.ongoing for router in routers) + sum(s.ongoing for s in replicas),
            running=sum(s.running + s.websockets for s in replicas),
            streams=sum(s.streams for s in replicas),
        )

    async def outcomes(self, ingress: str) -> dict[str, int]:
        statistics = (await self._ask([self._proxy], GetStatistics()))[self._proxy]
        return dict(statistics.requests.get(self.spoken(ingress), Counts()).outcomes)

    async def _ask(self, processes: Sequence[str], order: Order[Any, Any]) -> Mapping[str, Any]:
        return await asyncio.to_thread(self._served.cluster.client.control.ask, dict.fromkeys(processes, order))

    @classmethod
    @contextmanager
    def running(cls, on: cluster.Cluster, module: str = contract.__name__) -> Iterator["InInstance"]:
        served = on.deploy(f"{module}:app", ROOT)
        try:
            assert served.status()["status"] == "healthy", served.status()
            yield cls(served)
        finally:
            served.delete()
