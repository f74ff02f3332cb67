"""Replicas that follow the load, on simulated processes and a clock turned by hand."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from app_toolkit.clock import ManualClock
from app_toolkit.config.models import ApplicationSpec, DeploymentConfig, IngressSpec
from app_toolkit.control.autoscale import FORGOTTEN_S, TICK_S
from app_toolkit.control.reconcile import Drain, Kill, ReplicaSetRecord, Start, Stop
from app_toolkit.control.replica_set import ReplicaSet
from app_toolkit.control.scaling import Scaling
from app_toolkit.observability.event_log import EventLog
from tests.control.harness import PROXY, harness
from tests.keys import key, sets_of

pytestmark = pytest.mark.anyio

CHAT = key("shop/chat")
LOOK_BACK_S, UP_S, DOWN_S = 5.0, 0.5, 10.0


def shop(number=None, *, cpus=0.1, sockets=1_000, streams=1_000, **config):
    quick = {"target_ongoing_requests": 2, "downscale_delay_s": DOWN_S, "max_replicas": 20}
    follows = {"num_replicas": number} if number is not None else {"autoscaling_config": {**quick, **config}}
    limits = {"max_open_websockets": sockets, "max_open_streams": streams}
    chat = DeploymentConfig(name="chat", resources={"num_cpus": cpus}, **limits, **follows)
    return ApplicationSpec(
        name="shop",
        target="shop:app",
        app_dir="/srv",
        route_prefix="/",
        default="chat",
        deployments=(IngressSpec(config=chat),),
        routes=(),
    )


class Load:
    """The loads that callers report, every second."""

    def __init__(self, harness):
        self.harness = harness
        self.said = {}

    async def live(self):
        while True:
            for caller, load in list(self.said.items()):
                self.harness.controller.report(caller, {CHAT: load})
            await self.harness.clock.sleep(1.0)

    def says(self, ongoing, *, waiting=0, websockets=0, streams=0, caller="proxy@home-1-1"):
        self.said[caller] = (waiting, ongoing, websockets, streams)
        self.harness.controller.report(caller, {CHAT: self.said[caller]})


@asynccontextmanager
async def loaded(deployed=None):
    async with harness(deployed=deployed) as h:
        load = Load(h)
        h.tasks.append(asyncio.create_task(load.live()))
        yield h, load


async def until_there_are(h, number, *, within_s=60.0):
    await h.until(
        lambda: (
            h.replica_set(CHAT).target == number and len(h.world.of(CHAT)) == number == len(h.world.of(CHAT, "running"))
        ),
        within_s=within_s,
    )


async def test_replicas_follow_the_load_and_the_story_says_why():
    async with loaded(shop()) as (h, load):
        began = h.clock.now()
        load.says(8, waiting=2)
        await until_there_are(h, 5, within_s=LOOK_BACK_S + UP_S + h.world.start_s + 0.5)
        scaled = h.logged("Scaled", subject=CHAT.name)
        assert [entry.cause.partition(":")[0] for entry in scaled] == [
            "from 1 to 2",
            "from 2 to 3",
            "from 3 to 4",
            "from 4 to 5",
        ]
        assert scaled[0].cause.endswith(": the load is 10, on average 3.1, and one replica is meant to have 2")
        scaling = h.replica_set(CHAT).scaling
        assert (scaling.load, scaling.needed, scaling.min_replicas, scaling.max_replicas) == (10, 5, 1, 20)
        assert scaling.why == scaled[-1].cause
        load.says(0)
        await until_there_are(h, 1)
        assert h.clock.now() - began > DOWN_S
        assert len(h.performed(Drain)) == len(h.performed(Stop)) == 4, "who goes drains first"
        assert not h.performed(Kill)


async def test_zero_is_reached_and_left_at_once():
    async with loaded(shop(min_replicas=0, downscale_to_zero_delay_s=4)) as (h, load):
        assert (h.replica_set(CHAT).target, h.word(), h.world.of(CHAT)) == (0, "healthy", [])
        began = h.clock.now()
        load.says(0, waiting=1)
        await h.until(lambda: h.world.of(CHAT, "running"), within_s=h.world.start_s + 0.2)
        await h.until(lambda: h.proxy.replicas(CHAT) == h.world.of(CHAT), within_s=0.2)
        assert h.clock.now() - began <= h.world.start_s + 0.5
        load.says(0)
        await until_there_are(h, 0)
        assert h.proxy.replicas(CHAT) == []
        assert len(h.performed(Drain)) == 1
        assert h.word() == "healthy"


async def test_a_new_deployment_begins_as_its_config_says_and_one_that_had_a_number_with_that():
    async with loaded(shop(initial_replicas=3)) as (h, _):
        assert h.replica_set(CHAT).target == 3
        await h.deploy(shop(4))
        await until_there_are(h, 4)
        assert h.replica_set(CHAT).scaling is None
        await h.deploy(shop(initial_replicas=1))
        await h.clock.advance(2.0)
        assert h.replica_set(CHAT).target == 4
        assert not h.performed(Drain)


async def test_to_apply_again_or_to_change_how_the_load_is_followed_keeps_the_target_and_restarts_nothing():
    async with loaded(shop()) as (h, load):
        load.says(10)
        await until_there_are(h, 5)
        await h.deploy(shop())
        await h.clock.advance(1.0)
        assert h.replica_set(CHAT).target == 5
        await h.deploy(shop(target_ongoing_requests=1))
        await h.clock.advance(0.1)
        assert h.replica_set(CHAT).target == 5
        await until_there_are(h, 10)
        assert not h.performed(Drain)
        await h.deploy(shop(max_replicas=7))
        await until_there_are(h, 7)
        assert len(h.performed(Start, CHAT)) == 10, "whoever stayed was left alone"


async def test_open_websockets_are_a_load_by_the_places_that_they_take():
    async with loaded(shop(min_replicas=0, downscale_delay_s=1)) as (h, load):
        load.says(0, websockets=1)
        await until_there_are(h, 1)
        await h.clock.advance(60.0)
        assert h.replica_set(CHAT).target == 1, "one that is open keeps the last replica"
        load.says(1, websockets=50)  # 100 requests or 1,000 WebSockets: one is a tenth of a request
        await until_there_are(h, 3)
        assert h.replica_set(CHAT).scaling.load == 6
        await h.deploy(shop(min_replicas=0, downscale_delay_s=1, sockets=500))
        await until_there_are(h, 6)
        assert h.replica_set(CHAT).scaling.load == 11
        await h.deploy(shop(min_replicas=0, downscale_delay_s=1, sockets=0))
        await until_there_are(h, 1)
        load.says(0)
        await until_there_are(h, 0)


async def test_a_caller_that_has_gone_is_forgotten_at_once():
    async with loaded(shop()) as (h, load):
        [proxy] = h.world.of(PROXY)
        load.says(4, caller=proxy)
        load.says(3, caller="driver-1")
        await h.clock.advance(0.1)
        assert h.replica_set(CHAT).scaling.load == 7
        del load.said[proxy]
        h.world.crash(proxy)
        await h.clock.advance(0.1)
        assert h.replica_set(CHAT).scaling.load == 3
        del load.said["driver-1"]
        h.controller.forget("driver-1")
        assert h.replica_set(CHAT).scaling.load == 0


async def test_the_load_of_a_deployment_without_autoscaling_is_ignored():
    async with loaded(shop(2)) as (h, _):
        assert h.controller.report("a caller", {CHAT: (0, 50, 0, 0), key("no/such"): (1, 1, 0, 0)})
        await h.clock.advance(20.0)
        assert (h.replica_set(CHAT).target, h.replica_set(CHAT).scaling) == (2, None)


async def test_snapshot_says_which_loads_to_report():
    async with loaded(shop()) as (h, _):
        await h.until(lambda: h.proxy.view[f"replicas/{CHAT}"]["reported"])
        await h.deploy(shop(1))
        await h.until(lambda: not h.proxy.view[f"replicas/{CHAT}"]["reported"])


# After a restart of the controller


async def test_next_controller_keeps_the_running_replicas_until_it_knows_the_load():
    async with loaded(shop()) as (h, load):
        load.says(10)
        await until_there_are(h, 5)
        replicas = h.world.of(CHAT)
        load.said.clear()
        await h.controller_dies()
        await h.controller_starts()
        began = h.clock.now()
        await h.until(lambda: h.replica_set(CHAT).target != 5, within_s=60)
        assert h.clock.now() - began >= FORGOTTEN_S + LOOK_BACK_S + DOWN_S
        await until_there_are(h, 1)
        assert len(h.performed(Start, CHAT)) == len(replicas) == 5


async def test_leaving_replica_is_not_replaced():
    async with loaded(shop()) as (h, load):
        h.world.drain_s = 8.0
        load.says(10)
        await until_there_are(h, 5)
        load.says(4)
        await h.until(lambda: len(h.world.of(CHAT, "draining")) == 3)
        await h.controller_dies()
        h.world.answer_s = 1.0
        await h.controller_starts()
        assert not h.controller.report("proxy@home-1-1", {CHAT: (0, 4, 0, 0)}), "nobody knows yet how many there are"
        await until_there_are(h, 2)
        assert len(h.performed(Start, CHAT)) == 5


# What wakes the controller


async def test_deployment_without_replicas_starts_at_once_after_a_restart_of_the_controller():
    async with loaded(shop(min_replicas=0, initial_replicas=2, downscale_to_zero_delay_s=1)) as (h, load):
        await until_there_are(h, 0)
        await h.controller_dies()
        await h.controller_starts()
        await h.clock.advance(5.0)
        assert (h.replica_set(CHAT).target, h.world.of(CHAT)) == (0, [])
        load.says(0, waiting=3)
        await h.until(lambda: h.world.of(CHAT, "running"), within_s=h.world.start_s + 0.2)


def begun(**config):
    """An autoscaler of one replica set with a replica, on time as it is given."""
    scaling = Scaling(EventLog(ManualClock().now))
    specs = sets_of(shop(**config))
    known = {CHAT: ReplicaSet(ReplicaSetRecord(CHAT))}
    specs = scaling.scaled(specs, known, 0.0)
    known = {CHAT: ReplicaSet(ReplicaSetRecord(CHAT), specs[CHAT], desired=True)}
    assert list(scaling.decide(known, 0.0)) == []
    return scaling, known


def test_report_without_effect_does_not_wake_the_controller():
    scaling, known = begun()
    scaling.add_loads("one", {CHAT: (0, 2, 0, 0)}, 20.0)
    list(scaling.decide(known, 20.0))
    assert not scaling.has_changed
    for second in range(21, 40):
        scaling.add_loads("one", {CHAT: (0, 2, 0, 0)}, float(second))
        assert not scaling.has_changed
        if scaling.due is not None and scaling.due <= second:
            assert list(scaling.decide(known, float(second))) == []
    scaling.add_loads("one", {CHAT: (0, 20, 0, 0)}, 40.0)
    assert scaling.has_changed
    assert list(scaling.decide(known, 40.0)) == []
    assert scaling.due == pytest.approx(40.0 + TICK_S)


def test_removed_replica_set_has_no_target_and_comes_back_as_new():
    scaling, known = begun(initial_replicas=4)
    scaling.add_loads("one", {CHAT: (0, 20, 0, 0)}, 1.0)
    assert scaling.scaled({}, known, 2.0) == {}
    assert (scaling.status(2.0), scaling.due) == ({}, None)
    specs = sets_of(shop(initial_replicas=4))
    orphaned = {CHAT: ReplicaSet(ReplicaSetRecord(CHAT), specs[CHAT], desired=False)}
    assert scaling.scaled(specs, orphaned, 3.0)[CHAT].target == 4
