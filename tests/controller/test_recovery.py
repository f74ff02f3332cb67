"""What a controller finds when it comes back: values that somebody else has written, or half of one, or none."""

import asyncio
import itertools
import random
from collections import Counter
from contextlib import suppress

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.controller.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from app_toolkit.controller.leases import LEASE_S
from app_toolkit.controller.state_store import COPIES, EPOCHS_LOST
from app_toolkit.core.reconcile import Drain, Kill, Probe, Start
from app_toolkit.engines.memory import MemoryStore
from app_toolkit.errors import ConfigError, CorruptValue, StaleEpoch
from tests.controller.harness import CHAT, PROXY, SHOP, application, harness
from tests.docs.pages import page

pytestmark = pytest.mark.anyio

APPS = "applications/"
KEY = f"{APPS}shop"


def flip(h, *keys, place=-1):
    """One bit of these values is another one."""
    for key in keys:
        value = bytearray(h.store.values[key])
        value[place] ^= 1
        h.store.values[key] = bytes(value)


async def comes_back(h, *, calm_s=30.0):
    """The controller, after which nothing but probes has been ordered; gives what processes there are."""
    await h.controller_dies()
    h.world.performed.clear()
    await h.controller_starts()
    await h.clock.advance(calm_s)
    assert {type(action) for action in h.world.performed} <= {Probe}
    return dict(h.world.processes)


async def until_another_one_listens_as_by_default(h):
    [proxy] = h.proxies("running")
    h.world.crash(proxy)
    await h.until(lambda: h.proxies("running") not in ([], [proxy]))
    assert h.replica_set(PROXY).status == "healthy"
    assert [replica.address for replica in h.replica_set(PROXY).replicas] == ["tcp:127.0.0.1:8000"]


def warnings(h):
    return h.controller.status().warnings


async def test_what_does_not_check_out_is_not_believed_its_copy_stands_in_for_it_and_that_is_said():
    async with harness(deployed=application()) as h:
        before = dict(h.world.processes)
        flip(h, KEY)
        assert await comes_back(h) == before
        assert h.word() == "healthy"
        assert warnings(h) == (
            "the value of 'applications/shop' in the state store is corrupt: "
            "its checksum is not that of its content; its copy is used instead",
        )
        assert [entry.cause for entry in h.told("Corrupt", subject="shop")] == list(warnings(h))
        assert f"> {warnings(h)[0]}" in page("docs/operations.md").text, "as the page says"
        assert h.store.values[KEY] == h.store.values[COPIES + KEY]
        assert await h.controller.apply(application(chat=3), expected=1) == 2
        assert warnings(h) == (), "it was written anew"
        await h.until_healthy()


@pytest.mark.parametrize("key", [KEY, "http", "port", "epoch"])
async def test_a_copy_that_does_not_check_out_is_made_anew(key):
    async with harness() as h:
        await h.controller.apply(application(), HTTPOptions(port=0))
        await h.until_healthy()
        before = dict(h.world.processes)
        flip(h, COPIES + key)
        assert await comes_back(h) == before
        [warning] = warnings(h)
        assert f"'copies/{key}'" in warning
        await comes_back(h)
        assert warnings(h) == ()


async def test_an_application_that_cannot_be_read_stays_as_it_runs_until_it_is_deployed_again():
    async with harness(deployed=application()) as h:
        await h.controller.apply(application("other", prefix="/other"))
        await h.until(lambda: h.word("other") == "healthy")
        before, routes = dict(h.world.processes), h.proxy.view["routes"]["applications"]
        flip(h, KEY, COPIES + KEY)
        assert await comes_back(h) == before
        [warning] = warnings(h)
        assert warning.endswith(
            "the replicas of the application stay as they are until it is deployed again or deleted"
        )
        assert [entry.cause for entry in h.told("Corrupt", subject="shop")] == [warning]
        [other, shop] = h.controller.status().applications
        assert (shop.name, shop.status, shop.revision, shop.last_error) == ("shop", "failed", 0, warning)
        assert {replica_set.name: replica_set.last_error for replica_set in shop.deployments} == {
            SHOP: warning,
            CHAT: warning,
        }
        assert other.status == "healthy"
        # Whoever calls it goes by what it knew.
        assert h.proxy.view["routes"]["as_before"] == ["shop"]
        assert h.proxy.seen["replicas/shop/chat"].epoch == 1
        assert h.proxy.replicas(CHAT) == h.world.of(CHAT)
        # The other one is looked after, and this one is not.
        for replica_set in (CHAT, "other/chat"):
            h.world.crash(h.world.of(replica_set)[0])
        await h.clock.advance(60.0)
        assert (len(h.world.of(CHAT)), len(h.world.of("other/chat"))) == (1, 2)
        with pytest.raises(ConfigError, match="'shop' must be deployed again first: the value of 'applications"):
            await h.controller.scale("shop", "chat", 3)
        # To deploy it again starts what is missing.
        left = set(h.world.processes)
        await h.controller.apply(application())
        await h.until_healthy()
        await h.clock.advance(60.0)
        assert left < set(h.world.processes)
        assert h.proxy.view["routes"] == {"applications": routes, "as_before": []}
        assert h.proxy.replicas(CHAT) == sorted(h.world.of(CHAT))
        assert warnings(h) == ()


