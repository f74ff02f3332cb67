"""The controller on simulated processes and a clock turned by hand."""

import asyncio
import itertools
import json
import random
from collections import Counter
from dataclasses import asdict

import pytest

from app_toolkit.config.models import (
    ApplicationSpec,
    ClassConfig,
    ClassSpec,
    HTTPOptions,
)
from app_toolkit.control.checkpoint import decode_checkpoint
from app_toolkit.control.controller import GAP_S, RECOVERY_S
from app_toolkit.control.operations import Delete, Deploy
from app_toolkit.control.proxies import EMPTY_S
from app_toolkit.control.reconcile import Drain, Kill, Probe, Start, Stop
from app_toolkit.control.replica_state import Drained, Exited, Found, Reconfigured, Started
from app_toolkit.errors import ConfigError, ControlError, StaleEpoch
from app_toolkit.types import NodeId
from tests.control.harness import CHAT, PROXY, SHOP, application, harness
from tests.keys import key
from tests.simulated import HOME

pytestmark = pytest.mark.anyio


async def test_applied_application_starts_and_status_shows_it():
    async with harness() as h:
        await h.deploy(application(), HTTPOptions(port=8123))
        assert h.word() == "starting"
        await h.until_healthy()
        assert len(h.world.of(SHOP, "running")) == 1
        assert len(h.world.of(CHAT, "running")) == 2
        await h.until(lambda: "replicas/shop/chat" in h.proxy.view and h.proxy.replicas(CHAT) == h.world.of(CHAT))
        assert h.replica_set(PROXY).replicas[0].address == "tcp:127.0.0.1:8123"
        [app] = h.proxy.view["routes"]["applications"]
        assert app == {
            "prefix": "/",
            "target": {"name": "shop", "replica_set": "shop/shop", "weight": 1.0, "tag": None, "mirror": 0.0},
            "routes": [{"kind": "http", "pattern": "^/chat$", "methods": ["POST"], "path": "/chat", "owner": "chat"}],
            "compared": False,
            "is_main": True,
            "root_path": "",
            "cors": [],
        }
        assert h.proxy.view["replicas/shop/shop"]["policy"]["max_queued_requests"] == 1_000
        [start] = h.performed(Start, SHOP)
        assert (start.spec.target, start.spec.root_path, start.resources.num_cpus) == ("shop:app", "", 0.1)
        assert json.dumps(asdict(h.controller.status()))


async def test_a_proxys_port_outlives_the_controller_that_learned_it():
    async with harness(deployed=application()) as h:
        [proxy] = h.world.of(PROXY)
        address = h.controller.status().proxies[0].replicas[0].address
        assert address is not None
        port = int(address.rpartition(":")[2])
        await h.controller_dies()
        h.world.crash(proxy)
        await h.controller_starts()
        await h.until_healthy()
        assert [start.spec.options["port"] for start in h.performed(Start, PROXY)][-1] == port


async def test_callers_refuse_requests_while_replicas_that_crash_at_once_are_held_back():
    async with harness(deployed=application()) as h:
        cannot_start = []
        for _ in range(7):
            await h.until(lambda: h.world.of(SHOP, "running"), within_s=60)
            await h.until(lambda: h.proxy.replicas(SHOP))
            h.world.crash(h.world.of(SHOP)[0], "it was killed with signal 11")
            await h.until(lambda: not h.proxy.replicas(SHOP))
            cannot_start.append(h.proxy.view[f"replicas/{SHOP}"]["cannot_start"])
        assert cannot_start == [*[None] * 4, *[{"why": "held_back", "exception": None}] * 3]
        await h.until(lambda: h.world.of(SHOP), within_s=60)
        await h.until(lambda: h.proxy.view[f"replicas/{SHOP}"]["cannot_start"] is None, within_s=1)


