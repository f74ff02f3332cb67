"""Canary releases, through the whole controller, on a manual clock. A caller reports the requests of both revisions."""

import asyncio

import pytest

from app_toolkit.contract.compared import Requests, bucket_of
from app_toolkit.control.canary import BeginRelease, PauseRelease
from app_toolkit.control.operations import AddCandidate, Scale
from app_toolkit.control.reconcile import Start
from tests.control.harness import SHOP, application, harness
from tests.control.test_live_revisions import NEW, candidate, shares, status_of
from tests.keys import app, key

pytestmark = pytest.mark.anyio

PLAN = {"steps": [1, 10, 100], "every": 60, "guards": ["error_rate<1%", "p95<1.5x"]}


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
    await h.change(BeginRelease("shop", **plan))
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
        await h.until(lambda: shares(h) == {"shop@2": 1.0})
        assert (release(h).outcome, release(h).why) == ("promoted", "revision 2 is promoted")
        assert status_of(h).serving_revision == 2
        assert proxy.compared() == set()
        await h.change(Scale("shop/chat", 3))
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
        await h.change(BeginRelease("shop", 3, **PLAN))
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
        await h.change(PauseRelease("shop", paused=True))
        proxy.serve(errors=500)
        await h.clock.advance(100.0)
        assert shares(h)["shop@2"] == 0.01
        assert (release(h).paused, release(h).why) == (True, "it is paused")
        await h.change(PauseRelease("shop", paused=False))
        assert release(h).candidate.requests == 0
        proxy.serve()
        await h.clock.advance(59.0)
        assert shares(h)["shop@2"] == 0.01
        await h.until(lambda: shares(h)["shop@2"] == 0.1, within_s=3)


async def test_a_release_that_is_paused_while_its_last_step_ends_is_not_promoted():
    async with harness(deployed=application()) as h:
        proxy = await released(h, {"steps": [100], "every": 60})
        proxy.serve()
        await h.clock.advance(50.0)
        written, stored = asyncio.Event(), h.store.compare_and_set

        async def slowly(*arguments):
            await written.wait()
            await stored(*arguments)

        h.store.compare_and_set = slowly
        pausing = asyncio.create_task(h.change(PauseRelease("shop", paused=True)))
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
        await h.change(AddCandidate(application(cpus=0.5), {}, 0.0, None))
        await h.change(BeginRelease("shop", 2, **PLAN))
        assert release(h).step == 1
        await h.until(lambda: release(h).outcome == "returned", within_s=120)
        assert release(h).why == "revision 2 failed: shop/shop: no such model"
        await h.until(lambda: h.word("shop@2") is None, within_s=60)


async def test_a_release_that_cannot_be_promoted_stays_in_its_last_step_and_says_why():
    async with harness(deployed=application()) as h:
        await h.deploy(application("bank", prefix="/bank"))
        await h.until(lambda: h.word("bank") == "healthy")
        h.caller(h.world.of(key("bank/bank"))[0])
        alone = application(cpus=0.5)
        alone = alone.model_copy(update={"deployments": alone.deployments[:1], "routes": ()})
        await h.change(AddCandidate(alone, {}, 0.0, None))
        await h.until(lambda: h.word("shop@2") == "healthy")
        await h.change(BeginRelease("shop", steps=[100], every=60))
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


async def test_an_update_of_the_main_revision_begins_the_step_again():
    async with harness(deployed=application()) as h:
        proxy = await released(h)
        await h.clock.advance(50.0)
        proxy.serve()
        await h.deploy(application(cpus=0.3))
        await h.clock.advance(0.2)
        assert len(h.performed(Start, SHOP)) == 1, "only the other deployment changes"
        await h.until_healthy(within_s=60)
        assert release(h).candidate.requests == 0
        proxy.serve()
        await h.clock.advance(50.0)
        assert shares(h)["shop@2"] == 0.01
        await h.until(lambda: shares(h)["shop@2"] == 0.1, within_s=15)
