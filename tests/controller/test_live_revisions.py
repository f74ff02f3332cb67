"""Live revisions of an application beside its main revision, through the whole controller, on a manual clock."""

import pytest

from app_toolkit.config.models import (
    AutoscalingConfig,
    ClassConfig,
    ClassSpec,
    DeploymentConfig,
    HTTPOptions,
    IngressSpec,
)
from app_toolkit.core.reconcile import Drain
from app_toolkit.errors import ConfigError, RevisionConflict
from tests.controller.harness import CHAT, SHOP, application, harness
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
    return next(each for each in h.controller.status().applications if each.name == name)


def traffic(h):
    return {each.revision: round(each.share, 6) for each in status_of(h).traffic}


async def candidate(h, share=0.1, tag=None, **options):
    number = await h.controller.add_candidate(application(**{**OTHER, **options}), {}, share, tag)
    await h.until(lambda: h.word(f"shop@{number}") == "healthy")
    await h.clock.advance(0.2)
    return number


async def test_a_live_revision_gets_requests_once_it_is_available():
    async with harness(deployed=application()) as h:
        before = h.world.of(SHOP)
        assert await h.controller.add_candidate(application(**OTHER), {}, 0.1, None) == 2
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
        await h.controller.add_candidate(application(**OTHER), {}, 0.5, None)
        await h.until(lambda: h.word("shop@2") == "failed")
        assert shares(h) == {"shop": 1.0}
        await h.controller.abort("shop")
        await h.until(lambda: h.word("shop@2") is None, within_s=60)
        assert traffic(h) == {}


async def test_weights_are_shares_and_survive_the_controller():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await h.controller.set_traffic("shop", {1: 3, 2: 1})
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
                await h.controller.set_traffic("shop", weights)
        assert traffic(h) == {1: 0.375, 2: 0.125, 3: 0.5}


async def test_a_revision_without_weight_and_tag_drains_when_no_request_waits_for_it():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await candidate(h, 0.1, tag="preview", **THIRD)
        await h.controller.set_traffic("shop", {1: 1})
        await h.until(lambda: shares(h) == {"shop": 1.0, "shop@3": 0.0}, within_s=2)
        await h.clock.advance(25.0)
        assert not h.performed(Drain, NEW), "requests may wait for it for max_queue_wait_s"
        await h.until(lambda: h.word("shop@2") is None)
        await h.until(lambda: not h.world.of(NEW))
        assert status_of(h, "shop@3").status == "healthy", "testers reach it by its tag"
        assert await candidate(h) == 4, "numbers are not used again"


async def test_a_revision_that_mirrors_is_published_and_stays_without_weight():
    async with harness(deployed=application()) as h:
        assert await h.controller.add_candidate(application(**OTHER), {}, 0.0, None, mirror=0.5) == 2
        await h.until(lambda: h.word("shop@2") == "healthy")
        await h.controller.set_traffic("shop", {1: 1}, {2: 1.0})
        routes = lambda: h.proxy.view["routes"]["applications"]  # noqa: E731
        await h.until(lambda: [each["target"]["mirror"] for each in routes()] == [0.0, 1.0], within_s=2)
        assert shares(h) == {"shop": 1.0, "shop@2": 0.0}
        assert [each.mirror for each in status_of(h).traffic] == [0.0, 1.0]
        await h.controller.set_traffic("shop", {}, {2: 0})
        await h.until(lambda: h.word("shop@2") is None, within_s=60)
        assert traffic(h) == {}


