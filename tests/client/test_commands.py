"""Commands, performed beside a controller on simulated processes."""

import asyncio
import pickle

import pytest

from app_toolkit.client.commands import (
    Delete,
    Deploy,
    Forget,
    GetApplication,
    GetApplications,
    GetMethods,
    GetStatus,
    Hold,
    Leave,
    Rollback,
    Scale,
    Shutdown,
)
from app_toolkit.config.models import HTTPOptions
from app_toolkit.core.rollout import Reverted
from app_toolkit.errors import ConfigError, RevisionConflict
from tests.controller.harness import application, harness

pytestmark = pytest.mark.anyio


async def test_an_application_is_deployed_read_scaled_rolled_back_and_deleted():
    async with harness() as h:
        http = HTTPOptions(port=8123)
        assert await Deploy(application(), http).perform(h.controller) == 1
        await h.until_healthy()
        assert await GetApplications().perform(h.controller) == ({"shop": application()}, http)
        assert await GetApplication("shop").perform(h.controller) == (application(), 1)
        assert await Scale("shop", "chat", 3).perform(h.controller) == 2
        await h.until_healthy()
        assert await Rollback("shop", 2).perform(h.controller) == Reverted("shop", 2, 1, 3)
        with pytest.raises(RevisionConflict):
            await Rollback("shop", 2).perform(h.controller)
        await h.until_healthy()
        with pytest.raises(ConfigError, match="has no deployment 'chat' to call"):
            await GetMethods("shop", "chat").perform(h.controller)
        await Delete("shop").perform(h.controller)
        assert (await GetStatus().perform(h.controller)).application("shop") is None


async def test_the_status_comes_as_soon_as_it_changes_and_in_any_case_in_time():
    async with harness(deployed=application()) as h:
        status = await GetStatus().perform(h.controller)
        assert status == h.controller.status()
        assert (await GetStatus(status.change - 1, 1_000.0).perform(h.controller)).change == status.change


async def test_what_a_lease_holds_goes_with_it():
    async with harness() as h:
        await Hold("me").perform(h.controller)
        await Deploy(application(), owner="me").perform(h.controller)
        with pytest.raises(ConfigError, match="held by another run"):
            await Deploy(application(), owner="you").perform(h.controller)
        await h.until_healthy()
        await Forget("a caller").perform(h.controller)
        h.tasks.append(leaving := asyncio.create_task(Leave("me").perform(h.controller)))
        await h.until(leaving.done)
        assert (await GetStatus().perform(h.controller)).applications == ()


async def test_a_shutdown_gives_back_when_all_is_gone():
    async with harness(deployed=application()) as h:
        h.tasks.append(shutdown := asyncio.create_task(Shutdown().perform(h.controller)))
        await h.until(shutdown.done)
        assert not h.world.processes


@pytest.mark.parametrize(
    "command",
    [Deploy(application(), HTTPOptions(), {"hash": b"code"}, "me", 3), Delete("shop"), GetStatus(3, 0.5), Shutdown()],
)
def test_a_command_arrives_as_it_was_sent(command):
    assert pickle.loads(pickle.dumps(command)) == command


def test_a_command_shows_no_secret():
    spec = application().model_copy(update={"title": "s3cret"})
    assert "s3cret" not in repr(Deploy(spec, code={"hash": b"s3cret"}))


def test_a_deployment_is_named_with_its_application():
    assert Scale.named("shop/chat", 3) == Scale("shop", "chat", 3)
    assert (Delete.named("shop"), Delete.named("shop/chat")) == (Delete("shop"), Delete("shop", "chat"))
    for name in ("shop", "shop/", "/chat"):
        with pytest.raises(ConfigError, match="it should be APPLICATION/DEPLOYMENT"):
            Scale.named(name, 3)