async def test_reconfiguration_is_rolled_back_if_it_fails_in_all_replicas():
    async with harness(deployed=application()) as h:
        before = h.world.of(CHAT)
        h.world.stubborn[CHAT] = h.world.broken[CHAT] = "no such model"
        await h.deploy(application(max_ongoing_requests=7))
        await h.until(lambda: h.word() == "rolled_back")
        assert h.proxy.replicas(CHAT) == h.world.of(CHAT, "running") == before
        h.world.stubborn.clear()
        h.world.broken.clear()
        await h.until(lambda: h.replica_set(CHAT).status == "healthy")
        assert h.world.of(CHAT, "running") == before
        assert {h.world.processes[id].reloadable.max_ongoing_requests for id in before} == {100}


async def test_a_replica_drains_only_once_every_caller_has_let_go_of_it():
    async with harness(deployed=application()) as h:
        h.proxy.reads = False
        await h.deploy(application(chat=1))
        await h.until(lambda: h.logged("Retire"))
        await h.clock.advance(5.0)
        assert not h.performed(Drain)
        assert len(h.world.of(CHAT, "running")) == 2
        h.proxy.reads = True
        await h.until(lambda: h.performed(Drain), within_s=1.0)
        await h.until(lambda: len(h.world.of(CHAT)) == 1)


async def test_restarted_controller_adopts_running_replicas_and_restarts_none():
    async with harness(deployed=application()) as h:
        before = dict(h.world.processes)
        await h.controller_dies()
        h.world.performed.clear()
        await h.controller_starts()
        assert h.controller.epoch == 2
        assert h.replica_set(CHAT).counts == {"recovering": 2}
        await h.until_healthy()
        await h.clock.advance(60.0)
        assert h.world.processes == before
        assert all(isinstance(action, Probe) for action in h.world.performed)
        await h.until(lambda: h.proxy.seen["replicas/shop/chat"].epoch == 2)
        assert h.proxy.replicas(CHAT) == h.world.of(CHAT)


async def test_a_controller_that_wakes_up_with_an_old_epoch_does_nothing():
    async with harness(deployed=application()) as h:
        old, run, store = h.controller, h.run, h.store
        await h.controller_starts()
        await h.until_healthy()
        h.world.performed.clear()
        # Time passes for nobody but the old one: every probe of its is overdue by a minute.
        old.ticked -= 60.0
        old.inbox.wake()
        await h.until(run.done)
        with pytest.raises(StaleEpoch):
            await old.change(Deploy(application(chat=5)))
        with pytest.raises(StaleEpoch):
            await old.watch("a caller", {})
        kept = json.loads(decode_checkpoint("applications/shop", await store.get("applications/shop")))
        assert kept["main"]["desired"][1]["deployments"][1]["config"]["num_replicas"] == 2
        assert h.world.refused == []
        assert not [action for action in h.world.performed if not isinstance(action, Probe)]


async def test_controller_kills_no_replica_after_a_pause_of_a_minute():
    async with harness(deployed=application(health_check_failure_threshold=1)) as h:
        before = list(h.world.processes)
        h.world.start_s = 30.0
        await h.deploy(application(health_check_failure_threshold=1, chat=3))
        await h.until(lambda: h.world.of(CHAT, "starting"))
        h.stall(70.0)
        await h.until_healthy(within_s=60)
        assert h.logged("Suspended")
        assert not h.performed(Kill)
        assert set(before) < set(h.world.processes)


async def test_an_application_that_is_deleted_is_retired_and_another_one_left_alone():
    async with harness(deployed=application()) as h:
        await h.deploy(application("other", prefix="/other"))
        await h.until(lambda: h.word("other") == "healthy")
        others = h.world.of(key("other/other")) + h.world.of(key("other/chat"))
        await h.change(Delete("shop"))
        assert {replica_set.name for replica_set in h.controller.status().leaving} == {SHOP.name, CHAT.name}
        await h.until(lambda: not h.controller.status().leaving)
        assert set(h.replicas()) == {*others}
        await h.until(lambda: "replicas/shop/chat" not in h.proxy.view)
        assert [a["target"]["name"] for a in h.proxy.view["routes"]["applications"]] == ["other"]
        assert not h.performed(Kill)
        with pytest.raises(ConfigError, match="'shop'"):
            await h.change(Delete("shop"))


