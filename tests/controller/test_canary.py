"""Canary releases, through the whole controller, on a manual clock. A caller reports the requests of both revisions."""

import asyncio

import pytest

from app_toolkit.core.canary import Requests, bucket_of, plan_release
from app_toolkit.core.reconcile import Start
from app_toolkit.errors import ConfigError
from tests.controller.harness import SHOP, application, harness
from tests.controller.test_live_revisions import NEW, candidate, shares, status_of
from tests.keys import app, key

pytestmark = pytest.mark.anyio

PLAN = plan_release([1, 10, 100], every=60, guards=["error_rate<1%", "p95<1.5x"])


class Proxy:
    """What a proxy has counted, and reports."""

    def __init__(self, h, name="proxy@home-1-1"):
        self.h, self.name = h, name
        self.counts = {"shop": Requests(), "shop@2": Requests()}

    def compared(self):
        """The revisions that the routes tell proxies to compare."""
        return {each["target"]["name"] for each in self.h.proxy.view["routes"]["applications"] if each["compared"]}

    def report(self):
        self.h.controller.report(self.name, {}, {app(name): counts.copy() for name, counts in self.counts.items()})

    def serve(self, number=1_000, *, errors=0, latency_s=0.1):
        """Serve requests in both revisions. The candidate has these errors and this latency."""
        self.counts["shop"].add(Requests(number, 0, {bucket_of(0.1): number}))
        self.counts["shop@2"].add(Requests(number, errors, {bucket_of(latency_s): number}))
        self.report()


async def released(h, plan=PLAN):
    """Begin a canary release of a candidate that is available."""
    await candidate(h, 0.0)
    await h.controller.begin_release("shop", None, plan)
    proxy = Proxy(h)
    await h.until(lambda: proxy.compared() == {"shop", "shop@2"}, within_s=2)
    proxy.report()
    return proxy


def release(h):
    return status_of(h).canary


async def test_a_good_candidate_passes_each_step_and_is_promoted():
    async with harness(deployed=application()) as h:
        proxy = await released(h)
        for share in (0.01, 0.1, 1.0):
            await h.until(lambda share=share: shares(h).get("shop@2") == share, within_s=2)
            proxy.serve()
            await h.clock.advance(55.0)
            assert shares(h)["shop@2"] == share, "a step takes at least 60 s"
            assert release(h).why == "the step takes at least 60 s"
            await h.clock.advance(5.0)
        await h.until(lambda: shares(h) == {"shop": 1.0})
        assert (release(h).outcome, release(h).why) == ("promoted", "revision 2 is promoted")
        assert status_of(h).serving_revision == 3
        assert proxy.compared() == set()
        await h.controller.scale("shop", "chat", 3)
        assert release(h) is None
        assert [each.cause for each in h.logged("CanaryStep")] == ["the guards hold at 1 %", "the guards hold at 10 %"]


async def test_a_candidate_with_errors_returns_at_once_and_says_why():
    async with harness(deployed=application()) as h:
        proxy = await released(h)
        proxy.serve(100, errors=20)
        await h.until(lambda: shares(h) == {"shop": 1.0}, within_s=2)
        why = "the guard error_rate<1% does not hold: 20 of 100 requests of the candidate failed"
        assert (release(h).outcome, release(h).why) == ("returned", why)
        assert [each.cause for each in h.logged("CanaryReturned")] == [why]
        await h.until(lambda: not h.world.of(NEW), within_s=60)
        assert release(h).why == why, "the reason stays visible"
        assert await candidate(h, 0.0) == 3
        assert release(h) is None, "until another revision follows"
        await h.controller.begin_release("shop", 3, PLAN)
        assert (release(h).revision, release(h).outcome) == (3, None)


async def test_a_candidate_that_is_slower_than_the_baseline_returns():
    async with harness(deployed=application()) as h:
        proxy = await released(h)
        proxy.serve(latency_s=0.3)
        await h.until(lambda: shares(h) == {"shop": 1.0}, within_s=2)
        assert release(h).why.startswith("the guard p95<1.5x does not hold")


