"""From version to version, and back, through the whole controller, on a clock turned by hand."""

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.application import Reverted
from app_toolkit.control.operations import AddCandidate, Scale
from app_toolkit.control.promotion import Promote
from app_toolkit.control.reconcile import Drain, Start
from app_toolkit.control.restart import Restart
from app_toolkit.control.rollback import Rollback
from app_toolkit.errors import ConfigError
from app_toolkit.operate.progress import is_serving, rows, unfinished
from tests.control.harness import CHAT, application, harness

pytestmark = pytest.mark.anyio

NOW = HTTPOptions()
ERROR = "Traceback (most recent call last):\nModuleNotFoundError: no module 'model'"


def status_of(h, name="shop"):
    return h.live(name)


async def up(h, spec):
    await h.deploy(spec)
    await h.until_healthy(within_s=90)


async def test_rollout_is_rolled_back_with_a_reason_if_its_replicas_fail():
    async with harness(deployed=application()) as h:
        before = h.world.of(CHAT)
        h.world.broken[CHAT] = ERROR
        await h.deploy(application(cpus=0.5))
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
        assert await h.rollback("shop") == Reverted("shop", 2, 1, 3)
        await h.until_healthy()
        assert {h.world.processes[id].order.resources.num_cpus for id in h.world.of(CHAT, "running")} == {0.1}
        assert await h.change(Rollback("shop", 3)) == Reverted("shop", 3, 2, 4)
        await h.until_healthy()
        assert {h.world.processes[id].order.resources.num_cpus for id in h.world.of(CHAT, "running")} == {0.5}
        with pytest.raises(ConfigError, match="there is no application 'shoe'"):
            await h.rollback("shoe")


async def test_a_deployment_is_scaled_and_restarts_nothing():
    async with harness(deployed=application()) as h:
        before = h.world.of(CHAT)
        assert await h.change(Scale("shop/chat", 4)) == 2
        await h.until_healthy()
        assert h.world.of(CHAT)[:2] == before
        assert len(h.world.of(CHAT)) == 4
        assert await h.change(Scale("shop/chat", 1)) == 3
        await h.until(lambda: len(h.world.of(CHAT)) == 1)
        for deployment, number in [("shoe/chat", 1), ("shop/char", 1), ("shop/chat", 0)]:
            with pytest.raises(ConfigError):
                await h.change(Scale(deployment, number))


async def test_a_restart_replaces_each_replica_once_another_one_serves():
    async with harness(deployed=application()) as h:
        await h.change(AddCandidate(application(cpus=0.5), {}, 0.5, None))
        await h.until(lambda: is_complete(h, 2))
        chats = (CHAT, CHAT._replace(revision=2))
        before = {id for key in chats for id in h.world.of(key)}
        assert len(before) == 4
        restart = Restart("shop/chat", expected=1)
        assert await h.change(restart) == 3
        assert not is_complete(h)
        assert not is_complete(h, 2)
        while not (is_complete(h) and is_complete(h, 2)):
            assert all(len(h.world.of(key, "running")) >= 2 for key in chats)
            await h.clock.advance(0.5)
        assert await h.change(restart) == 3
        assert is_complete(h), "the controller died before it could answer, and nothing starts again"
        await h.until(lambda: not before & h.world.processes.keys(), within_s=90)
        assert len(h.performed(Start, CHAT)) == 4
        assert h.logged("Restarted")[0].cause == "revision 3: chat"


async def test_replicas_that_are_left_serve_while_a_restart_fails():
    async with harness(deployed=application()) as h:
        before = h.world.of(CHAT)
        h.world.broken[CHAT] = ERROR
        await h.change(Restart("shop"))
        await h.until(lambda: h.word() == "failed")
        assert h.world.of(CHAT) == before, "nothing that served has gone"
        [replica_set] = [each for each in status_of(h).deployments if each.name == "shop/chat"]
        assert (replica_set.outdated, replica_set.last_error) == (2, ERROR)
        h.world.broken.clear()
        await h.until(lambda: is_complete(h), within_s=120)
        assert not {*before} & {*h.world.of(CHAT, "running")}


def is_complete(h, revision=None):
    """Whether a client that waits for a live revision, or for the main one, returns without an error."""
    status = h.controller.status()
    revisions = {"shop": revision or h.live().revision}
    return is_serving(status, revisions) and not unfinished(status, revisions)


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
            await h.rollback("shop")
        else:
            await h.deploy(application(chat=replicas, cpus=0.5))
        assert not is_complete(h)
        await h.until(lambda: h.word() == "waiting_for_resources")
        await h.clock.advance(90.0)
        assert (cpus(h), is_complete(h)) == ({before}, False)
        row = next(row for row in rows(h.controller.status(), ["shop"]) if row.name == "chat")
        said = f"chat: waiting for resources, 0 of {replicas} running, {replicas} of an earlier revision"
        assert str(row).startswith(said)
        number = 3 if rolled_back else 2
        assert unfinished(h.controller.status(), {"shop": number}) == [f"shop: revision {number} is not available yet"]
        h.world.room = None
        await h.until(lambda: is_complete(h), within_s=90)
        assert cpus(h) == {after}


async def test_replicas_that_wait_for_resources_are_no_part_of_a_complete_change():
    async with harness(deployed=application(chat=1)) as h:
        h.world.room = len(h.world.processes)
        await h.change(Scale("shop/chat", 2))
        await h.until(lambda: h.word() == "waiting_for_resources")
        assert not is_complete(h)
        await h.change(Scale("shop/chat", 1))
        await h.until(lambda: is_complete(h))
        await h.change(AddCandidate(application(chat=1, cpus=0.5), {}, 0.1, None))
        await h.until(lambda: h.word("shop@4") == "waiting_for_resources")
        assert not is_complete(h, 4)
        assert is_complete(h), "the main revision has not changed"
        h.world.room = None
        await h.until(lambda: is_complete(h, 4))
        h.world.room = len(h.world.processes)
        await h.change(Promote("shop", 4))
        await h.until(lambda: is_complete(h), within_s=90)
        assert h.word() == "healthy", "nothing starts"