def packed(code, name="packed", prefix=None):
    return ApplicationSpec(
        name=name,
        target="__main__:Writer",
        code=code,
        app_dir="/srv",
        route_prefix=prefix,
        default=None if prefix is None else "writer",
        deployments=(ClassSpec(config=ClassConfig(name="writer"), methods={"write": "stream", "count": "sync"}),),
    )


async def test_packed_code_stays_while_a_revision_can_return_to_it():
    async with harness(deployed=application()) as h:
        await h.deploy(packed("1a"), code={"1a": b"one"})
        await h.until(lambda: h.word("packed") == "healthy")
        assert [start.spec.code for start in h.performed(Start, key("packed/writer"))] == ["1a"]
        await h.controller_dies()
        await h.controller_starts()
        assert await h.store.get("code/1a") == b"one"
        await h.deploy(packed("1a", name="twin"), code={"1a": b"one"})
        await h.deploy(packed("2b"), code={"2b": b"two"})
        assert await h.store.keys("code/") == ["code/1a", "code/2b"]
        await h.change(Delete("twin"))
        assert await h.store.keys("code/") == ["code/1a", "code/2b"], "it is what one goes back to"
        for code in ("2b", "3c", "4d", "5e", "5e"):
            await h.until(lambda: h.word("packed") == "healthy")
            await h.deploy(packed(code), code={code: code.encode()})
        assert await h.store.keys("code/") == ["code/2b", "code/3c", "code/4d", "code/5e"]
        await h.change(Delete("packed"))
        assert await h.store.keys("code/") == []
        assert b"one" not in json.dumps(asdict(h.controller.status())).encode()


NEXT = NodeId("next")


SAFE = {"port": 8443, "ssl_certfile": "/c.pem", "proxies_per_node": 2}


async def test_the_proxies_keep_their_options_after_the_last_delete_and_a_restart():
    async with harness() as h:
        await h.deploy(application(), HTTPOptions(**SAFE), initial=HTTPOptions(host="0.0.0.0"))
        await h.change(Delete("shop"))
        await h.controller_dies()
        await h.controller_starts()
        await h.deploy(application(), HTTPOptions(max_requests_per_client=None), initial=HTTPOptions(port=9000))
        safe = HTTPOptions(**SAFE, host="0.0.0.0", max_requests_per_client=None)
        assert h.controller.desired.state().http == safe


async def test_after_the_last_delete_the_proxy_stays_until_the_shutdown_and_has_no_routes():
    async with harness(deployed=application()) as h:
        [proxy] = h.proxies("running")
        await h.change(Delete("shop"))
        await h.until(lambda: not h.replicas())
        await h.clock.advance(60.0)
        assert h.proxies("running") == [proxy]
        assert h.proxy.view["routes"]["applications"] == []
        await h.controller_dies()
        await h.controller_starts()
        await h.clock.advance(60.0)
        assert h.proxies("running") == [proxy], "the next controller keeps it"
        h.world.crash(proxy)
        await h.until(lambda: h.proxies("running"))
        await h.deploy(application())
        await h.until_healthy()
        await h.change(Delete("shop"))
        down = asyncio.create_task(h.controller.shutdown())
        await h.until(down.done)
        assert not h.world.processes


async def test_an_instance_that_never_had_an_application_has_no_proxy():
    async with harness() as h:
        await h.clock.advance(60.0)
        assert not h.proxies()
        await h.controller_dies()
        await h.controller_starts()
        await h.clock.advance(60.0)
        assert not h.proxies()


async def test_a_controller_that_comes_back_keeps_the_proxies_of_every_node():
    async with harness() as h:
        h.world.nodes.append(NEXT)
        await h.deploy(application(chat=5))
        await h.until(lambda: len(h.proxies("running")) == 2)
        before = sorted(h.proxies())
        await h.controller_dies()
        for id in h.world.of(CHAT) + h.world.of(SHOP):
            h.world.processes[id].deaf = True  # none of them says that it is there, nor where
        await h.controller_starts()
        await h.clock.advance(RECOVERY_S + EMPTY_S - 1.0)
        assert sorted(h.proxies("running")) == before
        await h.until_healthy(within_s=120)
        await h.until(lambda: set(map(h.node, h.proxies("running"))) == {HOME, NEXT})