async def test_an_application_that_cannot_be_read_can_be_deployed_without_what_it_had():
    async with harness(deployed=application()) as h:
        flip(h, KEY, COPIES + KEY)
        await comes_back(h)
        smaller = application()
        routes = tuple(route.model_copy(update={"owner": "shop"}) for route in smaller.routes)
        await h.controller.apply(smaller.model_copy(update={"deployments": smaller.deployments[:1], "routes": routes}))
        await h.until(lambda: not h.world.of(CHAT))
        assert not h.performed(Kill)
        assert "replicas/shop/chat" not in h.proxy.view
        await h.until_healthy()
        assert not h.performed(Start)


async def test_nobody_takes_the_prefix_of_an_application_that_cannot_be_read():
    async with harness(deployed=application()) as h:
        await h.controller.apply(application("there", prefix="/there"))
        await h.until(lambda: h.word("there") == "healthy")
        flip(h, KEY, COPIES + KEY)
        await comes_back(h)
        for other in (application("other"), application("there")):
            with pytest.raises(ConfigError, match=r"cannot have the route prefix '/' while .* or delete 'shop' first"):
                await h.controller.apply(other)
        await h.controller.apply(application("other", prefix=None))
        await h.controller.apply(application("there", chat=3, prefix="/there"))
        await h.controller.apply(application())
        await h.controller.apply(application("other", prefix="/other"))
        await h.until(lambda: all(h.word(name) == "healthy" for name in ("shop", "there", "other")))
        told = {each["name"]: each["prefix"] for each in h.proxy.view["routes"]["applications"]}
        assert told == {"shop": "/", "there": "/there", "other": "/other"}


async def test_an_application_that_cannot_be_read_can_be_deleted():
    async with harness(deployed=application()) as h:
        flip(h, KEY, COPIES + KEY)
        await comes_back(h)
        await h.controller.delete("shop")
        await h.until(lambda: not h.replicas(), within_s=60)
        assert not h.performed(Kill)
        await h.until(lambda: set(h.proxy.view) == {"routes"})
        assert h.proxy.view["routes"] == {"applications": [], "as_before": []}
        assert await h.store.keys("applications/") == await h.store.keys("copies/applications/") == []


async def test_while_an_application_cannot_be_read_nothing_that_was_packed_is_dropped():
    async with harness(deployed=application()) as h:
        packed = application("packed", prefix=None).model_copy(update={"code": "1a"})
        await h.controller.apply(packed, code={"1a": b"one"})
        await h.until(lambda: h.word("packed") == "healthy")
        flip(h, "applications/packed", COPIES + "applications/packed")
        await comes_back(h)
        await h.controller.apply(application(chat=3))
        assert await h.store.get("code/1a") == b"one"
        await h.controller.delete("packed")
        assert await h.store.keys("code/") == []


async def test_what_a_later_version_has_written_is_left_to_it():
    async with harness(deployed=application()) as h:
        before = dict(h.world.processes)
        for key in (KEY, COPIES + KEY):
            h.store.values[key] = h.store.values[key].replace(b"app_toolkit 1 ", b"app_toolkit 2 ")
        assert await comes_back(h) == before
        [warning] = warnings(h)
        assert "its schema version is 2, and this controller reads 1 at most" in warning


async def test_what_a_value_says_is_not_repeated_where_it_cannot_be_understood():
    async with harness(deployed=application()) as h:
        for key in (KEY, COPIES + KEY):
            h.store.values[key] = encode_checkpoint(KEY, Checkpoint(b'{"desired": "a secret"}', 1))
        await comes_back(h)
        [warning] = warnings(h)
        assert "its content does not have the format of this version" in warning
        assert "secret" not in warning