async def test_a_promoted_revision_serves_alone_until_it_is_the_main_revision():
    async with harness(deployed=application()) as h:
        await candidate(h)
        assert await h.controller.promote("shop", None) == 3
        await h.until(lambda: shares(h) == {"shop": 0.0, "shop@2": 1.0}, within_s=2)
        with pytest.raises(ConfigError, match="revision 2 of application 'shop' is being promoted"):
            await h.controller.set_traffic("shop", {3: 1})
        await h.until(lambda: shares(h) == {"shop": 1.0})
        assert status_of(h).serving_revision == 3
        assert {h.world.processes[id].order.resources.num_cpus for id in h.world.of(CHAT, "running")} == {0.5}
        await h.until(lambda: not h.world.of(NEW), within_s=60)
        assert traffic(h) == {}
        assert (await h.controller.rollback("shop")).to == 1


async def test_an_autoscaled_main_revision_takes_over_with_enough_replicas():
    bounds = AutoscalingConfig(max_replicas=8, target_ongoing_requests=1, upscale_delay_s=0)
    spec = application(**OTHER)
    web = IngressSpec(config=DeploymentConfig(name="shop", autoscaling_config=bounds))
    async with harness(deployed=application()) as h:
        await h.controller.add_candidate(
            spec.model_copy(update={"deployments": (web, spec.deployments[1])}), {}, 0.1, None
        )
        await h.until(lambda: shares(h) == {"shop": 0.9, "shop@2": 0.1})
        h.controller.report("a caller", {NEW: (0, 4, 0, 0)})
        await h.until(lambda: len(h.world.of(NEW, "running")) == 4)
        await h.controller.promote("shop", 2)
        await h.until(lambda: shares(h) == {"shop": 1.0})
        assert len(h.world.of(SHOP, "running")) >= 4


async def test_a_promotion_goes_on_after_the_controller_died():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await h.controller.promote("shop", 2)
        await h.controller_dies()
        await h.controller_starts()
        await h.until(lambda: shares(h) == {"shop": 1.0} and not h.world.of(NEW), within_s=90)
        assert status_of(h).serving_revision == 3


async def test_the_promoted_revision_keeps_all_requests_if_the_main_revision_cannot_start():
    async with harness(deployed=application()) as h:
        await candidate(h)
        h.world.broken[key("shop/chat")] = "no room"
        await h.controller.promote("shop", 2)
        await h.until(lambda: h.word() == "rolled_back", within_s=60)
        await h.clock.advance(60.0)
        assert shares(h) == {"shop": 0.0, "shop@2": 1.0}
        h.world.broken.clear()
        assert await h.controller.promote("shop", 2) == 4
        await h.until(lambda: shares(h) == {"shop": 1.0})


async def test_a_promotion_that_is_repeated_changes_nothing():
    async with harness(deployed=application()) as h:
        await candidate(h)
        assert [await h.controller.promote("shop", revision) for revision in (2, 2, None)] == [3, 3, 3]
        await h.until(lambda: shares(h) == {"shop": 1.0})


async def test_a_promotion_that_is_aborted_is_undone():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await h.controller.promote("shop", 2)
        await h.controller.abort("shop")
        await h.until(lambda: h.word() == "healthy" and not h.world.of(NEW), within_s=90)
        assert {h.world.processes[id].order.resources.num_cpus for id in h.world.of(CHAT, "running")} == {0.1}


async def test_a_revision_that_is_not_available_is_not_promoted():
    async with harness(deployed=application()) as h:
        h.world.broken[NEW] = "no such model"
        await h.controller.add_candidate(application(**OTHER), {}, 0.1, None)
        with pytest.raises(ConfigError, match="revision 2 of application 'shop' is not available yet"):
            await h.controller.promote("shop", 2)
        assert traffic(h) == {1: 1.0, 2: 0.0}


async def test_a_live_revision_is_scaled_and_deleted_by_its_name():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await h.controller.scale("shop@2", "chat", 3)
        await h.until(lambda: len(h.world.of(key("shop@2/chat"), "running")) == 3)
        await h.controller.delete("shop@2")
        await h.until(lambda: not h.world.of(NEW) and traffic(h) == {}, within_s=60)
        assert shares(h) == {"shop": 1.0}


