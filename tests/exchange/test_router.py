import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app_toolkit.config.models import Policy
from app_toolkit.errors import CannotStart, NoReplica, QueueFull, QueueTimeout
from app_toolkit.exchange.attempts import NO_OTHER
from app_toolkit.exchange.permits import Permit, Waiter
from app_toolkit.exchange.placement.least_loaded import RUN, SPARE_REQUESTS
from app_toolkit.exchange.preference import keyed
from app_toolkit.exchange.router import REST_S, Router
from app_toolkit.interfaces import Endpoint
from app_toolkit.types import Address, ReplicaId
from tests.exchange.waiting import acquire
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


def endpoint(name: str, room: int = 1) -> Endpoint:
    return Endpoint(ReplicaId(name), Address(f"unix:/{name}"), room)


def router_of(*endpoints: Endpoint, **options: float) -> Router:
    router = Router("shop/chat", rng=Random(1), **options)  # type: ignore[arg-type]
    router.update(endpoints)
    return router


def never(_: Permit) -> None:
    raise AssertionError("nobody was to be granted a permit")


def replica_of(permit: Permit | None) -> str:
    assert permit is not None
    return permit.endpoint.id


def test_requests_with_one_key_prefer_one_replica_until_it_is_full_or_clearly_busier() -> None:
    router = router_of(*(endpoint(name, 9) for name in "abc"))
    first = router.try_acquire(preference=keyed("model"))
    assert first is not None
    router.release(first)
    own = [replica_of(router.try_acquire(preference=keyed("model"))) for _ in range(SPARE_REQUESTS + 1)]
    assert set(own) == {first.endpoint.id}
    following = [replica_of(router.try_acquire(preference=keyed("model"))) for _ in range(9)]
    assert len({first.endpoint.id, *following}) == 2
    everything = [router.try_acquire(preference=keyed("model")) for _ in range(27 - len(own) - len(following))]
    assert None not in everything
    assert router.try_acquire(preference=keyed("model")) is None


def test_an_unresponsive_replica_gets_no_permit() -> None:
    stuck = replace(endpoint("a", 9), unresponsive=True)
    router = router_of(stuck, endpoint("b"))
    permit = router.try_acquire()
    assert permit is not None
    assert permit.endpoint.id == "b"
    assert router.try_acquire() is None
    assert router.try_acquire(avoid=[ReplicaId("b")]) is None
    waited: list[Permit] = []
    router.wait(waited.append, 0.0)
    assert not waited
    router.update([endpoint("a", 9), endpoint("b")])
    assert [each.endpoint.id for each in waited] == ["a"]


async def test_requests_fail_while_no_replica_can_start() -> None:
    router = router_of()
    waiter = router.wait(never, 0.0)
    asleep = asyncio.ensure_future(acquire(router))
    await asyncio.sleep(0)
    dismissed = router.update([], "no replica starts: RuntimeError")
    assert waiter in dismissed
    assert len(dismissed) == 2
    with pytest.raises(CannotStart, match=r"^no replica starts: RuntimeError$"):
        await asleep
    with pytest.raises(CannotStart):
        router.wait(never, 1.0)
    assert router.update([endpoint("a")], "no replica starts: RuntimeError") == []
    assert router.try_acquire() is not None, "one is there all the same"
    assert router.update([]) == []
    router.leave(router.wait(never, 2.0))
    assert router.waiting == 0


def test_the_router_reports_requests_that_wait_for_the_first_replica() -> None:
    reported: list[int] = []
    router = Router("shop/chat", None, lambda: reported.append(router.waiting))
    permits: list[Permit] = []
    router.wait(permits.append, 0.0)
    router.wait(permits.append, 1.0)
    assert reported == [1, 2]
    router.update([endpoint("a")])
    waiter = router.wait(never, 2.0)
    assert (reported, router.waiting, len(permits)) == ([1, 2], 2, 1)
    router.leave(waiter)
    router.update([])
    router.wait(never, 3.0)
    assert reported == [1, 2, 2]
    for waiter in router.close():
        assert waiter.done
    router.release(permits[0])


