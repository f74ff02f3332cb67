"""Requests with affinity keys and replicas that load models for them, in a simulation with a clock of its own."""

import asyncio
import selectors
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_toolkit import multiplexed
from app_toolkit.calls.multiplexing import holdings, must_displace, unload
from app_toolkit.errors import QueueTimeout
from app_toolkit.exchange.attempts import Result
from app_toolkit.exchange.placement.holders import DISPLACEMENT_S, PREFERENCE_S
from app_toolkit.exchange.preference import keyed
from app_toolkit.exchange.queueing import FULL_S, ROOM_S
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Endpoint
from app_toolkit.types import Address, ReplicaId
from tests.docs.pages import page
from tests.exchange.waiting import acquire

LOAD_S, WORK_S = 0.15, 0.05


class Selector(selectors.SelectSelector):
    """Waits for nothing: the time goes on at once to that of the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits for something else"
        self.now += timeout + 1e-6
        return super().select(0)


def simulate(main: Coroutine[Any, Any, None]) -> None:
    selector = Selector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main)


class Models:
    """One replica, with a place for one model."""

    def __init__(self, slots: int) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.loads = Counter[str]()

    @multiplexed(max_models=1)
    async def model(self, name: str) -> AsyncIterator[str]:
        await asyncio.sleep(LOAD_S)
        self.loads[name] += 1
        yield name

    async def run(self, key: str | None, held: bool, began: Callable[[], None]) -> bool:
        """Run a request. Return False if it is refused, because its caller expects its key here."""
        async with self.slots:
            if key is not None and held and must_displace(self, key):
                return False
            async with self.model(key) if key is not None else nullcontext():
                began()
                await asyncio.sleep(WORK_S)
            return True


class World:
    """Replicas, and callers with a router each."""

    def __init__(self, replicas: int, slots: int, callers: int = 1) -> None:
        self.replicas = {ReplicaId(f"r{number}"): Models(slots) for number in range(replicas)}
        self.routers = [Router("shop/models", rng=Random(number)) for number in range(callers)]
        for router in self.routers:
            router.update(Endpoint(id, Address(f"unix:/{id}"), slots) for id in self.replicas)
        self.served = Counter[str | None]()
        self.waits = defaultdict[str | None, list[float]](list)

    @property
    def loads(self) -> int:
        return sum(replica.loads.total() for replica in self.replicas.values())

    async def call(self, router: Router, key: str | None) -> None:
        now = asyncio.get_running_loop().time
        since = now()
        while True:
            permit = router.try_acquire(preference=keyed(key)) or await acquire(router, since, preference=keyed(key))
            replica = self.replicas[permit.endpoint.id]
            ran = await replica.run(key, permit.holds_key, lambda: self.waits[key].append(now() - since))
            if (report := holdings(replica)) is not None:
                router.report(permit, report, moved=not ran)
            if ran:
                router.release(permit)
                self.served[key] += 1
                return
            router.ended(permit, Result.MOVED)

    async def client(self, router: Router, key: str | None, seconds: float) -> None:
        while asyncio.get_running_loop().time() < seconds:
            await self.call(router, key)

    async def run(self, keys: Sequence[str | None], seconds: float) -> None:
        """Run one client for each key, divided among the callers, until then."""
        try:
            async with asyncio.TaskGroup() as clients:
                for number, key in enumerate(keys):
                    router = self.routers[number // 2 % len(self.routers)]
                    clients.create_task(self.client(router, key, seconds))
        finally:
            for replica in self.replicas.values():
                await unload(replica)
        assert all(router.waiting == router.ongoing == 0 for router in self.routers)


@pytest.mark.parametrize("callers", [1, 2, 3])
@pytest.mark.parametrize("clients", [4, 6, 24])
def test_busy_replicas_keep_the_models_that_they_have(clients: int, callers: int) -> None:
    async def main() -> None:
        world = World(replicas=2, slots=2, callers=callers)
        await world.run(["one", "two"] * (clients // 2), seconds=12)
        assert world.loads <= 5 * callers, (
            "two, and those while the callers do not know yet which replica has which model"
        )
        assert world.served.total() > 0.9 * 12 * 4 / WORK_S
        assert min(world.served.values()) > 0.4 * world.served.total()

    simulate(main())


@pytest.mark.parametrize("callers", [1, 2])
def test_more_models_than_places_are_served_alternately(callers: int) -> None:
    async def main() -> None:
        world = World(replicas=2, slots=2, callers=callers)
        await world.run(["one", "two", "three", "four", "five"] * 4 + [None], seconds=60)
        assert world.loads <= 1.5 * callers * len(world.replicas) * 60 / DISPLACEMENT_S
        assert min(world.served.values()) > 0.05 * world.served.total(), world.served
        assert max(map(max, world.waits.values())) < 15 * DISPLACEMENT_S

    simulate(main())


@given(
    keys=st.lists(st.sampled_from(["one", "two", "three", None]), min_size=1, max_size=20),
    replicas=st.integers(1, 3),
    slots=st.integers(1, 4),
    callers=st.integers(1, 3),
)
@settings(max_examples=12, deadline=None)
def test_no_request_starves_for_any_key(keys: list[str | None], replicas: int, slots: int, callers: int) -> None:
    async def main() -> None:
        world = World(replicas, slots, callers)
        await world.run(keys, seconds=20)
        longest = max(map(max, world.waits.values()))
        assert longest < 10 * DISPLACEMENT_S, world.waits
        assert all(world.served[key] for key in keys)

    simulate(main())


def test_a_request_waits_for_the_holder_of_its_key_for_a_bounded_time_and_then_takes_any_replica() -> None:
    async def main() -> None:
        world = World(replicas=2, slots=1)
        (router,) = world.routers
        for key in ("one", "two"):
            await world.call(router, key)
        loop = asyncio.get_running_loop()
        stuck = router.try_acquire(preference=keyed("one"))
        assert stuck is not None
        assert stuck.holds_key
        assert router.try_acquire(preference=keyed("one")) is None, "the other replica has room, and another model"
        since = loop.time()
        permit = await acquire(router, since, preference=keyed("one"))
        assert loop.time() - since == pytest.approx(PREFERENCE_S, rel=0.01)
        assert permit.endpoint.id != stuck.endpoint.id
        router.release(permit)
        since = loop.time()
        waiting = asyncio.create_task(acquire(router, since, preference=keyed("one")))
        await asyncio.sleep(PREFERENCE_S / 2)
        router.release(stuck)
        permit = await waiting
        assert (permit.endpoint.id, loop.time() - since) == (
            stuck.endpoint.id,
            pytest.approx(PREFERENCE_S / 2, rel=0.01),
        )
        router.release(permit)
        for replica in world.replicas.values():
            await unload(replica)

    simulate(main())


@pytest.mark.parametrize("clients_leave", [False, True])
def test_many_keys_in_the_queue_make_no_request_expensive(clients_leave: bool) -> None:
    def calls(keys: int) -> int:
        """Count the function calls for 20 requests that end, and for 3 s in the queue, with so many keys."""
        count = 0

        def profile(frame: object, event: str, function: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        async def main() -> None:
            router = Router("shop/models")
            router.update(Endpoint(ReplicaId(f"r{number}"), Address(f"unix:/r{number}"), 25) for number in range(4))
            permits = [permit for _ in range(100) if (permit := router.try_acquire()) is not None]
            loop = asyncio.get_running_loop()
            for number in range(keys):
                router.wait(permits.append, loop.time() + number / keys, preference=keyed(f"key {number}"))
            if clients_leave:  # the newest is served first
                for _ in range(2):
                    router.leave(router.wait(permits.append, loop.time()))
            assert router.newest_first is clients_leave
            sys.setprofile(profile)
            for permit in permits[:20]:
                router.release(permit)
            await asyncio.sleep(3)
            sys.setprofile(None)
            assert router.waiting == keys - 20
            router.close()

        simulate(main())
        return count

    assert calls(500) < 4 * calls(50)


def test_a_request_that_waits_since_before_the_first_report_takes_any_replica_after_a_bounded_time() -> None:
    async def main() -> None:
        router = Router("shop/models")
        router.update(Endpoint(ReplicaId(id), Address(f"unix:/{id}"), 1) for id in ("a", "b"))
        first, second = router.try_acquire(), router.try_acquire()
        assert first is not None
        assert second is not None
        loop = asyncio.get_running_loop()
        before = asyncio.create_task(acquire(router, loop.time(), preference=keyed("one")))
        await asyncio.sleep(PREFERENCE_S / 2)
        since = loop.time()
        waiting = asyncio.create_task(acquire(router, since, preference=keyed("one")))
        await asyncio.sleep(PREFERENCE_S * 3 / 4)
        before.cancel()
        await asyncio.sleep(0)
        router.report(first, b"1 0 one")
        router.report(second, b"1 0 two")
        router.release(second)
        permit = await waiting
        assert loop.time() - since == pytest.approx(PREFERENCE_S, rel=0.01)
        assert permit.endpoint.id == second.endpoint.id
        router.release(permit)
        router.release(first)

    simulate(main())


def test_a_full_deployment_is_reported_once_as_the_page_shows(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        router = Router("hub")
        router.update([Endpoint(ReplicaId("hub-1"), Address("unix:/hub-1"), 16)])
        permits = [router.try_acquire() for _ in range(16)]
        for number, permit in enumerate(permits):
            assert permit is not None
            permit.request = "search" if number else "count"
        served, waiting = (asyncio.create_task(acquire(router, 0.0)) for _ in range(2))
        await asyncio.sleep(FULL_S / 2)
        assert permits[0] is not None
        router.release(permits[0])
        permits[0] = await served
        permits[0].request = "count"
        await asyncio.sleep(FULL_S / 2 - 0.1)
        assert not caplog.messages
        await asyncio.sleep(3 * FULL_S)
        assert caplog.messages == [page("docs/requests.md").shown("text")[0].strip()]
        for permit in permits:
            assert permit is not None
            router.release(permit)
        router.release(await waiting)
        await asyncio.sleep(ROOM_S)
        assert len(caplog.messages) == 1

    simulate(main())


def test_requests_that_may_wait_for_their_own_slots_are_named(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        router = Router("default/app")
        router.update([Endpoint(ReplicaId("app-1"), Address("unix:/app-1"), 100)])
        permits = [router.try_acquire() for _ in range(100)]
        for permit in permits:
            assert permit is not None
            permit.request = "/report"
        waiting = asyncio.create_task(acquire(router, 0.05))  # an event loop's clock is a little late
        await asyncio.sleep(2 * FULL_S)
        assert caplog.messages == [page("docs/requests.md").shown("text")[2].strip()]
        assert permits[0] is not None
        router.release(permits[0])
        router.release(await waiting)

    simulate(main())


def test_calls_that_hold_their_slots_because_they_yield_nothing_are_named(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        router = Router("hub")
        router.update([Endpoint(ReplicaId("hub-1"), Address("unix:/hub-1"), 16)])
        permits = [router.try_acquire() for _ in range(16)]
        for number, permit in enumerate(permits):
            assert permit is not None
            permit.request, permit.yields = ("subscribe", True) if number else ("publish", False)
        waiting = asyncio.create_task(acquire(router))
        await asyncio.sleep(router.policy.max_queue_wait_s + 1)
        router.expire(asyncio.get_running_loop().time())
        with pytest.raises(QueueTimeout, match="15 of the calls that hold slots have not yielded their first item"):
            await waiting
        assert caplog.messages == [page("docs/requests.md").shown("text")[1].strip()]
        router.close()

    simulate(main())


def test_calls_that_have_only_just_begun_are_no_cause(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        router = Router("model")
        router.update([Endpoint(ReplicaId("model-1"), Address("unix:/model-1"), 1)])
        permit = router.try_acquire()
        waiting = [asyncio.create_task(acquire(router, 0.0)) for _ in range(4)]
        for each in waiting:
            assert permit is not None
            permit.request, permit.yields = "generate", True
            await asyncio.sleep(FULL_S * 0.6)
            router.release(permit)
            permit = await each
        assert permit is not None
        router.release(permit)

    simulate(main())
    (message,) = caplog.messages
    assert message.endswith("Raise max_ongoing_requests, or add replicas")


def test_a_client_cannot_write_lines_of_its_own_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        router = Router("web")
        router.update([Endpoint(ReplicaId("web-1"), Address("unix:/web-1"), 1)])
        permit = router.try_acquire()
        assert permit is not None
        permit.request = "/a\nCRITICAL forged\x1b[2J" + 10_000 * "b"
        waiting = asyncio.create_task(acquire(router))
        await asyncio.sleep(2 * FULL_S)
        router.release(permit)
        router.release(await waiting)

    simulate(main())
    (message,) = caplog.messages
    assert message.isprintable()
    assert len(message) < 500


def test_an_old_report_changes_nothing() -> None:
    async def main() -> None:
        world = World(replicas=2, slots=2)
        (router,) = world.routers
        permit = router.try_acquire()
        assert permit is not None
        router.report(permit, b"7 0 one")
        router.report(permit, b"6 0 two")
        for key, held in (("one", True), ("two", False)):
            found = router.try_acquire(preference=keyed(key))
            assert found is not None
            assert found.holds_key is held
            router.release(found)

    simulate(main())
