"""A controller on simulated processes and a clock turned by hand, and what is applied to it."""

import asyncio
from contextlib import asynccontextmanager

from app_toolkit.clock import ManualClock
from app_toolkit.config.models import (
    ApplicationSpec,
    DeploymentConfig,
    HTTPOptions,
    IngressSpec,
    ResourceOptions,
    Route,
)
from app_toolkit.contract.identity import ReplicaSetKey, replica_set_of
from app_toolkit.control.controller import Controller
from app_toolkit.control.operations import Deploy
from app_toolkit.control.rollback import Rollback
from app_toolkit.errors import ControlError
from app_toolkit.interfaces import REPLICAS
from tests.keys import key, proxies_of
from tests.memory import MemoryStore
from tests.simulated import HOME, SimulatedLauncher, World

SHOP = key("shop/shop")
CHAT = key("shop/chat")
PROXY = proxies_of(HOME)


def application(name="shop", *, replicas=1, chat=2, prefix="/", cpus=0.1, per_node=None, **options):
    return ApplicationSpec(
        name=name,
        target="shop:app",
        app_dir="/srv",
        route_prefix=prefix,
        default=name,
        deployments=(
            IngressSpec(config=DeploymentConfig(name=name, num_replicas=replicas, **options)),
            IngressSpec(
                config=DeploymentConfig(
                    name="chat",
                    num_replicas=chat,
                    max_replicas_per_node=per_node,
                    resources=ResourceOptions(num_cpus=cpus),
                    **options,
                )
            ),
        ),
        routes=(Route(kind="http", pattern="^/chat$", methods=("POST",), path="/chat", owner="chat"),),
    )


class Caller:
    """A proxy's side of the publisher: watches, takes up, and comes back."""

    def __init__(self, harness, name):
        self.harness, self.name = harness, name
        self.seen, self.view = {}, {}
        self.reads = True

    async def live(self):
        while True:
            try:
                news = await self.harness.controller.watch(self.name, dict(self.seen), prefix=("", REPLICAS))
            except ControlError:
                await self.harness.clock.sleep(0.5)
                continue
            while not self.reads:
                await self.harness.clock.sleep(0.1)
            for name, snapshot in news.items():
                if snapshot.value is None:
                    self.seen.pop(name, None)
                    self.view.pop(name, None)
                else:
                    self.seen[name], self.view[name] = snapshot.version, snapshot.value

    def replicas(self, replica_set):
        return [replica["id"] for replica in self.view[f"replicas/{replica_set}"]["replicas"]]


class Harness:
    """A world, a store, and one controller after another."""

    def __init__(self):
        self.clock = ManualClock()
        self.world = World(self.clock)
        self.store = MemoryStore()
        self.controllers = []
        self.tasks = []

    async def controller_starts(self, *, lasting=False, **options):
        self.controller = Controller(self.store, SimulatedLauncher(self.world), self.clock, lasting=lasting)
        await self.controller.start(**options)
        self.run = asyncio.create_task(self.controller.run())
        self.controllers.append(self.controller)
        self.tasks.append(self.run)
        return self.controller

    async def controller_dies(self):
        self.run.cancel()
        await asyncio.gather(self.run, return_exceptions=True)

    async def change(self, operation):
        return await self.controller.change(operation)

    async def deploy(self, spec, http=None, **options):
        return await self.change(Deploy(spec, http or HTTPOptions(), **options))

    async def rollback(self, name):
        """Return to the last stable revision of an application, whatever its number is."""
        return await self.change(Rollback(name, self.controller.desired.state().application(name).revision))

    def deployed(self, name):
        """The current revision of an application, and the number of the one that was deployed last."""
        application = self.controller.desired.state().application(name)
        return application.main.spec, application.revision

    def caller(self, name="a caller"):
        caller = Caller(self, name)
        self.tasks.append(asyncio.create_task(caller.live()))
        return caller

    async def until(self, condition, *, within_s=30.0):
        deadline = self.clock.now() + within_s
        while not condition():
            assert self.clock.now() < deadline, f"not within {within_s:g} s: {self.controller.status()}"
            await self.clock.advance(0.1)

    async def until_healthy(self, **options):
        await self.until(lambda: self.word() == "healthy", **options)

    def stall(self, seconds):
        self.clock.stall(seconds)

    def word(self, application="shop"):
        live = self.live(application)
        return None if live is None else live.status

    def live(self, name="shop"):
        """The status of an application, or of a candidate, `APPLICATION@REVISION`; None: there is none."""
        application, _, revision = name.partition("@")
        found = self.controller.status().application(application)
        return found.live(int(revision)) if found is not None and revision else found

    def replica_set(self, key):
        status = self.controller.status()
        if isinstance(key, ReplicaSetKey):
            return next(g for g in (*status.deployments, *status.leaving) if g.key == key)
        return next(g for g in status.proxies if g.name == key.name)

    def performed(self, kind, replica_set=None):
        return [
            a for a in self.world.performed if isinstance(a, kind) and replica_set in (None, replica_set_of(a.replica))
        ]

    def proxies(self, phase=None):
        """All of them, on every node."""
        return [
            id for replica_set in {PROXY, *map(proxies_of, self.nodes())} for id in self.world.of(replica_set, phase)
        ]

    def replicas(self):
        """All processes of deployments."""
        return [id for id in self.world.processes if isinstance(replica_set_of(id), ReplicaSetKey)]

    def nodes(self):
        return {process.location.node for process in self.world.processes.values() if process.location is not None}

    def node(self, id):
        return self.world.processes[id].location.node

    def port(self, id):
        return self.world.processes[id].location.address.rpartition(":")[2]

    def logged(self, what, **where):
        return [entry for entry in self.controller.event_log.entries(**where) if entry.name == what]


@asynccontextmanager
async def harness(*, deployed=None, caller=True):
    harness = Harness()
    await harness.controller_starts()
    try:
        if caller:
            harness.proxy = harness.caller()
            await harness.clock.advance(0.1)
        if deployed is not None:
            await harness.deploy(deployed)
            await harness.until_healthy()
        yield harness
        for controller in harness.controllers:
            assert not [e for e in controller.event_log.entries() if e.name in ("Quarantined", "TickFailed")]
    finally:
        for task in harness.tasks:
            task.cancel()
        await asyncio.gather(*harness.tasks, return_exceptions=True)
        await harness.world.aclose()