def test_requests_one_after_another_stay_at_a_replica_for_a_run_of_them_and_then_go_to_another() -> None:
    router = router_of(*(endpoint(name) for name in "abcd"))
    runs: list[ReplicaId] = []
    for _ in range(400):
        run = set()
        for _ in range(RUN):
            permit = router.try_acquire()
            assert permit is not None
            run.add(permit.endpoint.id)
            router.release(permit)
        assert len(run) == 1
        runs += run
    assert all(run != following for run, following in pairwise(runs))
    assert all(70 < runs.count(ReplicaId(name)) < 130 for name in "abcd")


def test_a_permit_released_twice_counts_once() -> None:
    router = router_of(endpoint("a"))
    permit = router.try_acquire()
    assert permit is not None
    router.release(permit)
    other = router.try_acquire()
    assert other is not None
    router.release(permit)
    assert router.ongoing == 1


class OneSlot:
    """A router with one slot, which is taken, and clients that wait for it."""

    def __init__(self) -> None:
        self.router = router_of(endpoint("a"), policy=Policy(max_queue_wait_s=10.0))
        self.served: list[float] = []
        permit = self.router.try_acquire()
        assert permit is not None
        self._permit = permit

    def wait(self, since: float, *avoid: str) -> Waiter:
        def granted(permit: Permit) -> None:
            self.served.append(since)
            self._permit = permit

        return self.router.wait(granted, since, avoid={ReplicaId(each) for each in avoid})

    def next(self) -> float:
        self.router.release(self._permit)
        return self.served[-1]


def test_while_clients_give_up_the_newest_is_served_first_until_the_queue_has_drained() -> None:
    world = OneSlot()
    for waiter in [world.wait(0.0), world.wait(1.0), world.wait(2.0)]:
        world.router.leave(waiter)
    world.wait(3.0)
    world.wait(4.0)
    assert world.next() == 3.0, "the queue was empty in between"
    for waiter in [world.wait(5.0), world.wait(6.0)]:
        world.router.leave(waiter)
    world.wait(7.0, "b")
    assert [world.next(), world.next()] == [7.0, 4.0]
    world.wait(8.0)
    world.wait(9.0)
    assert [world.next(), world.next()] == [8.0, 9.0], "the queue has drained"


def test_requests_that_waited_too_long_count_as_clients_that_gave_up() -> None:
    world = OneSlot()
    for since in (0.0, 1.0, 11.0, 12.0):
        world.wait(since)
    assert len(world.router.expire(11.0)) == 2
    assert world.next() == 12.0


def test_clients_whose_request_is_served_have_not_given_up() -> None:
    world = OneSlot()
    waiters = [world.wait(float(since)) for since in range(4)]
    assert [world.next(), world.next()] == [0.0, 1.0]
    for waiter in waiters[:2]:
        world.router.leave(waiter)
    assert world.next() == 2.0


def test_a_full_queue_refuses_at_once_and_names_its_limit() -> None:
    router = router_of(policy=Policy(max_queued_requests=1))
    router.wait(never, since=0.0)
    with pytest.raises(QueueFull, match="max_queued_requests is 1"):
        router.wait(never, since=0.0)
    assert repr(router) == "<Router shop/chat [1 waiting, 0 ongoing | 0 replicas]>"


def test_a_refused_request_keeps_its_place_beyond_the_bound() -> None:
    router = router_of(policy=Policy(max_queued_requests=2))
    served: list[str] = []
    router.wait(lambda _: served.append("oldest"), since=0.0)
    router.wait(lambda _: served.append("younger"), since=2.0)
    router.wait(lambda _: served.append("refused"), since=1.0, again=True)
    router.update([endpoint("a", 5)])
    assert served == ["oldest", "refused", "younger"]