async def test_its_other_deployments_stay_until_its_ingresses_have_drained():
    spec = application(**OTHER)
    model = ClassSpec(config=ClassConfig(name="model"))
    spec = spec.model_copy(update={"deployments": (*spec.deployments, model)})
    async with harness(deployed=application()) as h:
        await h.controller.add_candidate(spec, {}, 0.1, None)
        await h.until(lambda: shares(h) == {"shop": 0.9, "shop@2": 0.1})
        await h.controller.abort("shop")
        await h.until(lambda: h.performed(Drain, NEW), within_s=60)
        await h.until(lambda: not h.world.of(NEW), within_s=60)
        assert h.world.of(key("shop@2/model"), "running")
        await h.until(lambda: not h.world.of(key("shop@2/model")), within_s=60)


async def test_a_revision_that_gets_everything_replaces_the_other_live_ones():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await candidate(h, 1.0, **THIRD)
        assert shares(h) == {"shop": 0.0, "shop@3": 1.0}
        await h.until(lambda: not h.world.of(NEW), within_s=60)


async def test_the_route_prefix_stays_while_there_are_live_revisions():
    async with harness(deployed=application()) as h:
        await candidate(h)
        for prefix in ("/new", None):
            with pytest.raises(ConfigError, match="the live revisions of application 'shop' have the route prefix '/'"):
                await h.controller.apply(application(prefix=prefix))
            with pytest.raises(ConfigError, match="the live revisions of application 'shop' have the route prefix '/'"):
                h.controller.compare([application(prefix=prefix)], HTTPOptions(), ())


async def test_an_application_that_another_client_holds_gets_no_live_revision():
    async with harness() as h:
        h.controller.hold("a")
        await h.controller.apply(application(), owner="a")
        with pytest.raises(ConfigError, match="the application 'shop' is held by another run"):
            await h.controller.add_candidate(application(**OTHER), {}, 0.1, None, "b")
        assert await h.controller.add_candidate(application(**OTHER), {}, 0.1, None, "a") == 2


@pytest.mark.parametrize("name", ["shop@2", "blog@7"])
async def test_the_name_of_a_live_revision_cannot_be_chosen(name):
    async with harness(deployed=application()) as h:
        await candidate(h)
        spec = application().model_copy(update={"name": name})
        with pytest.raises(ConfigError, match=r"'shop@2' is a live revision|there is no application 'blog@7'"):
            await h.controller.add_candidate(spec, {}, 0.1, None)
        if name == "blog@7":
            with pytest.raises(ConfigError, match="there is no application 'blog@7'"):
                await h.controller.apply(spec)
            with pytest.raises(ConfigError, match="there is no application 'blog@7'"):
                h.controller.compare([spec], HTTPOptions(), ())


async def test_an_aborted_revision_gets_no_more_requests():
    async with harness(deployed=application()) as h:
        await candidate(h, 0.5)
        await h.controller.abort("shop")
        await h.until(lambda: shares(h) == {"shop": 1.0}, within_s=2)
        await h.until(lambda: not h.world.of(NEW), within_s=60)
        with pytest.raises(ConfigError, match="'shop' has no live revision beside its main revision"):
            await h.controller.promote("shop", None)


async def test_the_main_revision_can_be_updated_meanwhile():
    async with harness(deployed=application()) as h:
        await candidate(h)
        assert await h.controller.apply(application(chat=3), expected=1) == 3
        assert await h.controller.apply(application(chat=3), expected=1) == 3, "a client that asks again"
        await h.until_healthy()
        assert shares(h) == {"shop": 0.9, "shop@2": 0.1}
        assert traffic(h) == {3: 0.9, 2: 0.1}


async def test_an_application_is_deleted_with_its_live_revisions():
    async with harness(deployed=application()) as h:
        await candidate(h)
        await h.controller.delete("shop")
        await h.until(lambda: not h.replicas(), within_s=60)
        assert shares(h) == {}