async def test_a_step_waits_for_the_minimum_sample_of_all_proxies():
    async with harness(deployed=application()) as h:
        proxy, other = await released(h), Proxy(h, "proxy@other-1-1")
        other.counts["shop@2"].requests = 1_000
        other.report()
        proxy.serve(60)
        proxy.report()
        await h.clock.advance(100.0)
        assert release(h).why == "it waits for 100 requests of the candidate, which has had 60"
        assert (release(h).candidate.requests, release(h).elapsed_s) == (60, pytest.approx(100, abs=1))
        other.serve(60)
        await h.until(lambda: shares(h)["shop@2"] == 0.1, within_s=2)


async def test_a_paused_release_keeps_its_step_and_begins_it_again():
    async with harness(deployed=application()) as h:
        proxy = await released(h)
        await h.controller.pause_release("shop", paused=True)
        proxy.serve(errors=500)
        await h.clock.advance(100.0)
        assert shares(h)["shop@2"] == 0.01
        assert (release(h).paused, release(h).why) == (True, "it is paused")
        await h.controller.pause_release("shop", paused=False)
        assert release(h).candidate.requests == 0
        proxy.serve()
        await h.clock.advance(59.0)
        assert shares(h)["shop@2"] == 0.01
        await h.until(lambda: shares(h)["shop@2"] == 0.1, within_s=3)


async def test_a_release_whose_promotion_fails_or_is_aborted_is_not_shown_as_promoted():
    plan = plan_release([100], every=1, guards=["error_rate<1%"])
    for fails, why in (
        (True, "the main revision cannot start with its code, so revision 2 keeps all requests"),
        (False, "its promotion was aborted"),
    ):
        async with harness(deployed=application()) as h:
            proxy = await released(h, plan)
            h.world.broken[key("shop/chat")] = "no room"
            proxy.serve()
            await h.until(lambda: status_of(h).canary.outcome == "promoted", within_s=10)
            if fails:
                await h.until(lambda: release(h).outcome == "aborted", within_s=300)
                assert shares(h)["shop@2"] == 1.0
            else:
                await h.controller.abort("shop")
            assert (release(h).outcome, release(h).why) == ("aborted", why)


async def test_a_release_that_is_paused_while_its_last_step_ends_is_not_promoted():
    async with harness(deployed=application()) as h:
        proxy = await released(h, plan_release([100], every=60))
        proxy.serve()
        await h.clock.advance(50.0)
        written, stored = asyncio.Event(), h.store.compare_and_set

        async def slowly(*arguments):
            await written.wait()
            await stored(*arguments)

        h.store.compare_and_set = slowly
        pausing = asyncio.create_task(h.controller.pause_release("shop", paused=True))
        await h.clock.advance(11.0)
        assert not pausing.done()
        written.set()
        await h.clock.advance(1.0)
        assert pausing.done()
        assert (release(h).paused, release(h).outcome) == (True, None)
        assert status_of(h).revision == 1


async def test_the_step_survives_the_controller_and_begins_again():
    async with harness(deployed=application()) as h:
        proxy = await released(h)
        proxy.serve()
        await h.until(lambda: shares(h)["shop@2"] == 0.1, within_s=65)
        await h.controller_dies()
        await h.controller_starts()
        await h.until_healthy()
        proxy.serve(5_000, errors=5_000)  # counts that the new controller cannot tell from earlier ones
        proxy.serve()
        await h.clock.advance(1.0)
        assert shares(h)["shop@2"] == 0.1
        assert (release(h).step, release(h).candidate.requests, release(h).candidate.errors) == (2, 1_000, 0)
        await h.until(lambda: shares(h)["shop@2"] == 1.0, within_s=65)


async def test_a_candidate_that_cannot_start_returns():
    async with harness(deployed=application()) as h:
        h.world.broken[NEW] = "no such model"
        await h.controller.add_candidate(application(cpus=0.5), {}, 0.0, None)
        await h.controller.begin_release("shop", 2, PLAN)
        assert release(h).step == 1
        await h.until(lambda: release(h).outcome == "returned", within_s=120)
        assert release(h).why == "revision 2 failed: shop@2/shop: no such model"
        await h.until(lambda: h.word("shop@2") is None, within_s=60)