async def test_shutdown_drains_the_proxies_first_and_ends_them_last():
    async with harness(deployed=application()) as h:
        proxies = set(h.world.of(PROXY))
        shutdown = asyncio.create_task(h.controller.shutdown())
        await h.clock.advance(0.1)
        with pytest.raises(ControlError, match="the instance is shut down"):
            await h.deploy(application(chat=3))
        await h.until(shutdown.done, within_s=40)
        assert h.world.processes == {}
        assert not h.performed(Kill)
        event_log = [(entry.name, entry.replica in proxies) for entry in h.controller.event_log.entries()]
        assert event_log.index(("Drained", True)) < event_log.index(("Retire", False)), "they serve until no proxy asks"
        ends = [entry.replica for entry in h.controller.event_log.entries() if entry.name in ("Exited", "Stop")]
        replicas = [replica for replica in ends if replica not in proxies]
        assert ends[: len(replicas)] == replicas, "what passes through a proxy ends before it does"
        assert h.performed(Stop)
        await h.until(h.run.done)
        assert await h.store.keys("applications/") == []
        with pytest.raises(ControlError):
            await h.deploy(application())


async def test_quarantine_of_a_replica_set_ends_when_its_application_is_applied():
    async with harness(deployed=application(), caller=False) as h:
        h.controller.inbox.put(Drained(h.world.of(CHAT)[0]))  # it was not ordered to
        await h.until(lambda: h.replica_set(CHAT).status == "failed")
        assert "IllegalTransition" in h.replica_set(CHAT).last_error
        h.world.crash(h.world.of(SHOP)[0])
        await h.until(lambda: h.replica_set(SHOP).restarts == 1 and h.replica_set(SHOP).status == "healthy")
        assert h.logged("Quarantined", subject="shop")
        await h.deploy(application())
        await h.until_healthy()
        h.controller.event_log = type(h.controller.event_log)(h.clock.now)


@pytest.mark.parametrize("overslept_s", [0.0, 60.0], ids=["before it acts", "after a gap"])
async def test_slow_store_does_not_block_a_tick(overslept_s):
    async with harness(deployed=application()) as h:
        h.controller.inbox.wake()  # to write down where the proxy listens
        await h.clock.advance(0.1)
        get, asked = h.store.get, []

        async def slow(key):
            asked.append(key)
            await h.clock.sleep(GAP_S + 0.1)
            return await get(key)

        h.store.get = slow
        h.controller.ticked -= overslept_s
        h.world.crash(h.world.of(CHAT)[0])
        await h.until(lambda: h.logged("TickFailed"))
        assert len(asked) == 3
        [event] = h.logged("TickFailed")
        assert event.cause == "ControlError: the state store took longer than 5 s to return the epoch, 3 times in a row"
        await h.until(lambda: len(h.logged("TickFailed")) == 2)
        assert len(h.world.of(CHAT)) == 1
        h.store.get = get
        await h.until(lambda: len(h.world.of(CHAT, "running")) == 2)
        h.controller.event_log = type(h.controller.event_log)(h.clock.now)


async def test_an_idle_controller_does_not_tick():
    async with harness() as h:
        await h.clock.advance(1.0)
        ticked = h.controller.ticked
        await h.clock.advance(3_600.0)
        assert h.controller.ticked == ticked


def check_the_nodes(h):
    """None has more replicas of a kind than it may."""
    placed = [p.order for p in h.world.processes.values() if p.location is not None and p.order.max_per_node]
    kinds = Counter(
        (order.replica_set, order.template_hash, order.max_per_node, h.node(order.replica)) for order in placed
    )
    assert all(number <= most for (_, _, most, _), number in kinds.items())