def test_a_replica_that_failed_is_avoided_while_another_exists() -> None:
    router = router_of(endpoint("a", 5), endpoint("b", 5))
    for _ in range(5):
        permit = router.try_acquire(avoid={ReplicaId("a")})
        assert permit is not None
        assert permit.endpoint.id == "b"
    assert router.try_acquire(avoid={ReplicaId("a")}) is None
    router.update([endpoint("a", 5)])
    permit = router.try_acquire(avoid={ReplicaId("a")})
    assert permit is not None
    assert permit.endpoint.id == "a"


def test_a_request_that_spares_the_last_replica_waits_for_another() -> None:
    router = router_of(endpoint("a", 5))
    avoid = (ReplicaId("a"), NO_OTHER)
    assert router.try_acquire(avoid) is None
    granted: list[str] = []
    router.wait(lambda permit: granted.append(permit.endpoint.id), 0.0, avoid=avoid, again=True)
    assert router.try_acquire() is not None, "others do not wait behind it"
    router.update([endpoint("a", 5), endpoint("b", 5)])
    assert granted == ["b"]


def test_a_replica_that_answers_its_probes_is_ready() -> None:
    router = router_of(endpoint("a"), replace(endpoint("b"), unresponsive=True))
    assert list(router.ready) == ["a"]


@pytest.mark.parametrize("end", [Router.rest, Router.refused], ids=["not-reached", "full-and-without-a-line"])
async def test_a_replica_that_took_no_request_rests_and_is_tried_again(end: Callable[[Router, Permit], None]) -> None:
    router = router_of(endpoint("a", 5))
    permit = router.try_acquire()
    assert permit is not None
    end(router, permit)
    assert router.try_acquire() is None
    async with asyncio.timeout(PATIENCE_S):
        assert replica_of(await acquire(router)) == "a"


async def test_a_replica_rests_from_the_last_loss_and_has_one_timer_however_many_there_are() -> None:
    router = router_of(endpoint("a", 3))
    permits = [permit for _ in range(3) if (permit := router.try_acquire()) is not None]
    router.rest(permits[0])
    await asyncio.sleep(REST_S / 2)
    lost = asyncio.get_running_loop().time()
    router.rest(permits[1])
    router.rest(permits[2])
    async with asyncio.timeout(PATIENCE_S):
        await acquire(router)
    assert asyncio.get_running_loop().time() - lost > 0.9 * REST_S


async def test_a_replica_that_left_and_a_closed_router_leave_no_timer() -> None:
    router = router_of(endpoint("a"), endpoint("b"))
    lost, other = router.try_acquire(), router.try_acquire()
    assert lost is not None
    assert other is not None
    replicas = [lost.replica, other.replica]
    router.rest(lost)
    router.update([other.endpoint])
    router.rest(other)
    assert [replica.rest is None for replica in replicas] == [True, False]
    router.close()
    assert [replica.rest for replica in replicas] == [None, None]


# Standing in line


class Place:
    """A position in the wait queue of one replica, in the hands of the test."""

    def __init__(self, endpoint: Endpoint, reserved: Callable[[], None], ended: Callable[[], None]) -> None:
        self.endpoint = endpoint
        self.offer = reserved
        self.end = ended
        self.left = False

    def leave(self) -> None:
        assert not self.left
        self.left = True


