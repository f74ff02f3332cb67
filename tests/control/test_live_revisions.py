"""Live revisions of an application beside its main revision, through the whole controller, on a manual clock."""

import pytest

from app_toolkit.config.models import (
    ClassConfig,
    ClassSpec,
)
from app_toolkit.control.operations import AddCandidate, Delete, Scale
from app_toolkit.control.promotion import Abort, Promote
from app_toolkit.control.reconcile import Drain, Start
from app_toolkit.control.weights import SetTraffic
from app_toolkit.errors import ConfigError
from tests.control.harness import CHAT, SHOP, application, harness
from tests.keys import key

pytestmark = pytest.mark.anyio

NEW = key("shop@2/shop")
OTHER = {"cpus": 0.5}
"""Options of the candidate, with which its replicas have another template hash."""
THIRD = {"cpus": 0.7}
"""Options of another candidate."""


def shares(h):
    """The shares that proxies know, by revision."""
    targets = [each["target"] for each in h.proxy.view["routes"]["applications"]]
    return {each["name"]: round(each["weight"], 6) for each in targets}


def status_of(h, name="shop"):
    return h.live(name)


def traffic(h):
    return {each.revision: round(each.share, 6) for each in status_of(h).traffic}


async def candidate(h, share=0.1, tag=None, **options):
    number = await h.change(AddCandidate(application(**{**OTHER, **options}), {}, share, tag))
    await h.until(lambda: h.word(f"shop@{number}") == "healthy")
    await h.clock.advance(0.2)
    return number


async def test_a_live_revision_gets_requests_once_it_is_available():
    async with harness(deployed=application()) as h:
        before = h.world.of(SHOP)
        assert await h.change(AddCandidate(application(**OTHER), {}, 0.1, None)) == 2
        await h.clock.advance(0.1)
        assert shares(h) == {"shop": 1.0}
        assert [(each.revision, each.share, each.planned, each.is_ready) for each in status_of(h).traffic] == [
            (1, 1.0, 0.9, True),
            (2, 0.0, 0.1, False),
        ]
        await h.until(lambda: shares(h) == {"shop": 0.9, "shop@2": 0.1})
        assert h.world.of(NEW, "running")
        assert h.world.of(SHOP) == before, "the main revision is untouched"
        assert traffic(h) == {1: 0.9, 2: 0.1}


async def test_one_that_cannot_start_gets_no_requests():
    async with harness(deployed=application()) as h:
        h.world.broken[NEW] = "no such model"
        await h.change(AddCandidate(application(**OTHER), {}, 0.5, None))
        await h.until(lambda: h.word("shop@2") == "failed")
        assert shares(h) == {"shop": 1.0}
        await h.change(Abort("shop"))
        await h.until(lambda: traffic(h) == {}, within_s=60)


async def test_weights_are_shares_and_survive_the_controller():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await h.change(SetTraffic("shop", {1: 3, 2: 1}))
        await h.until(lambda: shares(h) == {"shop": 0.75, "shop@2": 0.25}, within_s=2)
        await h.controller_dies()
        await h.controller_starts()
        await h.until_healthy()
        await h.clock.advance(1.0)
        assert shares(h) == {"shop": 0.75, "shop@2": 0.25}
        assert await candidate(h, 0.5, **THIRD) == 3
        assert traffic(h) == {1: 0.375, 2: 0.125, 3: 0.5}
        for weights, why in (
            ({1: 1, 4: 1}, "has no live revision 4; it has 1, 2, 3"),
            ({1: 0, 2: 0}, "are all 0"),
            ({1: -1, 2: 2}, "is -1"),
        ):
            with pytest.raises(ConfigError, match=why):
                await h.change(SetTraffic("shop", weights))
        assert traffic(h) == {1: 0.375, 2: 0.125, 3: 0.5}


async def test_a_revision_without_weight_and_tag_drains_when_no_request_waits_for_it():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await candidate(h, 0.1, tag="preview", **THIRD)
        await h.change(SetTraffic("shop", {1: 1}))
        await h.until(lambda: shares(h) == {"shop": 1.0, "shop@3": 0.0}, within_s=2)
        await h.clock.advance(25.0)
        assert not h.performed(Drain, NEW), "requests may wait for it for max_queue_wait_s"
        await h.until(lambda: h.word("shop@2") is None)
        await h.until(lambda: not h.world.of(NEW))
        assert status_of(h, "shop@3").status == "healthy", "testers reach it by its tag"
        assert await candidate(h) == 4, "numbers are not used again"


async def test_a_revision_that_mirrors_is_published_and_stays_without_weight():
    async with harness(deployed=application()) as h:
        assert await h.change(AddCandidate(application(**OTHER), {}, 0.0, None, mirror=0.5)) == 2
        await h.until(lambda: h.word("shop@2") == "healthy")
        await h.change(SetTraffic("shop", {1: 1}, {2: 100}))
        routes = lambda: h.proxy.view["routes"]["applications"]  # noqa: E731
        await h.until(lambda: [each["target"]["mirror"] for each in routes()] == [0.0, 1.0], within_s=2)
        assert shares(h) == {"shop": 1.0, "shop@2": 0.0}
        assert [each.mirror for each in status_of(h).traffic] == [0.0, 1.0]
        await h.change(SetTraffic("shop", {}, {2: 0}))
        await h.until(lambda: traffic(h) == {}, within_s=60)


