"""From version to version, and back, through the whole controller, on a clock turned by hand."""

import asyncio
import random
from collections import Counter

import pytest

from app_toolkit.config.models import ClassConfig, ClassSpec
from app_toolkit.core.reconcile import Drain, Start
from app_toolkit.core.replica_state import Exited, Found, ProbePassed, Started
from app_toolkit.core.rollout import Reverted
from app_toolkit.errors import ConfigError, RevisionConflict
from tests.controller.harness import CHAT, SHOP, Caller, application, harness

pytestmark = pytest.mark.anyio

ERROR = "Traceback (most recent call last):\nModuleNotFoundError: no module 'model'"


def told(h, name="shop"):
    return next(each for each in h.controller.status().applications if each.name == name)


def without_chat(spec):
    """Its routes are the default ingress's, and that has another owner's no more."""
    routes = tuple(route.model_copy(update={"owner": "shop"}) for route in spec.routes)
    return spec.model_copy(update={"deployments": spec.deployments[:1], "routes": routes})


async def up(h, spec):
    await h.controller.apply(spec)
    await h.until_healthy(within_s=90)


async def test_each_apply_has_a_number_that_is_told_and_can_be_expected():
    async with harness() as h:
        assert await h.controller.apply(application(), expected=0) == 1
        await h.until_healthy()
        assert await h.controller.apply(application(chat=3), expected=1) == 2
        with pytest.raises(RevisionConflict, match="'shop' has revision 2, and revision 1 was expected") as conflict:
            await h.controller.apply(application(chat=4), expected=1)
        assert conflict.value.status == 409
        assert await h.controller.apply(application(chat=3), expected=1) == 2, "who asks again has what it asked for"
        assert told(h).revision == 2
        await h.controller_dies()
        await h.controller_starts()
        assert await h.controller.apply(application()) == 3
        await h.controller.delete("shop")
        assert await h.controller.apply(application(), expected=0) == 1, "names can be used again"


async def test_a_version_whose_replicas_fail_is_taken_back_in_seconds_and_says_why():
    async with harness(deployed=application()) as h:
        before = h.world.of(CHAT)
        h.world.broken[CHAT] = ERROR
        await h.controller.apply(application(cpus=0.5))
        await h.until(lambda: h.word() == "rolled_back", within_s=10.0)
        assert told(h).last_error == f"{CHAT}: {ERROR}"
        assert (told(h).revision, told(h).serving_revision) == (2, 1)
        await h.clock.advance(60.0)
        assert h.world.of(CHAT) == before, "nothing that served has gone"
        assert not h.performed(Drain, CHAT)
        started = len(h.performed(Start, CHAT))
        await h.controller_dies()
        await h.controller_starts()
        await h.clock.advance(60.0)
        assert len(h.performed(Start, CHAT)) == started, "what was given up is not tried by the next controller"
        assert (h.word(), told(h).last_error) == ("rolled_back", f"{CHAT}: {ERROR}")
        assert (told(h).revision, told(h).serving_revision) == (2, 1)
        h.world.broken.clear()
        await up(h, application(cpus=0.5))
        assert told(h).last_error is None


async def test_a_version_that_hangs_is_taken_back_after_its_time():
    async with harness(deployed=application()) as h:
        before = h.world.of(CHAT)
        h.world.start_s = 1e6
        await h.controller.apply(application(cpus=0.5, startup_timeout_s=20.0))
        await h.clock.advance(19.0)
        assert h.word() == "updating"
        await h.until(lambda: h.word() == "rolled_back", within_s=3.0)
        assert "was not ready after 20 s" in told(h).last_error
        await h.until(lambda: h.world.of(CHAT) == before)


async def test_a_version_whose_health_check_fails_is_taken_back_before_anything_old_has_gone():
    async with harness(deployed=application(chat=3)) as h:
        before = h.world.of(CHAT)
        await h.controller.apply(application(chat=3, cpus=0.5))
        await h.until(lambda: len(h.world.of(CHAT, "running")) == 4)
        for id in set(h.world.of(CHAT)) - set(before):
            h.world.processes[id].deaf = True
        await h.until(lambda: h.word() == "rolled_back", within_s=60.0)
        assert "3 probes in a row" in told(h).last_error
        await h.clock.advance(30.0)
        assert h.world.of(CHAT) == before


async def test_without_room_a_version_waits_and_is_not_taken_back():
    async with harness(deployed=application()) as h:
        h.world.room = len(h.world.processes)
        await h.controller.apply(application(cpus=0.5))
        await h.until(lambda: h.word() == "waiting_for_resources")
        await h.clock.advance(300.0)
        assert h.word() == "waiting_for_resources"
        h.world.room = None
        await h.until_healthy(within_s=60)


async def test_the_first_version_stays_and_says_why():
    async with harness() as h:
        h.world.broken[CHAT] = ERROR
        await h.controller.apply(application())
        await h.until(lambda: h.word() == "failed")
        assert h.replica_set(CHAT).last_error == ERROR
        with pytest.raises(ConfigError, match="'shop' has no stable revision other than the current one"):
            await h.controller.rollback("shop")


async def test_who_rolls_back_has_the_last_good_version_and_may_change_his_mind():
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


async def test_callers_are_told_of_new_routes_once_the_new_version_serves_them_and_the_old_ingress_goes_after_that():
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


async def test_a_prefix_is_another_applications_only_once_nobody_may_come_back_to_it():
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


async def test_what_another_application_calls_is_not_deleted():
    called = application("called", prefix="/called")
    model = ClassSpec(config=ClassConfig(name="model"), methods={"write": "stream"})
    called = called.model_copy(update={"deployments": (*called.deployments, model)})
    async with harness(deployed=application()) as h:
        await h.controller.apply(called)
        await h.until(lambda: h.word("called") == "healthy")
        caller = Caller(h, h.world.of(CHAT)[0])
        beginnings = ("replicas/called/",)
        watching = asyncio.create_task(h.controller.watch(caller.name, {}, 5.0, beginnings))
        await h.until(watching.done)
        with pytest.raises(ConfigError, match="'called' cannot be deleted: its deployments are called by shop"):
            await h.controller.delete("called")
        h.world.crash(h.world.of(CHAT)[0])
        await h.clock.advance(0.5)
        await h.controller.delete("called")
        await h.until(lambda: not h.world.of("called/model"))


@pytest.mark.parametrize("seed", range(12))
async def test_in_any_world_a_rollout_ends_with_what_is_good_whenever_the_controller_dies(seed):
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