async def test_a_candidate_that_its_application_does_not_know_is_deleted():
    async with harness(deployed=application()) as h:
        main = await h.store.get("applications/shop")
        await candidate(h)
        await h.controller_dies()
        await h.store.compare_and_set("applications/shop", await h.store.get("applications/shop"), main)
        await h.controller_starts()
        await h.until(lambda: h.word("shop@2") is None and not h.world.of(NEW), within_s=90)


@pytest.mark.parametrize(
    ("spec", "share", "tag", "why"),
    [
        (application("shoe"), 0.1, None, "there is no application 'shoe'"),
        (application(prefix=None), 0.1, None, "application 'shop' serves no HTTP, so it cannot have several live"),
        (application(prefix="/new"), 0.1, None, "must have its route prefix '/', not '/new'"),
        (application(**OTHER), 1.5, None, "the traffic of a new revision is 150 %; it should be between 0 and 100 %"),
        (application(**OTHER), 0.1, "", "the tag '' should have 1 to 64 letters"),
        (application(**THIRD), 0.1, "preview", "revision 2 of .* has the tag 'preview'; .* delete shop@2"),
    ],
)
async def test_a_revision_that_cannot_be_live_is_refused(spec, share, tag, why):
    async with harness(deployed=application()) as h:
        await candidate(h, tag="preview")
        with pytest.raises(ConfigError, match=why):
            await h.controller.add_candidate(spec, {}, share, tag)
        with pytest.raises(ConfigError, match=why):
            h.controller.check_candidate(spec, share, tag, None, 0.0)
        assert traffic(h) == {1: 0.9, 2: 0.1}


async def test_an_equal_revision_that_is_deployed_again_changes_its_traffic():
    async with harness(deployed=application()) as h:
        await candidate(h, 0.5)
        await candidate(h, 0.5, **THIRD)
        assert traffic(h) == {1: 0.25, 2: 0.25, 3: 0.5}
        assert await candidate(h, 0.8, "preview") == 2
        assert traffic(h) == {1: pytest.approx(0.2 / 3, abs=1e-6), 2: 0.8, 3: pytest.approx(0.4 / 3, abs=1e-6)}
        assert await candidate(h, 1.0) == 2
        assert shares(h) == {"shop": 0.0, "shop@2": 1.0}
        assert await candidate(h, 0.25) == 2
        assert shares(h) == {"shop": 0.75, "shop@2": 0.25}


async def test_a_client_that_asks_again_gets_the_same_revision():
    async with harness(deployed=application()) as h:
        assert await h.controller.add_candidate(application(**OTHER), {}, 0.1, None, expected=2) == 2
        assert await h.controller.add_candidate(application(**OTHER), {}, 0.1, None, expected=2) == 2
        with pytest.raises(RevisionConflict, match="the next revision of application 'shop' is 3, and 2 was expected"):
            await h.controller.add_candidate(application(chat=3), {}, 0.1, None, expected=2)


async def test_a_live_revision_and_its_main_revision_have_one_stream_log():
    ingress = IngressSpec(config=DeploymentConfig(name="shop", num_replicas=2), streams=("POST /chat",))
    main = application().model_copy(
        update={"deployments": (ingress,), "stream_log": "shared", "automatic_stream_log": True}
    )
    single = application().model_copy(
        update={
            "deployments": (ingress.model_copy(update={"config": DeploymentConfig(name="shop")}),),
            "automatic_stream_log": True,
        }
    )
    async with harness(deployed=main) as h:
        await h.controller.add_candidate(single, {}, 0.1, None)
        assert h.controller.application("shop@2")[0].stream_log == "shared"
        await h.controller.apply(single, expected=1)
        assert h.controller.application("shop")[0].stream_log == "shared", "while another revision is live"
    async with harness(deployed=single) as h:
        with pytest.raises(ConfigError, match="deploy it with `--stream-log shared` first"):
            await h.controller.add_candidate(main, {}, 0.1, None)
