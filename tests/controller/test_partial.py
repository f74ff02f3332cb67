"""One deployment of a living application is created, updated and deleted, through the whole controller."""

import asyncio

import pytest

from app_toolkit.config.models import ClassConfig, ClassSpec, DeploymentConfig, IngressSpec
from app_toolkit.core.partial import taken_over
from app_toolkit.errors import ConfigError
from tests.controller.harness import CHAT, SHOP, Caller, application, harness
from tests.keys import key

pytestmark = pytest.mark.anyio


def newer(spec):
    return spec.model_copy(update={"target": "shop:two"})


def targets(h, replica_set):
    """What its replicas import."""
    return {h.world.processes[id].order.spec.target for id in h.world.of(replica_set)}


def routes(h):
    [app] = h.proxy.view["routes"]["applications"]
    return [(route["path"], route["owner"]) for route in app["routes"]]


async def test_a_deployment_is_updated_alone_and_no_other_replica_restarts():
    async with harness(deployed=application()) as h:
        shop, old = h.world.of(SHOP), set(h.world.of(CHAT))
        living, revision = h.controller.application("shop")
        after = taken_over(living, newer(application()), {"chat"})
        assert await h.controller.apply(after, expected=revision) == 2
        await h.until_healthy(within_s=90)
        await h.until(lambda: not old & set(h.world.of(CHAT)))
        assert h.world.of(SHOP) == shop
        assert targets(h, CHAT) == {"shop:two"}
        await h.controller_dies()
        await h.controller_starts()
        await h.until_healthy()
        h.world.crash(shop[0])
        await h.until(lambda: h.world.of(SHOP, "running") not in ([], shop))
        assert targets(h, SHOP) == {"shop:app"}, "as it was"
        await h.controller.apply(newer(application()))
        await h.until_healthy(within_s=90)
        await h.until(lambda: targets(h, SHOP) == {"shop:two"})
        assert h.controller.application("shop") == (newer(application()), 3), "of one origin again"


def with_extra(**options):
    spec = application(**options)
    extra = IngressSpec(config=DeploymentConfig(name="extra", num_replicas=1))
    return spec.model_copy(update={"deployments": (*spec.deployments, extra)})


async def test_deployment_is_deleted_while_another_waits_for_resources():
    async with harness(deployed=with_extra(chat=1)) as h:
        h.world.room = len(h.world.processes)
        await h.controller.apply(with_extra(chat=2))
        await h.until(lambda: h.word() == "waiting_for_resources")
        await h.controller.delete("shop", "extra")
        await h.until(lambda: not h.world.of(key("shop/extra")), within_s=60)
        await h.until(lambda: len(h.world.of(CHAT, "running")) == 2, within_s=60)
        await h.until_healthy()


async def test_a_deployment_is_deleted_alone_drained_and_its_name_can_be_used_again():
    async with harness(deployed=application()) as h:
        shop = h.world.of(SHOP)
        assert routes(h) == [("/chat", "chat")]
        await h.controller.delete("shop", "chat")
        await h.until(lambda: routes(h) == [("/chat", None)])
        await h.until(lambda: not h.world.of(CHAT))
        await h.until_healthy()
        assert f"replicas/{CHAT}" not in h.proxy.view
        with pytest.raises(ConfigError, match="application 'shop' has no deployment 'chat'; it has shop"):
            await h.controller.delete("shop", "chat")
        with pytest.raises(ConfigError, match="there is no application 'shoe'"):
            await h.controller.delete("shoe", "chat")
        living, revision = h.controller.application("shop")
        assert await h.controller.apply(taken_over(living, newer(application()), {"chat"}), expected=revision) == 3
        await h.until(lambda: routes(h) == [("/chat", "chat")])
        await h.until_healthy()
        assert (h.world.of(SHOP), len(h.world.of(CHAT))) == (shop, 2)


async def test_deployment_that_another_application_calls_is_not_deleted():
    called = application("called", prefix="/called")
    model = ClassSpec(config=ClassConfig(name="chatter"), methods={"write": "stream"})
    called = called.model_copy(update={"deployments": (*called.deployments, model)})
    async with harness(deployed=application()) as h:
        await h.controller.apply(called)
        await h.until(lambda: h.word("called") == "healthy")
        caller = Caller(h, h.world.of(CHAT)[0])
        watching = asyncio.create_task(h.controller.watch(caller.name, {}, 5.0, ("replicas/called/chatter/",)))
        await h.until(watching.done)
        assert watching.result().keys() == {"replicas/called/chatter"}
        said = "'called/chatter' cannot be deleted: it is called by shop"
        with pytest.raises(ConfigError, match=said):
            await h.controller.delete("called", "chatter")
        with pytest.raises(ConfigError, match=said):
            await h.controller.apply(application("called", prefix="/called"))
        await h.controller.delete("called", "chat")
        await h.until(lambda: not h.world.of(key("called/chat")))
        h.world.crash(caller.name)
        await h.clock.advance(0.5)
        await h.controller.delete("called", "chatter")
        await h.until(lambda: not h.world.of(key("called/chatter")))
