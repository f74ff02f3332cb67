"""The worlds in which launchers start processes, each with what a test does to these beside the launcher."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import httpx
import pytest
import ray

from app_toolkit.clock import ManualClock
from app_toolkit.config.models import DeploymentConfig
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.control.reconcile import Start
from app_toolkit.control.replica_state import Started
from app_toolkit.engines.processes.launcher import LocalProcesses
from app_toolkit.engines.processes.services import SUPERVISOR, ProcessServices
from app_toolkit.engines.ray import launcher as on_ray
from app_toolkit.engines.ray.launcher import RayProcesses
from app_toolkit.host.launcher import ProcessLauncher
from app_toolkit.host.store import new_secret
from app_toolkit.interfaces import Launcher, ReloadableOptions, Resources
from app_toolkit.types import Address, ReplicaId
from app_toolkit.wire import hop
from tests.engines.contract import bad, lone
from tests.engines.contract.ground import Ground, eventually
from tests.keys import key
from tests.patience import PATIENCE_S
from tests.simulated import SimulatedLauncher, World

ROOT = Path(__file__).parents[3]
LIVE = ReloadableOptions(10)
WORKING, FAILING = key("contract/working"), key("contract/failing")


class Bench(Protocol):
    """One world, empty at first. Its app notes its life, and has a request that ends when it is let go."""

    def launcher(self) -> Launcher: ...

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until it is so. Raises `TimeoutError`."""
        ...

    def starts(self) -> int:
        """How many processes have come up."""
        ...

    async def occupy(self, replica: Started) -> None:
        """Have it run a request."""
        ...

    async def refuses(self, replica: Started) -> None:
        """Wait until it admits nobody new."""
        ...

    async def let_go(self) -> None:
        """Let what runs end, as it should."""
        ...


def start(id: ReplicaId, ground: Path, replica_set: ReplicaSetKey = WORKING) -> Start:
    app = bad if replica_set == FAILING else lone
    spec = ReplicaSpec(
        id=id,
        application="contract",
        config=DeploymentConfig(name=replica_set.deployment),
        target=f"{app.__name__}:app",
        app_dir=str(ROOT),
        root_path="",
        reloadable=LIVE,
        working_dir=str(ground),
    )
    return Start(spec, Resources(0.1), replica_set, "v1")


class Simulated:
    """Processes that are records, and a clock that turns while somebody waits."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self._world = World(self._clock)
        self._world.broken[FAILING] = "RuntimeError: the model file is missing"

    def launcher(self) -> Launcher:
        return SimulatedLauncher(self._world)

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(200):
            if condition():
                return
            await self._clock.advance(0.05)
        raise TimeoutError("it never came about")

    def starts(self) -> int:
        return len(self._world.of(WORKING))

    async def occupy(self, replica: Started) -> None:
        """A drain takes a while here, whatever runs."""

    async def refuses(self, replica: Started) -> None:
        assert replica.replica in self._world.of(WORKING, "draining")

    async def let_go(self) -> None:
        pass

    @classmethod
    @asynccontextmanager
    async def running(cls, ground: Ground) -> AsyncIterator["Simulated"]:
        bench = cls()
        yield bench
        await bench._world.aclose()


class Real:
    """Processes of an engine, with what a test does to them over their sockets."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._secret = new_secret()
        self._request: asyncio.Task[httpx.Response] | None = None

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await eventually(condition)

    def starts(self) -> int:
        return self._ground.notes.count("began")

    async def occupy(self, replica: Started) -> None:
        self._request = asyncio.create_task(self._get(replica.location.address, "/hold"))
        await self.until(lambda: "held" in self._ground.notes)

    async def refuses(self, replica: Started) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (response := await self._get(replica.location.address, "/who")).status_code != 503:
                assert response.json() == "lone"
        assert response.headers[hop.REFUSED.decode()] == "draining"

    async def let_go(self) -> None:
        assert self._request is not None
        assert not self._request.done()
        self._ground.open("hold")
        assert (await self._request).json() == "let go"

    async def _get(self, address: Address, path: str) -> httpx.Response:
        kind, _, socket = address.partition(":")
        assert kind == "unix"
        async with httpx.AsyncClient(
            base_url="http://replica", transport=httpx.AsyncHTTPTransport(uds=socket, verify=False), timeout=PATIENCE_S
        ) as client:
            return await client.get(path)


class OnRay(Real):
    """Actors on the session's cluster, in a namespace that its controller knows nothing of."""

    def launcher(self) -> Launcher:
        return ProcessLauncher(RayProcesses(), self._secret)

    @classmethod
    @asynccontextmanager
    async def running(cls, ground: Ground) -> AsyncIterator["OnRay"]:
        namespace = f"contract {ground.folder.name}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(on_ray, "NAMESPACE", namespace)
            try:
                yield cls(ground)
            finally:
                for actor in ray.util.list_named_actors(all_namespaces=True):
                    if actor["namespace"] == namespace:
                        with contextlib.suppress(ValueError):
                            ray.kill(ray.get_actor(actor["name"], namespace=namespace))


class OnProcesses(Real):
    """Processes of a supervisor whose controller does nothing. All of them have ended after a test."""

    def __init__(self, ground: Ground, services: ProcessServices) -> None:
        super().__init__(ground)
        self._services = services

    def launcher(self) -> Launcher:
        return ProcessLauncher(LocalProcesses(self._services), self._secret)

    @classmethod
    @asynccontextmanager
    async def running(cls, session: str, ground: Ground) -> AsyncIterator["OnProcesses"]:
        services = ProcessServices(session)
        yield cls(ground, services)
        supervisor = services.peer(SUPERVISOR)
        while running := await supervisor.call("running"):
            for name in running:
                await supervisor.call("kill", name)
        await services.aclose()