async def test_proxies_of_whose_options_nobody_knows_stay_until_these_are_said_again():
    async with harness() as h:
        await h.controller.apply(application(), HTTPOptions(port=0, proxies_per_node=2))
        await h.until(lambda: len(h.proxies("running")) == 2)
        await h.until_healthy()
        flip(h, "http", COPIES + "http")
        before = await comes_back(h)
        assert "the proxies stay as they are" in h.replica_set(PROXY).last_error
        await h.controller.apply(application(chat=3))
        await h.until_healthy()
        assert h.proxies() == [id for id in before if id.startswith("proxy")]
        h.world.performed.clear()
        await h.controller.apply(application(chat=3), HTTPOptions(port=0, proxies_per_node=2))
        await h.clock.advance(30.0)
        assert {type(action) for action in h.world.performed} == {Probe}, "they are as they were said to be"
        assert h.replica_set(PROXY).status == "healthy"
        h.world.crash(h.proxies()[0])
        await h.until(lambda: len(h.proxies("running")) == 2)
        assert len({h.port(id) for id in h.proxies()}) == 1


async def test_where_no_proxy_runs_there_is_none_that_could_stay():
    async with harness() as h:
        await h.controller.apply(application(), HTTPOptions(port=9000))
        await h.controller.delete("shop")
        await h.until(lambda: not h.world.processes)
        flip(h, "http", COPIES + "http")
        await comes_back(h)
        assert warnings(h) == (), "it is forgotten"
        await h.controller.apply(application(), HTTPOptions(port=8000))
        await h.until_healthy()
        await comes_back(h)
        await until_another_one_listens_as_by_default(h)


async def test_once_no_proxy_is_left_that_could_stay_new_ones_have_the_default_options():
    async with harness() as h:
        await h.controller.apply(application(), HTTPOptions(port=9000))
        await h.until_healthy()
        flip(h, "http", COPIES + "http")
        await comes_back(h)
        await until_another_one_listens_as_by_default(h)
        assert warnings(h) == ()
        assert [entry.cause for entry in h.told("HTTPForgotten")] == [
            "no running proxy is left; new proxies listen on 127.0.0.1:8000, the default"
        ]
        await comes_back(h)
        await until_another_one_listens_as_by_default(h)


async def test_what_another_controller_has_written_meanwhile_of_the_proxies_is_not_forgotten():
    async with harness() as h:
        await h.controller.apply(application(), HTTPOptions(port=9000))
        await h.until_healthy()
        flip(h, "http", COPIES + "http")
        await comes_back(h)
        old, run = h.controller, h.run
        await h.controller_starts()
        await h.controller.apply(application(), HTTPOptions(port=9001))
        old.desired.follow((), {}, h.clock.now())
        await h.until(run.done)
        assert old.replaced
        await h.controller_dies()
        await h.controller_starts()
        assert h.controller.current()[1].port == 9001


@pytest.mark.parametrize("lost", ["port", "lease"])
async def test_what_is_forgotten_otherwise_ends_nothing(lost):
    async with harness() as h:
        await h.controller.apply(application(), HTTPOptions(port=0), owner="a terminal")
        await h.until_healthy()
        await h.clock.advance(1.0)
        before = dict(h.world.processes)
        flip(h, lost, COPIES + lost)
        await h.controller_dies()
        await h.controller_starts()
        h.controller.hold("a terminal")
        await h.clock.advance(LEASE_S / 2)
        assert h.world.processes == before
        [told] = h.told("Corrupt")
        assert f"{lost!r}" in told.cause
        assert warnings(h) == (), "it was written anew"


async def test_the_end_of_the_last_lease_puts_nothing_away_that_cannot_be_read():
    async with harness(deployed=application()) as h:
        before = dict(h.world.processes)
        h.controller.hold("a terminal")
        await h.clock.advance(1.0)
        flip(h, KEY, COPIES + KEY)
        await comes_back(h)
        await h.clock.advance(LEASE_S * 2)
        assert h.told("LeaseEnded")
        assert h.world.processes == before


async def test_a_shutdown_drains_also_what_cannot_be_read():
    async with harness(deployed=application()) as h:
        flip(h, KEY, COPIES + KEY)
        await comes_back(h)
        shutdown = asyncio.create_task(h.controller.shutdown())
        await h.until(shutdown.done, within_s=60)
        assert h.world.processes == {}
        assert len(h.performed(Drain)) == 4
        assert not h.performed(Kill)
        await h.until(h.run.done)


