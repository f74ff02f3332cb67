"""Snapshots by key, watched by callers that live, die and come back."""

import asyncio

import pytest

from app_toolkit.clock import ManualClock
from app_toolkit.control.publisher import LEASE_S, LONGEST_WATCH_S, Publisher
from app_toolkit.interfaces import Version

pytestmark = pytest.mark.anyio


def publisher(epoch=1, clock=None):
    return Publisher(epoch, clock or ManualClock())


def watching(publisher, caller, seen, timeout_s=20.0):
    return asyncio.create_task(publisher.watch(caller, seen, timeout_s))


def versions(news):
    return {key: snapshot.version for key, snapshot in news.items()}


async def test_a_version_moves_only_when_the_value_does():
    b = publisher()
    first = b.publish("a", {"x": 1})
    assert b.publish("a", {"x": 1}) == first
    assert b.publish("a", {"x": 2}) > first


async def test_newer_value_is_published_at_once():
    b = publisher()
    b.publish("a", 1)
    b.publish("b", 2)
    news = await b.watch("me", {}, 20.0)
    assert {key: snapshot.value for key, snapshot in news.items()} == {"a": 1, "b": 2}
    b.publish("b", 3)
    assert set(await b.watch("me", versions(news), 20.0)) == {"b"}


async def test_a_later_snapshot_wakes_a_watch():
    clock = ManualClock()
    b = publisher(clock=clock)
    seen = {"a": b.publish("a", 1)}
    watch = watching(b, "me", seen)
    await clock.advance(5.0)
    assert not watch.done()
    b.publish("b", 2)
    assert set(await watch) == {"b"}


async def test_a_watch_ends_with_nothing_when_its_time_is_over():
    clock = ManualClock()
    b = publisher(clock=clock)
    watch = watching(b, "me", {}, 3.0)
    await clock.advance(3.1)
    assert await watch == {}


async def test_version_of_an_earlier_epoch_is_always_older():
    b = publisher(epoch=3)
    b.publish("a", 1)
    assert set(await b.watch("me", {"a": Version(2, 999)}, 1.0)) == {"a"}


async def test_removed_key_is_published_once():
    clock = ManualClock()
    b = publisher(clock=clock)
    seen = {"a": b.publish("a", 1)}
    b.remove("a")
    b.remove("never there")
    news = await b.watch("me", seen, 1.0)
    assert news["a"].value is None
    again = watching(b, "me", versions(news), 1.0)
    await clock.advance(1.1)
    assert await again == {}
    newcomer = watching(b, "another", {}, 1.0)
    await clock.advance(1.1)
    assert await newcomer == {}
    b.publish("a", 2)
    assert (await b.watch("me", versions(news), 1.0))["a"].value == 2


async def test_a_key_that_a_new_publisher_does_not_have_is_missed_only_once_it_is_settled():
    clock = ManualClock()
    b = publisher(epoch=2, clock=clock)
    watch = watching(b, "me", {"a": Version(1, 7)})
    await clock.advance(5.0)
    assert not watch.done()
    b.settle()
    news = await watch
    assert news["a"].value is None
    again = watching(b, "me", versions(news), 1.0)
    await clock.advance(1.1)
    assert await again == {}


async def test_a_snapshot_is_acknowledged_once_every_caller_has_come_back_with_it():
    clock = ManualClock()
    b = publisher(clock=clock)
    first = b.publish("a", 1)
    for caller in ("x", "y"):
        await b.watch(caller, {}, 1.0)
    second = b.publish("a", 2)
    assert not b.acknowledged("a", second)
    for caller in ("x", "y"):
        news = await b.watch(caller, {"a": first}, 1.0)
        assert not b.acknowledged("a", second), "it was sent, but may not have been applied"
    x, y = (watching(b, caller, versions(news)) for caller in ("x", "y"))
    await clock.advance(0.1)
    assert b.acknowledged("a", second)
    b.close()
    assert await asyncio.gather(x, y) == [{}, {}]


