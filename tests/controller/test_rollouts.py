"""From version to version, and back, through the whole controller, on a clock turned by hand."""

import random
from collections import Counter

import pytest

from app_toolkit.core.reconcile import Drain, Start
from app_toolkit.core.replica_state import Exited, Found, ProbePassed, Started
from app_toolkit.core.rollout import Reverted
from app_toolkit.errors import ConfigError, RevisionConflict
from tests.controller.harness import CHAT, SHOP, application, harness

pytestmark = pytest.mark.anyio

ERROR = "Traceback (most recent call last):\nModuleNotFoundError: no module 'model'"


def status_of(h, name="shop"):
    return next(each for each in h.controller.status().applications if each.name == name)


def without_chat(spec):
    """Its routes are the default ingress's, and that has another owner's no more."""
    routes = tuple(route.model_copy(update={"owner": "shop"}) for route in spec.routes)
    return spec.model_copy(update={"deployments": spec.deployments[:1], "routes": routes})


async def up(h, spec):
    await h.controller.apply(spec)
    await h.until_healthy(within_s=90)


async def test_each_apply_has_a_revision_that_clients_can_expect():
    async with harness() as h:
        assert await h.controller.apply(application(), expected=0) == 1
        await h.until_healthy()
        assert await h.controller.apply(application(chat=3), expected=1) == 2
        with pytest.raises(RevisionConflict, match="'shop' has revision 2, and revision 1 was expected") as conflict:
            await h.controller.apply(application(chat=4), expected=1)
        assert conflict.value.status == 409
        assert await h.controller.apply(application(chat=3), expected=1) == 2, "who asks again has what it asked for"
        assert status_of(h).revision == 2
        await h.controller_dies()
        await h.controller_starts()
        assert await h.controller.apply(application()) == 3
        await h.controller.delete("shop")
        assert await h.controller.apply(application(), expected=0) == 1, "names can be used again"


async def test_rollout_is_rolled_back_with_a_reason_if_its_replicas_fail():
    async with harness(deployed=application()) as h:
        before = h.world.of(CHAT)
        h.world.broken[CHAT] = ERROR
        await h.controller.apply(application(cpus=0.5))
        await h.until(lambda: h.word() == "rolled_back", within_s=10.0)
        assert status_of(h).last_error == f"{CHAT}: {ERROR}"
        assert (status_of(h).revision, status_of(h).serving_revision) == (2, 1)
        await h.clock.advance(60.0)
        assert h.world.of(CHAT) == before, "nothing that served has gone"
        assert not h.performed(Drain, CHAT)
        started = len(h.performed(Start, CHAT))
        await h.controller_dies()
        await h.controller_starts()
        await h.clock.advance(60.0)
        assert len(h.performed(Start, CHAT)) == started, "what was given up is not tried by the next controller"
        assert (h.word(), status_of(h).last_error) == ("rolled_back", f"{CHAT}: {ERROR}")
        assert (status_of(h).revision, status_of(h).serving_revision) == (2, 1)
        h.world.broken.clear()
        await up(h, application(cpus=0.5))
        assert status_of(h).last_error is None


async def test_rollback_returns_to_the_last_stable_revision_and_can_be_undone():
    async with harness(deployed=application()) as h:
        await up(h, application(cpus=0.5))
        assert await h.controller.rollback("shop") == Reverted("shop", 2, 1, 3)
        await h.until_healthy()
        assert {h.world.processes[id].order.resources.num_cpus for id in h.world.of(CHAT, "running")} == {0.1}
        with pytest.raises(RevisionConflict, match="has revision 3, and revision 2 was expected"):
            await h.controller.rollback("shop", 2)
        assert await h.controller.rollback("shop", 3) == Reverted("shop", 3, 2, 4)
        await h.until_healthy()
        assert {h.world.processes[id].order.resources.num_cpus for id in h.world.of(CHAT, "running")} == {0.5}
        with pytest.raises(ConfigError, match="there is no application 'shoe'"):
            await h.controller.rollback("shoe")


async def test_an_update_that_is_under_way_is_rolled_back_by_hand():
    async with harness(deployed=application(chat=4)) as h:
        before = set(h.world.of(CHAT))
        await h.controller.apply(application(chat=4, cpus=0.5))
        await h.until(lambda: len(before & set(h.world.of(CHAT))) == 2, within_s=60)
        await h.controller.rollback("shop")
        least = []
        await h.until(lambda: least.append(len(h.world.of(CHAT, "running"))) or h.word() == "healthy", within_s=90)
        assert min(least) >= 4
        assert {h.world.processes[id].order.resources.num_cpus for id in h.world.of(CHAT, "running")} == {0.1}


