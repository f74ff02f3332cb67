"""One deployment of a running application is deleted, through the whole controller."""

import asyncio

import pytest

from app_toolkit.config.models import ClassConfig, ClassSpec, DeploymentConfig, IngressSpec
from app_toolkit.control.operations import Delete
from app_toolkit.errors import ConfigError
from tests.control.harness import CHAT, SHOP, Caller, application, harness
from tests.keys import key

pytestmark = pytest.mark.anyio


def routes(h):
    [app] = h.proxy.view["routes"]["applications"]
    return [(route["path"], route["owner"]) for route in app["routes"]]


def with_extra(**options):
    spec = application(**options)
    extra = IngressSpec(config=DeploymentConfig(name="extra", num_replicas=1))
    return spec.model_copy(update={"deployments": (*spec.deployments, extra)})


async def test_deployment_is_deleted_while_another_waits_for_resources():
    async with harness(deployed=with_extra(chat=1)) as h:
        h.world.room = len(h.world.processes)
        await h.deploy(with_extra(chat=2))
        await h.until(lambda: h.word() == "waiting_for_resources")
        await h.change(Delete("shop/extra"))
        await h.until(lambda: not h.world.of(key("shop/extra")), within_s=60)
        await h.until(lambda: len(h.world.of(CHAT, "running")) == 2, within_s=60)
        await h.until_healthy()


async def test_a_deployment_is_deleted_alone_drained_and_its_name_can_be_used_again():
    async with harness(deployed=application()) as h:
        shop = h.world.of(SHOP)
        assert routes(h) == [("/chat", "chat")]
        await h.change(Delete("shop/chat"))
        await h.until(lambda: routes(h) == [("/chat", None)])
        await h.until(lambda: not h.world.of(CHAT))
        await h.until_healthy()
        assert f"replicas/{CHAT}" not in h.proxy.view
        assert await h.deploy(application()) == 3
        await h.until(lambda: routes(h) == [("/chat", "chat")])
        await h.until_healthy()
        assert (h.world.of(SHOP), len(h.world.of(CHAT))) == (shop, 2)


async def test_deployment_that_another_application_calls_is_not_deleted():
    called = application("called", prefix="/called")
    model = ClassSpec(config=ClassConfig(name="chatter"), methods={"write": "stream"})
    called = called.model_copy(update={"deployments": (*called.deployments, model)})
    async with harness(deployed=application()) as h:
        await h.deploy(called)
        await h.until(lambda: h.word("called") == "healthy")
        caller = Caller(h, h.world.of(CHAT)[0])
        watching = asyncio.create_task(h.controller.watch(caller.name, {}, 5.0, ("replicas/called/chatter/",)))
        await h.until(watching.done)
        assert watching.result().keys() == {"replicas/called/chatter"}
        said = "'called/chatter' cannot be deleted: it is called by shop"
        with pytest.raises(ConfigError, match=said):
            await h.change(Delete("called/chatter"))
        await h.change(Delete("called/chat"))
        await h.until(lambda: not h.world.of(key("called/chat")))
        h.world.crash(caller.name)
        await h.clock.advance(0.5)
        await h.change(Delete("called/chatter"))
        await h.until(lambda: not h.world.of(key("called/chatter")))
