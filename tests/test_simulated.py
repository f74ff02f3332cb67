"""The simulated engine keeps the contract that the controller relies on."""

from contextlib import asynccontextmanager

import pytest

from app_toolkit.clock import ManualClock
from app_toolkit.config.models import DeploymentConfig
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.control.reconcile import Drain, Kill, Probe, Start, Stop
from app_toolkit.control.replica_state import Exited, Placed, Started, Unplaceable
from app_toolkit.interfaces import ReloadableOptions, Resources
from app_toolkit.types import ReplicaId
from tests.keys import key
from tests.simulated import SimulatedLauncher, World

pytestmark = pytest.mark.anyio

A, B = ReplicaId("shop.chat-1-1"), ReplicaId("shop.chat-1-2")


def start(id=A):
    spec = ReplicaSpec(id, "shop", DeploymentConfig(name="chat"), "shop:app", "/srv", "", ReloadableOptions(100))
    return Start(spec, Resources(0.1), key("shop/chat"), "v1")


class Bench:
    def __init__(self):
        self.clock = ManualClock()
        self.world = World(self.clock)
        self.launcher, self.events = self.another(1)

    def another(self, epoch):
        launcher, events = SimulatedLauncher(self.world), []
        launcher.listen(events.append, epoch)
        return launcher, events

    async def does(self, *actions, seconds=2.0):
        self.events.clear()
        for action in actions:
            self.launcher.perform(action)
        await self.clock.advance(seconds)
        return list(self.events)


@asynccontextmanager
async def bench():
    b = Bench()
    try:
        yield b
    finally:
        await b.launcher.aclose()
        await b.world.aclose()


async def test_an_unresponsive_process_can_be_killed():
    async with bench() as b:
        await b.does(start())
        b.world.processes[A].deaf = True
        assert await b.does(Probe(A, 1.0), Drain(A, 1.0), Stop(A, 1.0)) == []
        assert await b.does(Kill(A, "deaf")) == [Exited(A, "deaf")]


async def test_a_start_without_resources_is_reported_until_there_are_some():
    async with bench() as b:
        b.world.room = 1
        await b.does(start())
        assert await b.does(start(B), seconds=12.0) == [Unplaceable(B, "0.1 CPU", "0 CPU")] * 2
        b.world.crash(A)
        assert [type(event) for event in await b.does(seconds=12.0)] == [Exited, Placed, Started]


async def test_events_are_lost_and_late_as_scripted():
    async with bench() as b:
        b.world.lost = {Placed}
        b.world.late = {Started: 5.0}
        assert await b.does(start()) == []
        assert [type(event) for event in await b.does(seconds=5.0)] == [Started]