def check_the_proxies(h):
    """None shares a port with one that has other options, and while nobody has a port, one looks for it."""
    living = [h.world.processes[id].order for id in h.proxies()]
    for template_hash in {order.template_hash for order in living}:
        mine = [order for order in living if order.template_hash == template_hash]
        looking = [order for order in mine if not order.spec.options["port"]]
        assert len(looking) <= 1, "two find a port of their own"
        most = mine[0].spec.options["proxies_per_node"]
        assert max(Counter(order.spec.node for order in mine).values()) <= most
    for node in {order.spec.node for order in living}:
        assert len({order.template_hash for order in living if order.spec.node == node}) == 1


@pytest.mark.parametrize("seed", range(8))
async def test_controller_reaches_the_applied_state_in_any_world(seed):
    rng, numbers = random.Random(seed), itertools.count(1)
    async with harness(deployed=application()) as h:
        for _ in range(60):
            match rng.choice(
                [
                    *("crash", "crash", "deaf", "apply", "delete", "restart", "lose", "delay", "fill", "stall"),
                    *("grow", "shrink", "stubborn"),
                ]
            ):
                case "crash" if h.world.processes:
                    h.world.crash(rng.choice(sorted(h.world.processes)))
                case "deaf" if h.world.processes:
                    h.world.processes[rng.choice(sorted(h.world.processes))].deaf = True
                case "apply":
                    http = HTTPOptions(port=rng.choice([0, 0, 8000]), proxies_per_node=rng.choice([1, 2]))
                    chat, cpus, most = rng.randint(1, 4), rng.choice([0.1, 0.5]), rng.choice([5, 7])
                    app = application(
                        chat=chat, cpus=cpus, per_node=rng.choice([None, 1, 2]), max_ongoing_requests=most
                    )
                    await h.deploy(app, http)
                case "delete" if h.word():
                    await h.change(Delete("shop"))
                case "restart":
                    await h.controller_dies()
                    await h.controller_starts()
                case "lose":
                    h.world.lost = (
                        {rng.choice([Started, Exited, Drained, Found, Reconfigured])} if rng.random() < 0.5 else set()
                    )
                case "delay":
                    h.world.late = {rng.choice([Started, Exited, Drained, Found, Reconfigured]): rng.uniform(0, 8)}
                case "fill":
                    h.world.room = rng.choice([None, 3])
                case "stubborn":
                    h.world.stubborn = {CHAT: "no such model"} if rng.random() < 0.5 else {}
                case "stall":
                    h.stall(rng.uniform(0, 20))
                case "grow" if len(h.world.nodes) < 3:
                    h.world.nodes.append(NodeId(f"node{next(numbers)}"))
                case "shrink" if len(h.world.nodes) > 1:
                    h.world.node_dies(rng.choice(h.world.nodes[1:]))
            await h.clock.advance(rng.choice([0.1, 1.0, 5.0]))
            check_the_proxies(h)
            check_the_nodes(h)
        h.world.lost, h.world.late, h.world.room, h.world.stubborn = set(), {}, None, {}
        for process in h.world.processes.values():
            process.deaf = False
        await h.clock.advance(120.0)  # an event that was lost is not held against what is applied now
        await h.deploy(application(), HTTPOptions(port=0, proxies_per_node=2))
        await h.clock.advance(240.0)
        assert h.word() == "healthy"
        assert len(h.world.of(SHOP)) == 1
        check_the_proxies(h)
        occupied = {h.node(id) for id in h.world.of(SHOP) + h.world.of(CHAT)}
        assert Counter(map(h.node, h.proxies())) == Counter(dict.fromkeys({HOME, *occupied}, 2))
        assert len({h.port(id) for id in h.proxies()}) == 1
        if occupied != {HOME}:
            assert all(h.world.processes[id].location.remote_address for id in h.world.of(SHOP) + h.world.of(CHAT))
        assert h.proxy.replicas(CHAT) == sorted(h.world.of(CHAT, "running"))
        assert len(h.world.of(CHAT)) == 2
        assert {h.world.processes[id].reloadable.max_ongoing_requests for id in h.world.of(CHAT)} == {100}
        ids = [action.replica for action in h.performed(Start)]
        assert len(ids) == len(set(ids))