# The epoch.


async def test_the_epoch_is_counted_on_by_its_copy():
    async with harness(deployed=application()) as h:
        old = h.controller
        flip(h, "epoch")
        await old.state_store.check_epoch()
        assert decode_checkpoint("epoch", h.store.values["epoch"]).epoch == 1, "it was mended by who has it"
        flip(h, "epoch")
        await comes_back(h)
        assert h.controller.epoch == 2


async def test_where_nobody_knows_the_epoch_the_next_is_above_all_that_may_have_been():
    async with harness(deployed=application()) as h:
        for _ in range(2):
            await comes_back(h)
        before = dict(h.world.processes)
        await h.controller.apply(application(max_queued_requests=7))
        flip(h, "epoch", COPIES + "epoch")
        with pytest.raises(StaleEpoch, match="has epoch 3, and the last epoch cannot be read"):
            await h.controller.apply(application(chat=5))
        await h.until(h.run.done)
        h.world.performed.clear()
        await h.controller_starts()
        assert h.controller.epoch == 3 + EPOCHS_LOST + 1
        await h.until_healthy()
        await h.clock.advance(30.0)
        assert h.world.processes == before
        assert not h.world.refused
        h.world.crash(h.world.of(CHAT)[0])
        await h.until(lambda: len(h.world.of(CHAT, "running")) == 2)


async def test_an_old_epoch_that_somebody_has_put_back_wakes_nobody():
    async with harness(deployed=application()) as h:
        old, run, first = h.controller, h.run, h.store.values["epoch"]
        await h.controller_starts()
        h.store.values["epoch"] = first
        with pytest.raises(StaleEpoch, match="has epoch 1, and another controller has taken epoch 2"):
            await old.apply(application(chat=5))
        await h.until(run.done)
        await h.controller.apply(application(chat=3))
        await h.until_healthy()


# Between two writes, and in any world.


class Killed(BaseException):
    """What ends a controller wherever it is."""


class Mortal(MemoryStore):
    """Kills whoever writes to it for the time after so many: before that write is done."""

    def __init__(self, values, writes):
        super().__init__()
        self.values = values
        self.writes = writes

    def _die(self):
        if self.writes == 0:
            raise Killed
        self.writes -= 1

    async def compare_and_set(self, key, expected, value):
        self._die()
        await super().compare_and_set(key, expected, value)

    async def delete(self, key):
        self._die()
        await super().delete(key)


async def mortal(h, writes):
    """From now on the store outlives the controller by this."""
    await h.controller_dies()
    h.store = MemoryStore()
    h.store.values = h.controller.state_store.store.values
    await h.controller_starts()
    h.controller.state_store.store = Mortal(h.store.values, writes)


async def reborn(h):
    await h.controller_dies()
    await h.controller_starts()


@pytest.mark.parametrize("damaged", [(), (KEY,), (COPIES + KEY,), (KEY, COPIES + KEY)])
async def test_wherever_in_an_update_the_controller_dies_and_whatever_is_lost_with_it_no_fewer_serve(damaged):
    new = application(cpus=0.5)
    for writes in itertools.count():
        async with harness(deployed=application()) as h:
            await mortal(h, writes)
            applied = None
            with suppress(Killed):
                applied = await h.controller.apply(new)
            for _ in range(400):  # 40 s, or until it dies
                await h.clock.advance(0.1)
                assert len(h.world.of(CHAT, "running")) >= 2
                if h.run.done() or applied is None:
                    break
            died = h.run.done() or applied is None
            there = set(h.world.of(CHAT, "running"))
            flip(h, *damaged)
            await reborn(h)
            for _ in range(600):
                await h.clock.advance(0.1)
                assert len(h.world.of(CHAT, "running")) >= 2
            if len(damaged) == 2:
                assert there <= set(h.world.of(CHAT, "running"))
                await h.controller.apply(new)
                await h.clock.advance(60.0)
                applied = True
            assert h.word() == "healthy"
            cpus = [h.world.processes[id].order.options.num_cpus for id in h.world.of(CHAT)]
            assert cpus in ([0.1, 0.1], [0.5, 0.5]) if applied is None else cpus == [0.5, 0.5]
            assert Counter(start.template_hash for start in h.performed(Start, CHAT)).most_common(1)[0][1] == 2
            if not died:
                assert writes > 3
                return


