"""From version to version, and back, through the whole controller, on a clock turned by hand."""

import pytest

from app_toolkit.client.progress import is_serving, rows, unfinished
from app_toolkit.config.models import HTTPOptions
from app_toolkit.core.reconcile import Drain, Start
from app_toolkit.core.rollout import Reverted
from app_toolkit.errors import ConfigError, RevisionConflict
from tests.controller.harness import CHAT, SHOP, application, harness

pytestmark = pytest.mark.anyio

NOW = HTTPOptions()
ERROR = "Traceback (most recent call last):\nModuleNotFoundError: no module 'model'"


def status_of(h, name="shop"):
    return next(each for each in h.controller.status().applications if each.name == name)


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


def is_complete(h, name="shop"):
    """Whether a client that waits for this application returns without an error."""
    status = h.controller.status()
    return is_serving(status, [name]) and not unfinished(status, [name])


def cpus(h):
    """The logical CPUs that each replica of `CHAT` asked for that may serve."""
    return {h.world.processes[id].order.resources.num_cpus for id in h.world.of(CHAT, "running")}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("rolled_back", [False, True])
async def test_an_update_that_waits_for_resources_is_complete_only_when_the_new_revision_serves(replicas, rolled_back):
    async with harness(deployed=application(chat=replicas)) as h:
        before, after = 0.1, 0.5
        if rolled_back:
            await up(h, application(chat=replicas, cpus=0.5))
            before, after = after, before
        await h.clock.advance(60.0)
        h.world.room = len(h.world.processes)
        if rolled_back:
            await h.controller.rollback("shop")
        else:
            await h.controller.apply(application(chat=replicas, cpus=0.5))
        assert not is_complete(h)
        await h.until(lambda: h.word() == "waiting_for_resources")
        await h.clock.advance(90.0)
        assert (cpus(h), is_complete(h)) == ({before}, False)
        row = next(row for row in rows(h.controller.status(), ["shop"]) if row.name == "chat")
        said = f"chat: waiting for resources, 0 of {replicas} running, {replicas} of an earlier revision"
        assert str(row).startswith(said)
        number = 3 if rolled_back else 2
        assert unfinished(h.controller.status(), ["shop"]) == [f"shop: revision {number} is not available yet"]
        h.world.room = None
        await h.until(lambda: is_complete(h), within_s=90)
        assert cpus(h) == {after}


async def test_replicas_that_wait_for_resources_are_no_part_of_a_complete_change():
    async with harness(deployed=application(chat=1)) as h:
        h.world.room = len(h.world.processes)
        await h.controller.scale("shop", "chat", 2)
        await h.until(lambda: h.word() == "waiting_for_resources")
        assert not is_complete(h)
        await h.controller.scale("shop", "chat", 1)
        await h.until(lambda: is_complete(h))
        await h.controller.add_candidate(application(chat=1, cpus=0.5), {}, 0.1, None)
        await h.until(lambda: h.word("shop@4") == "waiting_for_resources")
        assert not is_complete(h, "shop@4")
        assert is_complete(h), "the main revision has not changed"
        h.world.room = None
        await h.until(lambda: is_complete(h, "shop@4"))
        h.world.room = len(h.world.processes)
        await h.controller.promote("shop", 4)
        await h.until(lambda: h.word() == "waiting_for_resources")
        assert not is_complete(h)
        h.world.room = None
        await h.until(lambda: is_complete(h), within_s=90)
        assert cpus(h) == {0.5}


async def test_prefix_is_free_only_if_no_revision_can_return_to_it():
    async with harness(deployed=application()) as h:
        h.world.broken[SHOP] = h.world.broken[CHAT] = ERROR
        await h.controller.apply(application(prefix="/new"))
        with pytest.raises(ConfigError, match="'/'"):
            await h.controller.apply(application("other"))
        with pytest.raises(ConfigError, match="'/'"):
            h.controller.compare([application("other")], NOW, ())
        with pytest.raises(ConfigError, match="'third' cannot have the route prefix '/other': 'other' has it"):
            h.controller.compare(
                [application("other", prefix="/other"), application("third", prefix="/other")], NOW, ()
            )
        await h.until(lambda: h.word() == "rolled_back", within_s=30)
        with pytest.raises(ConfigError, match="'/'"):
            await h.controller.apply(application("other"))
        await h.clock.advance(10.0)
        await h.controller.apply(application("other", prefix="/new"))