async def test_a_deployment_is_scaled_and_restarts_nothing():
    async with harness(deployed=application()) as h:
        before = h.world.of(CHAT)
        assert await h.controller.scale("shop", "chat", 4) == 2
        await h.until_healthy()
        assert h.world.of(CHAT)[:2] == before
        assert len(h.world.of(CHAT)) == 4
        assert await h.controller.scale("shop", "chat", 1) == 3
        await h.until(lambda: len(h.world.of(CHAT)) == 1)
        for name, deployment, number in [("shoe", "chat", 1), ("shop", "char", 1), ("shop", "chat", 0)]:
            with pytest.raises(ConfigError):
                await h.controller.scale(name, deployment, number)


async def test_new_routes_are_published_before_the_old_ingress_is_retired():
    async with harness(deployed=application()) as h:
        [old] = h.proxy.view["routes"]["applications"]
        served = set()

        def is_told():
            [app] = h.proxy.view["routes"]["applications"]
            if app["routes"] == old["routes"]:
                served.add(len(h.proxy.replicas(CHAT)))
            return app["routes"] != old["routes"]

        await h.controller.apply(without_chat(application()).model_copy(update={"target": "shop:two"}))
        await h.until(is_told, within_s=60)
        assert served == {2}, "it served until callers knew"
        await h.until(lambda: h.word() == "healthy" and not h.world.of(CHAT), within_s=60)
        h.world.broken[SHOP] = ERROR
        await h.controller.apply(application().model_copy(update={"target": "shop:three"}))
        await h.until(lambda: h.word() == "rolled_back", within_s=60)
        [app] = h.proxy.view["routes"]["applications"]
        assert app["routes"][0]["owner"] == "shop"
        await h.until(lambda: not h.world.of(CHAT), within_s=60)


async def test_prefix_is_free_only_if_no_revision_can_return_to_it():
    async with harness(deployed=application()) as h:
        h.world.broken[SHOP] = h.world.broken[CHAT] = ERROR
        await h.controller.apply(application(prefix="/new"))
        with pytest.raises(ConfigError, match="'/'"):
            await h.controller.apply(application("other"))
        await h.until(lambda: h.word() == "rolled_back", within_s=30)
        with pytest.raises(ConfigError, match="'/'"):
            await h.controller.apply(application("other"))
        await h.clock.advance(10.0)
        await h.controller.apply(application("other", prefix="/new"))


@pytest.mark.parametrize("seed", range(6))
async def test_rollout_ends_with_a_good_revision_whenever_the_controller_dies(seed):
    rng = random.Random(seed)
    async with harness(deployed=application(chat=3)) as h:
        for number in range(4):
            bad = rng.random() < 0.5
            cpus = 1.0 + number
            target = h.replica_set(CHAT).target
            number_of = target if bad else rng.randint(2, 4)
            spec = application(chat=number_of, cpus=cpus, startup_timeout_s=15.0)
            last = [h.world.processes[id].order.resources.num_cpus for id in h.world.of(CHAT, "running")]
            h.world.broken = {CHAT: ERROR} if bad else {}
            await h.controller.apply(spec)
            least = min(target, number_of)
            for _ in range(40):
                match rng.choice(["nothing"] * 6 + ["restart", "lose", "delay"]):
                    case "restart":
                        await h.controller_dies()
                        await h.clock.advance(rng.choice([0.1, 1.0]))
                        await h.controller_starts()
                    case "lose":
                        h.world.lost = {Exited} if rng.random() < 0.3 else set()
                    case "delay":
                        h.world.late = {rng.choice([Started, Exited, Found, ProbePassed]): rng.uniform(0, 2)}
                await h.clock.advance(rng.choice([0.1, 0.5, 1.0]))
                serving = h.world.of(CHAT, "running")
                assert len(serving) >= least, "nobody died, and fewer serve than must"
            h.world.lost, h.world.late = set(), {}
            await h.clock.advance(180.0)
            there = Counter(h.world.processes[id].order.resources.num_cpus for id in h.world.of(CHAT))
            if bad:
                assert h.word() == "rolled_back"
                assert there == Counter(last)
            else:
                assert h.word() == "healthy"
                assert there == {cpus: number_of}