@pytest.mark.parametrize("damaged", [(), (KEY,), (COPIES + KEY,)])
async def test_wherever_the_controller_dies_a_name_is_new_or_known_deleted_or_not(damaged):
    for doing, writes in itertools.product(("apply", "delete"), range(5)):
        async with harness(deployed=application()) as h:
            if doing == "apply":
                await h.controller.delete("shop")
                await h.until(lambda: not h.replicas())
            await mortal(h, writes)
            done = False
            with suppress(Killed):
                await (h.controller.apply(application()) if doing == "apply" else h.controller.delete("shop"))
                done = True
            flip(h, *(key for key in damaged if key in h.store.values))
            await reborn(h)
            await h.clock.advance(60.0)
            assert h.word() in ("healthy", "failed", None)
            if done and not damaged:
                assert h.word() == ("healthy" if doing == "apply" else None)
            if h.word() is None:
                assert not h.replicas()
            await h.controller.apply(application())
            await h.until_healthy()
            assert len(h.world.of(CHAT)) == 2


def tamper(rng, values):
    """Somebody writes into the store."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        key, other = rng.sample(sorted(values), 2)
        match rng.choice(["flip", "cut", "swap", "empty", "both"]):
            case "flip" if values[key]:
                place = rng.randrange(len(values[key]))
                values[key] = values[key][:place] + bytes([values[key][place] ^ 8]) + values[key][place + 1 :]
            case "cut":
                values[key] = values[key][: rng.randrange(len(values[key]) + 1)]
            case "swap":
                values[key], values[other] = values[other], values[key]
            case "empty":
                values[key] = b""
            case "both":
                values[key] = values[f"{COPIES}{key.removeprefix(COPIES)}"] = b"{}"


def is_readable(values, key):
    for each in (key, COPIES + key):
        with suppress(CorruptValue):
            decode_checkpoint(key, values[each])
            return True
    return False


@pytest.mark.parametrize("seed", range(20))
async def test_in_any_world_what_served_goes_on_whatever_somebody_does_to_the_store(seed):
    rng, cpus = random.Random(seed), itertools.count(1)
    http = HTTPOptions(port=0, proxies_per_node=2)
    specs = {name: application(name, prefix=f"/{name}") for name in ("shop", "other")}
    async with harness() as h:

        async def deploy(*names):
            for name in names:
                known = is_readable(h.store.values, "http") if "http" in h.store.values else False
                await h.controller.apply(specs[name], None if known else http)

        def serving(name):
            return set(h.world.of(f"{name}/chat", "running"))

        await deploy(*specs)
        await h.clock.advance(20.0)
        for _ in range(6):
            if rng.random() < 0.5:
                name = rng.choice(list(specs))
                specs[name] = application(name, prefix=f"/{name}", cpus=float(next(cpus)))
                await deploy(name)
                await h.clock.advance(rng.choice([0.0, 0.5, 2.0, 6.0, 20.0]))
            tamper(rng, h.store.values)
            alone = {name for name in specs if not is_readable(h.store.values, APPS + name)}
            left = set(h.proxies("running")).union(*map(serving, alone))
            await h.controller_dies()
            begun = len(h.world.performed)
            await h.controller_starts()
            assert h.controller.desired.corrupt.keys() == alone
            assert all(any(repr(APPS + name) in warning for warning in warnings(h)) for name in alone)
            for _ in range(rng.choice([5, 100])):
                await h.clock.advance(0.2)
                assert min(len(serving(name)) for name in specs) >= 2
            assert left <= h.world.processes.keys()
            orders = h.world.performed[begun:]
            assert not [a for a in orders if a.replica.partition(".")[0] in alone or isinstance(a, Kill)]
            if rng.random() < 0.5:
                await deploy(*specs)
        await deploy(*specs)
        await h.clock.advance(200.0)
        for name, spec in specs.items():
            there = [h.world.processes[id].order.options for id in h.world.of(f"{name}/chat")]
            assert there == [spec.deployments[1].config.ray_actor_options] * 2
            assert h.proxy.replicas(f"{name}/chat") == sorted(h.world.of(f"{name}/chat"))
        assert h.controller.status().status == "healthy"
        assert len(h.proxies("running")) == 2
        assert {each["name"] for each in h.proxy.view["routes"]["applications"]} == specs.keys()
        ids = [action.replica for action in h.performed(Start)]
        assert len(ids) == len(set(ids))
        assert not h.world.refused