class InLine:
    """A router whose replicas are full of others' requests once they have refused one of its own."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.positions: list[Place] = []
        self.router = Router("shop/chat", self._join, rng=Random(1))
        self.router.update(endpoints)
        self.served: list[str] = []
        self.permits: list[Permit] = []

    def _join(self, endpoint: Endpoint, reserved: Callable[[], None], ended: Callable[[], None]) -> Place:
        self.positions.append(Place(endpoint, reserved, ended))
        return self.positions[-1]

    def refused(self) -> Permit:
        permit = self.router.try_acquire()
        assert permit is not None
        self.router.refused(permit)
        return permit

    def wait(self, name: str, *avoid: str, since: float = 0.0) -> Waiter:
        def granted(permit: Permit) -> None:
            self.served.append(f"{name}@{permit.endpoint.id}")
            self.permits.append(permit)

        return self.router.wait(granted, since, avoid={ReplicaId(each) for each in avoid})


def test_a_full_replica_is_not_asked_again_before_it_reserves_a_slot() -> None:
    world = InLine(endpoint("a", 5))
    one, two = world.router.try_acquire(), world.router.try_acquire()
    assert one is not None
    assert two is not None
    world.router.refused(one)
    world.router.refused(two)
    assert [position.endpoint.id for position in world.positions] == ["a"]
    assert world.router.try_acquire() is None
    world.wait("younger", since=1.0)
    world.wait("refused", since=0.0)
    world.positions[0].offer()
    assert world.served == ["refused@a"]
    assert world.router.positions == 1
    world.positions[0].offer()
    assert world.served == ["refused@a", "younger@a"]
    assert all(permit.redeem() for permit in world.permits)
    assert not any(permit.redeem() for permit in world.permits), "an offer is claimed once"
    world.router.release(world.permits[0])
    assert world.router.positions == 1
    world.positions[0].offer()
    assert (world.router.positions, world.positions[0].left) == (0, True), "nobody waits here any more"
    world.router.release(world.permits[1])
    assert (world.router.waiting, world.router.ongoing) == (0, 0)


def test_a_reservation_at_the_limit_is_used_when_a_permit_is_released() -> None:
    world = InLine(endpoint("a", 1))
    world.refused()
    world.wait("one")
    world.wait("two")
    world.positions[0].offer()
    world.positions[0].offer()  # the replica has ended the first request, and its response is on the way
    assert (world.served, world.router.positions) == (["one@a"], 1)
    assert world.permits[0].redeem()
    world.router.release(world.permits[0])
    assert world.served == ["one@a", "two@a"]
    assert world.permits[1].redeem()


def test_a_reservation_at_the_limit_is_used_when_the_limit_is_raised() -> None:
    world = InLine(endpoint("a", 1))
    world.refused()
    world.wait("one")
    world.wait("two")
    world.positions[0].offer()
    world.positions[0].offer()
    world.router.update([endpoint("a", 2)])
    assert world.served == ["one@a", "two@a"]


def test_a_reservation_at_the_limit_is_returned_if_no_request_can_use_it() -> None:
    world = InLine(endpoint("a", 1), endpoint("b", 1))
    world.refused()
    world.refused()
    world.wait("one", "b")
    world.wait("two", "a")
    at_a = next(position for position in world.positions if position.endpoint.id == "a")
    at_a.offer()
    assert (world.served, at_a.left) == (["one@a"], False)
    at_a.offer()
    assert at_a.left


def test_a_replica_whose_reservation_expired_at_the_limit_does_not_rest() -> None:
    world = InLine(endpoint("a", 1))
    world.refused()
    world.wait("one")
    world.wait("two")
    world.positions[0].offer()
    world.positions[0].offer()
    world.positions[0].end()
    assert world.router.positions == 0
    world.router.release(world.permits[0])
    assert world.served == ["one@a", "two@a"]
    assert not world.permits[1].redeem()


def test_an_unused_reservation_goes_to_the_next_request_or_is_returned() -> None:
    world = InLine(endpoint("a", 5))
    world.refused()
    world.wait("gone")
    world.positions[0].offer()
    world.wait("next")
    world.router.release(world.permits[0])
    assert world.served == ["gone@a", "next@a"]
    world.router.release(world.permits[1])
    assert (world.router.positions, world.positions[0].left) == (0, True)


def test_a_request_refused_with_an_early_reservation_keeps_its_position() -> None:
    world = InLine(endpoint("a", 5))
    world.refused()
    world.wait("early")
    world.positions[0].offer()
    assert world.permits[0].redeem()
    world.router.refused(world.permits[0])
    assert (len(world.positions), world.router.positions) == (1, 1)
    world.wait("early")
    world.positions[0].offer()
    assert world.served == ["early@a", "early@a"]


async def test_a_replica_rests_when_its_queue_closes_and_is_asked_again() -> None:
    world = InLine(endpoint("a", 5))
    world.refused()
    position = world.positions[0]
    position.end()
    assert (world.router.positions, position.left) == (0, False)
    position.offer()  # too late
    assert world.router.try_acquire() is None
    async with asyncio.timeout(PATIENCE_S):
        assert not (await acquire(world.router)).redeem()


async def test_a_position_is_left_if_the_replica_is_lost_or_removed_or_the_router_closes() -> None:
    world = InLine(endpoint("a", 5))
    holding = world.router.try_acquire()
    assert holding is not None
    world.refused()
    world.router.rest(holding)
    assert world.positions[0].left
    world = InLine(endpoint("a", 5))
    permit = world.refused()
    world.router.update([])
    assert world.positions[0].left
    world.router.refused(permit)
    assert world.router.positions == 0
    world = InLine(endpoint("a", 5))
    world.refused()
    world.router.close()
    assert world.positions[0].left
    assert world.router.positions == 0


def test_a_permit_refused_by_a_removed_replica_joins_no_queue() -> None:
    world = InLine(endpoint("a", 5))
    permit = world.router.try_acquire()
    assert permit is not None
    world.router.update([])
    world.router.refused(permit)
    assert (world.positions, world.router.ongoing) == ([], 0)


def test_waiting_ends_with_a_sentence() -> None:
    router = router_of(policy=Policy(max_queue_wait_s=0.01))
    errors: list[Exception] = []
    router.wait(never, 0.0, failed=errors.append)
    router.expire(0.01)
    (error,) = errors
    assert isinstance(error, QueueTimeout)
    assert str(error).startswith("no replica of shop/chat runs, and none began to serve within 0.01 s")


async def test_a_closed_router_grants_no_permit() -> None:
    router = router_of(endpoint("a"))
    router.close()
    assert router.try_acquire() is None


async def test_a_closed_router_refuses_waiters() -> None:
    router = router_of()
    waiting = router.wait(never, since=0.0)
    assert router.close() == [waiting]
    with pytest.raises(NoReplica, match="the router of shop/chat is closed"):
        router.wait(never, since=0.0)


class RandomRouter(RuleBasedStateMachine):
    """A world of callers and replica sets, held against the plainest account of both."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router("world", self.join, policy=Policy(max_queued_requests=4), rng=Random(3))
        #: The replicas that others have filled, in whose wait queues it is.
        self.positions: list[Place] = []
        self.rooms: dict[str, int] = {}
        self.permits: list[Permit] = []
        #: Open streams and WebSockets.
        self.opened: list[Permit] = []
        self.waiters: list[Waiter] = []
        self.now = 0.0

    def join(self, endpoint: Endpoint, reserved: Callable[[], None], ended: Callable[[], None]) -> Place:
        self.positions.append(Place(endpoint, reserved, ended))
        return self.positions[-1]

    def take(self, permit: Permit) -> None:
        assert len(permit.replica.permits) <= permit.endpoint.max_ongoing_requests
        self.permits.append(permit)

    def wait(self, avoid: set[ReplicaId], since: float, *, again: bool = False) -> None:
        def granted(permit: Permit) -> None:
            self.take(permit)
            usable = [each for each in self.waiters if not each.done and self.may_use(each, permit.endpoint.id)]
            if self.router.newest_first:
                assert not [each for each in usable if each.since > since], "the newest was passed over"
            else:
                assert not [each for each in usable if each.since < since], "somebody was overtaken"

        self.waiters.append(self.router.wait(granted, since, avoid=avoid, again=again))

    def may_use(self, waiter: Waiter, name: str) -> bool:
        return name not in waiter.avoid or set(self.rooms) <= set(waiter.avoid)

    @rule(rooms=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3), max_size=4))
    def replicas_change(self, rooms: dict[str, int]) -> None:
        self.rooms = rooms
        self.router.update(endpoint(name, room) for name, room in rooms.items())

    @rule(avoid=st.sets(st.sampled_from("abcd")))
    def someone_asks(self, avoid: set[str]) -> None:
        avoided = {ReplicaId(name) for name in avoid}
        permit = self.router.try_acquire(avoided)
        if permit is not None:
            return self.take(permit)
        try:
            self.wait(avoided, self.now)
        except QueueFull:
            assert self.router.waiting >= 4

    @precondition(lambda self: self.permits)
    @rule(index=st.integers(0, 99))
    def someone_is_done(self, index: int) -> None:
        self.router.release(self.permits.pop(index % len(self.permits)))

    @precondition(lambda self: self.permits)
    @rule(index=st.integers(0, 99), avoid=st.sets(st.sampled_from("abcd")), waited=st.integers(0, 29))
    def someone_is_refused(self, index: int, avoid: set[str], waited: int) -> None:
        permit = self.permits.pop(index % len(self.permits))
        permit.redeem()
        self.router.refused(permit)
        avoided = {ReplicaId(name) for name in avoid}
        again = self.router.try_acquire(avoided)
        if again is not None:
            self.take(again)
        else:
            self.wait(avoided, self.now - waited, again=True)

    @precondition(lambda self: self.permits)
    @rule(index=st.integers(0, 99))
    def a_response_becomes_an_open_stream(self, index: int) -> None:
        permit = self.permits.pop(index % len(self.permits))
        permit.redeem()
        self.router.open(permit)
        self.opened.append(permit)

    @precondition(lambda self: self.opened)
    @rule(index=st.integers(0, 99), opened_again=st.booleans())
    def an_open_stream_ends(self, index: int, opened_again: bool) -> None:
        permit = self.opened.pop(index % len(self.opened))
        self.router.release(permit)
        if opened_again:
            self.router.open(permit)  # too late

    @precondition(lambda self: self.positions)
    @rule(index=st.integers(0, 99))
    def a_replica_offers_a_slot(self, index: int) -> None:
        self.positions[index % len(self.positions)].offer()

    @precondition(lambda self: self.waiters)
    @rule(index=st.integers(0, 99))
    def someone_leaves(self, index: int) -> None:
        self.router.leave(self.waiters.pop(index % len(self.waiters)))

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        for waiter in self.router.expire(self.now):
            assert self.now - waiter.since >= 30.0
        assert not [waiter for waiter in self.waiters if not waiter.done and self.now - waiter.since >= 30.0]

    @invariant()
    def gauges_are_the_sizes_of_live_sets(self) -> None:
        self.waiters = [waiter for waiter in self.waiters if not waiter.done]
        assert self.router.ongoing == len(self.permits)
        assert {permit for each in self.opened for permit in each.replica.opened} == set(self.opened)
        assert all(not permit.replica.opened for permit in self.permits if not self.opened)
        assert self.router.waiting == len(self.waiters)
        self.positions = [position for position in self.positions if not position.left]
        assert self.router.positions == len(self.positions)
        names = [position.endpoint.id for position in self.positions]
        assert len(set(names)) == len(names)
        assert set(names) <= set(self.rooms)

    @invariant()
    def nobody_waits_while_a_replica_that_it_may_use_is_free(self) -> None:
        free = {n for n, room in self.rooms.items() if sum(t.endpoint.id == n for t in self.permits) < room}
        free -= {position.endpoint.id for position in self.positions}
        assert not [name for name in free for waiter in self.waiters if self.may_use(waiter, name)]


RandomRouter.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestRandomRouter = RandomRouter.TestCase