async def test_weights_are_refused_while_a_release_goes_on():
    async with harness(deployed=application()) as h:
        await released(h)
        why = "revision 2 of application 'shop' has a canary release, which sets the weights; abort it before"
        for paused in (False, True):
            await h.controller.pause_release("shop", paused=paused)
            with pytest.raises(ConfigError, match=why):
                await h.controller.set_traffic("shop", {1: 1, 2: 1})
            with pytest.raises(ConfigError, match=why):
                await h.controller.add_candidate(application(cpus=0.7), {}, 0.5, None)
            with pytest.raises(ConfigError, match=why):
                await h.controller.begin_release("shop", 2, plan_release([50]))
        await h.controller.begin_release("shop", 2, PLAN)  # the client repeats a request
        assert release(h).paused
        await h.controller.abort("shop")
        assert (release(h).outcome, release(h).why) == ("aborted", "it was aborted")
        await h.until(lambda: shares(h) == {"shop": 1.0}, within_s=2)
        with pytest.raises(ConfigError, match="application 'shop' has no canary release that goes on"):
            await h.controller.pause_release("shop", paused=True)


async def test_a_release_that_cannot_be_promoted_stays_in_its_last_step_and_says_why():
    async with harness(deployed=application()) as h:
        await h.controller.apply(application("bank", prefix="/bank"))
        await h.until(lambda: h.word("bank") == "healthy")
        h.caller(h.world.of(key("bank/bank"))[0])
        alone = application(cpus=0.5)
        alone = alone.model_copy(update={"deployments": alone.deployments[:1], "routes": ()})
        await h.controller.add_candidate(alone, {}, 0.0, None)
        await h.until(lambda: h.word("shop@2") == "healthy")
        await h.controller.begin_release("shop", None, plan_release([100], every=60))
        proxy = Proxy(h)
        await h.clock.advance(0.5)
        proxy.report()
        proxy.serve()
        await h.clock.advance(65.0)
        proxy.serve()
        await h.clock.advance(5.0)
        assert release(h).why == "it cannot be promoted: 'shop/chat' cannot be deleted: it is called by bank"
        assert shares(h) == {"bank": 1.0, "shop": 0.0, "shop@2": 1.0}
        assert len(h.logged("CanaryBlocked")) == 1


async def test_a_release_has_one_candidate():
    async with harness(deployed=application()) as h:
        with pytest.raises(ConfigError, match="has no live revision beside its main revision"):
            await h.controller.begin_release("shop", None, PLAN)
        await candidate(h, 0.1)
        await candidate(h, 0.1, cpus=0.7)
        with pytest.raises(ConfigError, match="revision 2 of application 'shop' gets requests, too"):
            await h.controller.begin_release("shop", 3, PLAN)
        await h.controller.delete("shop@2")
        await h.controller.begin_release("shop", 3, PLAN)
        await h.until(lambda: shares(h) == {"shop": 0.99, "shop@3": 0.01}, within_s=2)
        await h.controller.delete("shop@3")
        assert (release(h).outcome, release(h).why) == ("aborted", "revision 3 was deleted")


async def test_an_update_of_the_main_revision_begins_the_step_again():
    async with harness(deployed=application()) as h:
        proxy = await released(h)
        await h.clock.advance(50.0)
        proxy.serve()
        await h.controller.apply(application(cpus=0.3))
        await h.clock.advance(0.2)
        assert len(h.performed(Start, SHOP)) == 1, "only the other deployment changes"
        await h.until_healthy(within_s=60)
        assert release(h).candidate.requests == 0
        proxy.serve()
        await h.clock.advance(50.0)
        assert shares(h)["shop@2"] == 0.01
        await h.until(lambda: shares(h)["shop@2"] == 0.1, within_s=15)