async def test_a_promotion_moves_the_requests_and_starts_nothing():
    async with harness(deployed=application()) as h:
        await candidate(h)
        started, replicas = len(h.performed(Start)), h.world.of(NEW)
        assert h.proxy.view["mains/shop"] == "shop"
        assert await h.change(Promote("shop")) == 2
        await h.until(lambda: shares(h) == {"shop@2": 1.0}, within_s=2)
        assert h.proxy.view["mains/shop"] == "shop@2"
        assert (status_of(h).revision, status_of(h).serving_revision, status_of(h).status) == (2, 2, "healthy")
        assert [each.name for each in status_of(h).deployments] == ["shop/shop", "shop/chat"]
        assert [(each.revision, each.share, each.is_removed) for each in status_of(h).traffic] == [
            (2, 1.0, False),
            (1, 0.0, True),
        ]
        await h.clock.advance(25.0)
        assert not h.performed(Drain, SHOP), "requests may wait for it for max_queue_wait_s"
        await h.until(lambda: not h.world.of(SHOP) and not h.world.of(CHAT), within_s=60)
        assert (h.world.of(NEW), len(h.performed(Start))) == (replicas, started)
        assert traffic(h) == {}
        assert (await h.rollback("shop")).to == 1


async def test_a_promotion_survives_the_controller():
    async with harness(deployed=application()) as h:
        await candidate(h)
        replicas = h.world.of(NEW)
        await h.change(SetTraffic("shop", {1: 0, 2: 100}))
        await h.controller_dies()
        await h.controller_starts()
        await h.until(lambda: shares(h) == {"shop@2": 1.0} and not h.world.of(SHOP), within_s=90)
        assert (status_of(h).serving_revision, h.world.of(NEW)) == (2, replicas)


async def test_a_promoted_revision_is_updated_in_its_place():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await h.change(Promote("shop"))
        chat = h.world.of(key("shop@2/chat"))
        assert await h.deploy(application(replicas=2, **OTHER), expected=2) == 3
        await h.until(lambda: len(h.world.of(NEW, "running")) == 2)
        assert h.world.of(key("shop@2/chat")) == chat
        assert await candidate(h, **THIRD) == 4
        assert traffic(h) == {3: 0.9, 4: 0.1, 1: 0.0}


async def test_a_live_revision_is_scaled_and_deleted_by_its_name():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await h.change(Scale("shop/chat", 3, revision=2))
        await h.until(lambda: len(h.world.of(key("shop@2/chat"), "running")) == 3)
        await h.change(Delete("shop", 2))
        await h.until(lambda: not h.world.of(NEW) and traffic(h) == {}, within_s=60)
        assert shares(h) == {"shop": 1.0}


async def test_its_other_deployments_stay_until_its_ingresses_have_drained():
    spec = application(**OTHER)
    model = ClassSpec(config=ClassConfig(name="model"))
    spec = spec.model_copy(update={"deployments": (*spec.deployments, model)})
    async with harness(deployed=application()) as h:
        await h.change(AddCandidate(spec, {}, 0.1, None))
        await h.until(lambda: shares(h) == {"shop": 0.9, "shop@2": 0.1})
        await h.change(Abort("shop"))
        await h.until(lambda: h.performed(Drain, NEW), within_s=60)
        await h.until(lambda: not h.world.of(NEW), within_s=60)
        assert h.world.of(key("shop@2/model"), "running")
        await h.until(lambda: not h.world.of(key("shop@2/model")), within_s=60)


async def test_a_revision_that_gets_everything_is_promoted_once_it_is_available():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await candidate(h, 1.0, **THIRD)
        assert shares(h) == {"shop@3": 1.0}
        await h.until(lambda: not h.world.of(NEW) and not h.world.of(SHOP), within_s=60)
        assert (status_of(h).serving_revision, status_of(h).rollback_to, (await h.rollback("shop")).to) == (3, 1, 1)


async def test_an_aborted_revision_gets_no_more_requests():
    async with harness(deployed=application()) as h:
        await candidate(h, 0.5)
        await h.change(Abort("shop"))
        await h.until(lambda: shares(h) == {"shop": 1.0}, within_s=2)
        await h.until(lambda: not h.world.of(NEW), within_s=60)
        with pytest.raises(ConfigError, match="'shop' has no live revision beside its main revision"):
            await h.change(Promote("shop"))


async def test_an_application_is_deleted_with_its_live_revisions():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await h.change(Delete("shop"))
        await h.until(lambda: not h.replicas(), within_s=60)
        assert shares(h) == {}
