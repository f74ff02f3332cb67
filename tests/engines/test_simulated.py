"""The simulated engine keeps the contract that the controller relies on."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from app_toolkit.clock import ManualClock
from app_toolkit.core.reconcile import Drain, Kill, Probe, Start, Stop
from app_toolkit.core.replica_state import (
    Drained,
    Exited,
    Found,
    Placed,
    ProbeFailed,
    ProbePassed,
    Started,
    Unplaceable,
)
from app_toolkit.engines.memory import MemoryStore
from app_toolkit.engines.simulated import HOME, SimulatedLauncher, World
from app_toolkit.errors import Conflict
from app_toolkit.interfaces import Location, ReloadableOptions, ReplicaSpec, Resources
from app_toolkit.types import Address, ReplicaId

pytestmark = pytest.mark.anyio

A, B = ReplicaId("shop.chat-1-1"), ReplicaId("shop.chat-1-2")


def start(id=A):
    spec = ReplicaSpec(id, "shop", "chat", "v1", "shop:app", "/srv", "", ReloadableOptions(100), 20.0)
    return Start(spec, Resources(0.1), "shop/chat", "v1")


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


async def test_a_start_is_reported_when_the_process_is_ready():
    async with bench() as b:
        assert await b.does(start()) == [Placed(A), Started(A, Location(Address(f"unix:/simulated/{A}"), HOME))]
        assert await b.does(start()) == [], "to start what exists is success"


async def test_a_failed_start_is_reported_with_its_error():
    async with bench() as b:
        b.world.broken["shop/chat"] = "ImportError"
        assert await b.does(start()) == [Placed(A), Exited(A, "ImportError")]


async def test_a_drain_a_stop_and_a_kill_are_reported():
    async with bench() as b:
        await b.does(start(), start(B))
        assert await b.does(Drain(A, 5.0)) == [Drained(A)]
        assert await b.does(Stop(A, 5.0)) == [Exited(A)]
        assert await b.does(Kill(B, "enough")) == [Exited(B, "enough")]
        assert b.world.processes == {}


async def test_a_probe_asks_the_process():
    async with bench() as b:
        assert await b.does(start(), Probe(A, 1.0), seconds=0.5) == [
            Placed(A),
            ProbeFailed(A, "it is starting"),
        ]
        await b.does()
        assert await b.does(Probe(A, 1.0)) == [ProbePassed(A)]


async def test_an_action_on_an_ended_process_reports_its_exit():
    async with bench() as b:
        for action in (Drain(A, 5.0), Stop(A, 5.0), Kill(A, "x"), Probe(A, 1.0)):
            assert [type(event) for event in await b.does(action)] == [Exited]


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


async def test_processes_found_after_a_restart_report_their_state():
    async with bench() as b:
        await b.does(start())
        launcher, events = b.another(2)
        assert await launcher.found() == [A]
        await b.clock.advance(1.0)
        there = Location(Address(f"unix:/simulated/{A}"), HOME)
        assert events == [Found(A, "shop/chat", "v1", "running", there, ReloadableOptions(100))]
        b.world.crash(A)
        await b.clock.advance(1.0)
        assert events[-1] == Exited(A, "it was killed with signal 9")
        assert b.events[-1] != events[-1], "the one before hears nothing any more"


async def test_an_action_of_an_earlier_epoch_is_refused():
    async with bench() as b:
        await b.does(start())
        b.another(2)
        assert await b.does(Kill(A, "late")) == []
        assert b.world.refused == [Kill(A, "late")]
        assert A in b.world.processes


async def test_a_memory_store_compares_before_it_sets():
    store = MemoryStore()
    await store.compare_and_set("a/1", None, b"x")
    with pytest.raises(Conflict, match="a/1"):
        await store.compare_and_set("a/1", None, b"y")
    await store.compare_and_set("a/1", b"x", b"y")
    assert await store.get("a/1") == b"y"
    assert await store.keys("a/") == ["a/1"]
    await store.delete("a/1")
    await store.delete("a/1")
    assert await store.get("a/1") is None
    assert await asyncio.gather(store.keys("")) == [[]]
