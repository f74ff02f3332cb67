"""Which end of a queue is served next."""

from math import ceil, log

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.exchange.queueing import (
    FULL_S,
    MEMORY,
    MOST_ABANDONED,
    ROOM_S,
    Candidate,
    FullAlarm,
    ServingOrder,
    next_served,
)

#: True: a request gives up; False: it is served.
LEAVING = st.lists(st.booleans(), max_size=200)


def order_after(leaving: list[bool]) -> ServingOrder:
    order = ServingOrder()
    for gave_up in leaving:
        (order.gave_up if gave_up else order.served)()
    return order


@given(st.integers(0, 1_000))
def test_oldest_request_is_served_first_unless_clients_give_up(served: int) -> None:
    assert not order_after([False] * served).newest_first


@given(LEAVING)
def test_the_share_is_a_share_and_the_queue_that_drained_begins_anew(leaving: list[bool]) -> None:
    order = order_after(leaving)
    assert 0 <= order.abandoned <= 1
    order.began()
    assert not order.newest_first


@given(st.integers(0, 100))
def test_one_that_gives_up_among_many_changes_nothing(served: int) -> None:
    order = order_after([False] * served)
    order.gave_up()
    assert not order.newest_first


@given(LEAVING)
def test_two_that_give_up_one_after_the_other_have_the_newest_served_first(leaving: list[bool]) -> None:
    assert order_after([*leaving, True, True]).newest_first


@given(LEAVING)
def test_those_who_are_served_bring_the_oldest_back_to_the_front(leaving: list[bool]) -> None:
    enough = ceil(log(MOST_ABANDONED) / log(1 - MEMORY))
    assert not order_after([*leaving, *[False] * enough]).newest_first


@given(LEAVING, st.integers(0, 199))
def test_one_more_that_gives_up_never_makes_the_oldest_go_first(leaving: list[bool], index: int) -> None:
    worse = [gave_up or at == index for at, gave_up in enumerate(leaving)]
    assert order_after(worse).abandoned >= order_after(leaving).abandoned


# Requests that give way

CANDIDATES = st.lists(st.builds(Candidate, st.integers(), st.booleans()), max_size=8)


@given(CANDIDATES)
def test_a_request_that_gives_way_is_served_only_if_no_other_can_be(candidates: list[Candidate[int]]) -> None:
    following = next_served(candidates)
    assert following == next((each for each in sorted(candidates, key=lambda each: each.gives_way)), None)


@given(CANDIDATES)
def test_candidates_after_one_that_gives_no_way_are_not_looked_at(candidates: list[Candidate[int]]) -> None:
    read = iter([*candidates, Candidate(0), Candidate(1)])
    next_served(read)
    assert Candidate(1) in list(read)


# A deployment that is full


@given(st.lists(st.tuples(st.booleans(), st.floats(0.1, FULL_S)), max_size=100))
def test_a_time_in_which_a_deployment_is_full_is_worth_one_warning(looks: list[tuple[bool, float]]) -> None:
    alarm = FullAlarm()
    now, since = 0.0, 0.0
    full_at: float | None = None
    for full, seconds in looks:
        now += seconds
        if not full:
            since = now
        warns = alarm.must_warn(full, since, now)
        lasts = full and now - since >= FULL_S
        assert warns == (lasts and (full_at is None or now - full_at >= ROOM_S))
        if lasts:
            full_at = now
