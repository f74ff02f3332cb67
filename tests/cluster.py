"""One instance of each engine for the whole session. Each test deploys under a prefix of its own."""

import itertools
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import ray

from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.config.settings import RUNTIME_DIR
from app_toolkit.control.operations import Delete, Deploy
from app_toolkit.control.queries import GetStatus
from app_toolkit.declare.planning import plan
from app_toolkit.engines.processes.client import ProcessClient
from app_toolkit.engines.processes.engine import ProcessEngine
from app_toolkit.engines.processes.services import SUPERVISOR
from app_toolkit.engines.ray.actors import NAMESPACE
from app_toolkit.engines.ray.starting import start_instance
from app_toolkit.errors import ConfigError
from app_toolkit.operate.remote import RemoteClient
from app_toolkit.userapp.loading import load
from app_toolkit.userapp.target import served
from app_toolkit.wire.sockets import CREDENTIALS
from tests.patience import PATIENCE_S

E2E = Path(__file__).parent / "e2e"


class Cluster:
    """What the tests do with the session's instance on one engine."""

    def __init__(self, client: RemoteClient, pid: Callable[[str], int], folder: str = "") -> None:
        """Describe an instance.

        Parameters:
            client: Its client.
            pid: Returns the process of the controller, a proxy or a replica by its name.
            folder: The runtime folder in which commands find it; empty: the one of this process.
        """
        self.client = client
        self.pid = pid
        self.folder = folder
        self._numbers = itertools.count(1)

    def deploy(
        self, target: str, folder: Path = E2E, *, name: str | None = None, held: bool = True, **options: Any
    ) -> "Served":
        """Deploy an app that is imported from this folder, and wait until it is healthy, or has failed.

        `name`: of the application and its prefix, by default a new one. `held`: no other process updates it.
        """
        name = name or f"t{next(self._numbers)}"
        spec = plan(
            served(load(target, str(folder)), target),
            target=target,
            app_dir=str(folder),
            name=name,
            **{"route_prefix": f"/{name}", **options},
        )
        return self.apply(spec, held=held)

    def apply(self, spec: ApplicationSpec, *, held: bool = True) -> "Served":
        self.update(spec, HTTPOptions(port=0, admin=False), held=held)
        served = Served(self, spec)
        served.wait(lambda now: now["status"] in ("healthy", "failed", "rolled_back"))
        self.wait_for_the_proxy()
        return served

    def update(self, spec: ApplicationSpec, http: HTTPOptions = HTTPOptions(), *, held: bool = True) -> int:
        """Deploy it as it is; gives the application's revision. `http`: the options of the proxies that change."""
        return self.client.execute(Deploy(spec, http, owner=self.client.owner if held else None))

    def status(self) -> Mapping[str, Any]:
        """The instance, as plain data."""
        return asdict(self.client.execute(GetStatus()))

    def wait_for_the_proxy(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.status()["proxies"][0]["status"] != "healthy":
            assert time.monotonic() < deadline, self.status()["proxies"]
            time.sleep(0.05)

    def address(self) -> str:
        """Where others join it."""
        if isinstance(self.client, ProcessClient):
            return self.client.services.session
        return str(ray.get_runtime_context().gcs_address)

    def proxy_url(self) -> str:
        url = self.client.execute(GetStatus()).url
        if url is None:
            raise ConfigError("no proxy is up")
        return url

    def controller_pid(self) -> int:
        return self.pid("controller")

    def proxy_pid(self) -> int:
        (proxy,) = self.status()["proxies"][0]["replicas"]
        return self.pid(proxy["id"])


class Served:
    """One application on the session's cluster."""

    def __init__(self, cluster: Cluster, spec: ApplicationSpec) -> None:
        self.cluster = cluster
        self.spec = spec

    @property
    def url(self) -> str:
        return self.cluster.proxy_url() + self.spec.route_prefix

    def client(self) -> httpx.Client:
        # Nothing here is HTTPS, and to read the certificates of all authorities takes longer than most requests.
        return httpx.Client(base_url=self.url, trust_env=False, verify=False, timeout=PATIENCE_S)

    def status(self) -> Mapping[str, Any]:
        applications = self.cluster.status()["applications"]
        return next((a for a in applications if a["name"] == self.spec.name), {"status": "unknown", "deployments": ()})

    def ingress(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = next(i for i in self.status()["deployments"] if i["name"].rpartition("/")[2] == name)
        return found

    def wait(self, condition: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while not condition(now := self.status()):
            assert time.monotonic() < deadline, f"it never came about: {now}"
            time.sleep(0.05)
        return now

    def delete(self) -> None:
        self.cluster.client.execute(Delete(self.spec.name))
        self.wait(lambda now: now["status"] == "unknown")


@contextmanager
def running() -> Iterator[Cluster]:
    """The session's fixture `cluster`, and nothing else, enters this."""
    os.environ["RAY_allow_out_of_band_object_ref_serialization"] = "0"
    client = start_instance(num_cpus=4)
    try:
        yield Cluster(client, _pid_of_actor)
    finally:
        client.shutdown()


def _pid_of_actor(name: str) -> int:
    handle: Any = ray.get_actor(name, namespace=NAMESPACE)
    pid: int = ray.get(handle.here.remote())
    return pid


@contextmanager
def running_on_processes() -> Iterator[Cluster]:
    """The session's fixture `processes`, and nothing else, enters this."""
    with tempfile.TemporaryDirectory() as folder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(RUNTIME_DIR, folder)  # commands of other tests must not find this instance
            client = ProcessEngine().start(address=None)
        assert isinstance(client, ProcessClient)
        try:
            yield Cluster(client, partial(_pid_of_process, client), folder)
        finally:
            client.shutdown()


def _pid_of_process(client: ProcessClient, name: str) -> int:
    status = client.execute(GetStatus())
    replica_sets = status.deployments
    for replica in (replica for each in replica_sets for replica in each.replicas if replica.id == name):
        return _listening_at(str(replica.address).removeprefix("unix:"))
    role = "at-controller" if name == "controller" else "at-proxy"
    supervisor = psutil.Process(_listening_at(client.services.path_of(SUPERVISOR)))
    for process in supervisor.children():
        with suppress(psutil.NoSuchProcess):  # a replica of an earlier test ends now
            if process.name() == role:
                return process.pid
    raise LookupError(f"no process of the supervisor is called {role}")


def _listening_at(path: str) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid: int = CREDENTIALS.unpack(credentials)[0]
    return pid