async def test_a_caller_that_never_heard_of_a_key_holds_nothing_up():
    clock = ManualClock()
    b = publisher(clock=clock)
    idle = watching(b, "idle", {})
    await clock.advance(0.1)
    version = b.publish("a", 1)
    await idle
    assert b.acknowledged("a", version), "it holds this one or none"
    assert not b.acknowledged("a", b.publish("a", 2))


async def test_without_callers_everything_is_acknowledged():
    b = publisher()
    assert b.acknowledged("a", b.publish("a", 1))


async def test_a_lease_ends_some_time_after_the_last_watch():
    clock = ManualClock()
    b = publisher(clock=clock)
    b.publish("a", 1)
    await b.watch("me", {}, 20.0, "a/")
    version = b.publish("a", 2)
    await clock.advance(LEASE_S - 0.1)
    assert not b.acknowledged("a", version)
    assert b.callers_of("") == ["me"]
    assert b.next_expiry() == pytest.approx(clock.now() + 0.1)
    await clock.advance(0.2)
    assert b.acknowledged("a", version)
    assert b.callers_of("") == []
    assert b.next_expiry() is None


async def test_a_caller_that_watches_lives():
    clock = ManualClock()
    b = publisher(clock=clock)
    watch = watching(b, "me", {}, 10_000.0)
    await clock.advance(LONGEST_WATCH_S - 0.1)
    assert b.next_expiry() > clock.now()
    assert not watch.done()
    await clock.advance(0.2)
    assert await watch == {}, "a watch is cut to what a lease may last"


async def test_a_caller_that_is_known_to_be_gone_holds_nothing_up():
    b = publisher()
    b.publish("a", 1)
    await b.watch("me", {}, 1.0)
    version = b.publish("a", 2)
    b.forget("me")
    b.forget("me")
    assert b.acknowledged("a", version)


async def test_live_caller_counts_with_its_last_version():
    clock = ManualClock()
    b = publisher(clock=clock)
    b.publish("replicas/a/x", 1)
    b.publish("replicas/b/x", 1)
    await b.watch("me", {}, 1.0, "replicas/a/")
    assert (b.callers_of("replicas/a/"), b.callers_of("replicas/b/")) == (["me"], [])
    assert (b.callers_of("replicas/a/x/"), b.callers_of("replicas/a/y/")) == (["me"], [])
    await clock.advance(LEASE_S + 0.1)
    assert b.callers_of("replicas/a/") == []


async def test_caller_that_follows_all_keys_uses_those_that_it_names():
    b = publisher()
    b.publish("replicas/a/x", 1)
    b.publish("replicas/b/x", 1)
    await b.watch("me", {}, 1.0, ("", "replicas/a/x/"))
    assert (b.callers_of("replicas/a/"), b.callers_of("replicas/b/")) == (["me"], [])


async def test_a_cancelled_watch_leaves_nothing_behind():
    clock = ManualClock()
    b = publisher(clock=clock)
    watch = watching(b, "me", {})
    await clock.advance(0.1)
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    assert not b._watches
    await clock.advance(LEASE_S + 0.1)
    assert b.acknowledged("a", b.publish("a", 1))
    assert b.next_expiry() is None


async def test_callers_of_an_earlier_controller_are_waited_for():
    clock = ManualClock()
    b = publisher(epoch=2, clock=clock)
    version = b.publish("a", 1)
    assert not b.acknowledged("a", version)
    await clock.advance(LEASE_S + 0.1)
    assert b.acknowledged("a", version)


async def test_unobserved_time_ends_no_lease():
    clock = ManualClock()
    b = publisher(clock=clock)
    await b.watch("me", {"a": b.publish("a", 1)}, 0.0, "a/")
    clock.stall(60.0)
    b.extend_leases(60.0)
    assert b.callers_of("") == ["me"]


async def test_watch_of_prefixes_gets_only_their_keys():
    b = publisher()
    for key in ("replicas/a/x", "replicas/b/x", "replicas/c/x", "routes"):
        b.publish(key, 1)
    news = await b.watch("me", {}, 20.0, ("replicas/a/", "replicas/c/"))
    assert set(news) == {"replicas/a/x", "replicas/c/x"}
    assert b.acknowledged("routes", b.publish("routes", 2))
