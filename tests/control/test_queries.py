"""Commands, performed beside a controller on simulated processes."""

import asyncio
import pickle

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.application import Reverted
from app_toolkit.control.operations import Delete, Deploy, Scale
from app_toolkit.control.queries import (
    Forget,
    GetApplication,
    GetApplications,
    GetCallee,
    GetEvents,
    GetStatus,
    Hold,
    Leave,
    Shutdown,
)
from app_toolkit.control.rollback import Rollback
from app_toolkit.errors import ConfigError
from app_toolkit.operate.progress import ended
from tests.control.harness import CHAT, application, harness

pytestmark = pytest.mark.anyio


async def test_an_application_is_deployed_read_scaled_rolled_back_and_deleted():
    async with harness() as h:
        http = HTTPOptions(port=8123)
        assert await Deploy(application(), http).perform(h.controller) == 1
        await h.until_healthy()
        assert await GetApplications().perform(h.controller) == ({"shop": application()}, http)
        assert await GetApplication("shop").perform(h.controller) == (application(), 1)
        assert await Scale("shop/chat", 3).perform(h.controller) == 2
        await h.until_healthy()
        assert await Deploy(application(max_ongoing_requests=7)).perform(h.controller) == 3
        await h.until_healthy()
        assert await Rollback("shop", 3).perform(h.controller) == Reverted("shop", 3, 2, 4)
        await h.until_healthy()
        with pytest.raises(ConfigError, match="has no deployment 'chat' to call"):
            await GetCallee("shop", "chat").perform(h.controller)
        await Delete("shop").perform(h.controller)
        assert (await GetStatus().perform(h.controller)).application("shop") is None


async def test_the_status_comes_as_soon_as_it_changes_and_in_any_case_in_time():
    async with harness(deployed=application()) as h:
        status = await GetStatus().perform(h.controller)
        assert status == h.controller.status()
        assert (await GetStatus(status.change - 1, 1_000.0).perform(h.controller)).change == status.change


async def test_events_come_as_soon_as_they_happen_and_in_any_case_in_time():
    async with harness(deployed=application()) as h:
        first = await GetEvents("shop", 1_000).perform(h.controller)
        assert [event.name for event in first.events if event.subject == "shop"] == ["Applied", "Available"]
        assert all(event.subject == "shop" or event.subject.startswith("shop/") for event in first.events)
        assert [event.age_s for event in first.events] == sorted((e.age_s for e in first.events), reverse=True)
        following = GetEvents("shop/chat", None, first.epoch, first.number, 1_000.0)
        waiting = asyncio.ensure_future(following.perform(h.controller))
        await Scale("shop/chat", 3).perform(h.controller)
        await h.until(waiting.done)
        assert {event.subject for event in waiting.result().events} == {"shop/chat"}
        assert [event.name for event in waiting.result().events][:1] == ["Start"]
        newest = await GetEvents(None, 1).perform(h.controller)
        late = asyncio.ensure_future(GetEvents("shoe", None, newest.epoch, newest.number, 5.0).perform(h.controller))
        await h.until(late.done, within_s=10)
        assert late.result().events == ()
        await h.controller_dies()
        await h.controller_starts()
        again = await GetEvents(None, None, newest.epoch, newest.number).perform(h.controller)
        assert again.epoch == newest.epoch + 1
        assert again.events, "another controller has a log of its own"


async def statuses(h, until):
    """Each status that a client sees, until the condition holds for one of them."""
    seen = [await GetStatus().perform(h.controller)]
    while not until(seen[-1]):
        seen.append(await GetStatus(seen[-1].change, 30.0).perform(h.controller))
    return seen


async def wait_for(h, revision):
    """The error that ends the wait of a client for this revision of `shop`."""
    watching = asyncio.create_task(statuses(h, lambda status: ended(status, "shop", revision)))
    await h.until(watching.done, within_s=60)
    return str(ended(watching.result()[-1], "shop", revision))


async def test_a_client_that_waits_for_a_revision_learns_how_it_ended():
    async with harness(deployed=application()) as h:
        compare_and_set = h.store.compare_and_set

        async def slow(*arguments):
            await h.clock.sleep(0.3)  # a store takes a while, and clients look at the status meanwhile
            await compare_and_set(*arguments)

        async def deploy(spec):
            task = asyncio.create_task(Deploy(spec).perform(h.controller))
            await h.until(task.done)
            return task.result()

        h.store.compare_and_set = slow
        h.world.broken[CHAT] = "Traceback\nImportError: no model"
        assert await deploy(application(cpus=0.5)) == 2
        assert await wait_for(h, 2) == "revision 2 of 'shop' was rolled back to revision 1: ImportError: no model"
        h.store.compare_and_set = compare_and_set
        assert await deploy(application(cpus=0.6)) == 3
        h.world.broken.clear()
        assert await deploy(application(cpus=0.7)) == 4
        assert await wait_for(h, 3) == "revision 3 of 'shop' was superseded by revision 4 before it was up"
        await Delete("shop").perform(h.controller)
        assert await wait_for(h, 4) == "'shop' was deleted before its revision 4 was up"
        assert await deploy(application()) == 1
        await h.until_healthy()
        down = asyncio.create_task(Shutdown().perform(h.controller))
        assert await wait_for(h, 1) == "the instance was shut down before revision 1 of 'shop' was up"
        await h.until(down.done)


async def test_application_ends_with_its_lease():
    async with harness() as h:
        await Hold("me").perform(h.controller)
        await Deploy(application(), owner="me").perform(h.controller)
        await h.until_healthy()
        await Forget("a caller").perform(h.controller)
        h.tasks.append(leaving := asyncio.create_task(Leave("me").perform(h.controller)))
        await h.until(leaving.done)
        assert (await GetStatus().perform(h.controller)).applications == ()


@pytest.mark.parametrize(
    "command",
    [Deploy(application(), HTTPOptions(), {"hash": b"code"}, "me", 3), Delete("shop"), GetStatus(3, 0.5), Shutdown()],
)
def test_a_command_arrives_as_it_was_sent(command):
    assert pickle.loads(pickle.dumps(command)) == command
