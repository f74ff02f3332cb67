"""The contract's app as each engine serves it."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

import pytest
import ray
import uvicorn

from app_toolkit.engines.local import IN_PROCESS, Local
from app_toolkit.engines.ray.actors import NAMESPACE
from app_toolkit.toolkit import Toolkit
from tests import cluster
from tests.engines.contract import app as contract
from tests.engines.contract.ground import AGAIN_S

ROOT = Path(__file__).parents[3]
PATIENCE_S = 10.0


@dataclass(frozen=True)
class Load:
    """What goes on in an engine at one moment."""

    waiting: int
    """Requests in the queues of its routers."""
    ongoing: int
    """Turns that its routers have given, and slots that its replicas hold."""
    running: int
    """Coroutines of its replicas that have not ended, and open WebSockets."""


class Served(Protocol):
    """The app under one engine."""

    @property
    def url(self) -> str: ...

    def spoken(self, ingress: str) -> str:
        """The name that sentences give an ingress."""
        ...

    async def load(self) -> Load: ...


def serving(request: pytest.FixtureRequest, module: ModuleType) -> Iterator["Served"]:
    """The `app` of a module under the engine that the fixture's parameter names."""
    if request.param == "embedded":
        with InOneProcess.running(module.app) as served:
            yield served
    else:
        with OnRay.running(request.getfixturevalue("cluster"), module.__name__) as on_ray:
            yield on_ray


class InOneProcess:
    """The app as `uvicorn module:app` serves it, on a thread instead of in a process."""

    def __init__(self, app: Toolkit) -> None:
        self._app = app
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(app, ws="websockets-sansio", log_config=None, access_log=False, timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._run, name="contract server", daemon=True)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._server.serve([self._listener]))

    def spoken(self, ingress: str) -> str:
        return ingress

    async def load(self) -> Load:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._load(), self._loop))

    async def _load(self) -> Load:
        # One process has no controller that could be asked.
        assert self._app._embedded is not None
        ingresses = self._app._embedded._planes.get(self._loop, {}).values()
        classes = [deployed for deployed in IN_PROCESS._deployed.values() if deployed.loop is self._loop]
        plane: list[Local] = [*ingresses, *classes]
        replicas = [ingress.replica.statistics() for ingress in plane]
        return Load(
            waiting=sum(ingress.router.waiting for ingress in plane),
            ongoing=sum(ingress.router.ongoing for ingress in plane) + sum(s.ongoing for s in replicas),
            running=sum(s.running + s.websockets for s in replicas),
        )

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


class OnRay:
    """The app on the session's cluster."""

    def __init__(self, served: cluster.Served) -> None:
        self._served = served
        self.url = served.url
        instance = served.cluster.instance.status()
        (proxy,) = instance["proxies"][0]["replicas"]
        self._proxy = ray.get_actor(proxy["id"], namespace=NAMESPACE)
        self._replicas = [
            ray.get_actor(replica["id"], namespace=NAMESPACE)
            for ingress in served.status()["deployments"]
            for replica in ingress["replicas"]
        ]

    def spoken(self, ingress: str) -> str:
        return f"{self._served.spec.name}/{ingress}"

    async def load(self) -> Load:
        proxy = await self._proxy.statistics.remote()
        replicas = await asyncio.gather(*(replica.statistics.remote() for replica in self._replicas))
        calling = await asyncio.gather(*(replica.calling.remote() for replica in self._replicas))
        routers = [proxy, *(called for callers in calling for called in callers.values())]
        return Load(
            waiting=sum(router.waiting for router in routers),
            ongoing=sum(router.ongoing for router in routers) + sum(s.ongoing for s in replicas),
            running=sum(s.running + s.websockets for s in replicas),
        )

    @classmethod
    @contextmanager
    def running(cls, on: cluster.Cluster, module: str = contract.__name__) -> Iterator["OnRay"]:
        served = on.deploy(f"{module}:app", ROOT)
        try:
            assert served.status()["status"] == "healthy", served.status()
            yield cls(served)
        finally:
            served.delete()
