from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.exchange.placement.least_loaded import SPARE_OPEN, SPARE_REQUESTS, is_clearly_less, pick


def test_picking_from_no_replicas_returns_none() -> None:
    assert pick([], lambda _: (0, 0), Random(0)) is None


WORLDS = given(loads=st.lists(st.integers(0, 50), min_size=1, max_size=12), seed=st.integers(), data=st.data())


@WORLDS
def test_the_busiest_of_several_is_never_picked_while_it_stands_alone(
    loads: list[int], seed: int, data: st.DataObject
) -> None:
    last = data.draw(st.none() | st.sampled_from(range(len(loads))))
    picked = pick(range(len(loads)), lambda i: (loads[i], 0), Random(seed), last)
    assert picked is not None
    if len(loads) > 1 and loads.count(max(loads)) == 1:
        assert loads[picked] < max(loads)


@WORLDS
def test_last_replica_is_kept_until_another_is_less_busy(loads: list[int], seed: int, data: st.DataObject) -> None:
    last = data.draw(st.sampled_from(range(len(loads))))
    picked = pick(range(len(loads)), lambda i: (loads[i], 0), Random(seed), last)
    assert picked is not None
    assert picked == last or loads[picked] < loads[last]
    if loads[last] == min(loads):
        assert picked == last


@WORLDS
def test_client_moves_unless_the_other_replica_is_busier(loads: list[int], seed: int, data: st.DataObject) -> None:
    last = data.draw(st.sampled_from(range(len(loads))))
    picked = pick(range(len(loads)), lambda i: (loads[i], 0), Random(seed), last, moves=True)
    assert picked is not None
    assert len(loads) == 1 or picked != last or loads[last] < max(loads)
    assert loads[picked] <= loads[last]


def test_equals_share_the_requests_evenly() -> None:
    rng = Random(7)
    counts = Counter(pick("abcd", lambda _: 1, rng) for _ in range(8_000))
    assert all(1_800 < count < 2_200 for count in counts.values())


@pytest.mark.parametrize("last", "abcd")
def test_last_replica_is_compared_with_each_other_one_equally(last: str) -> None:
    rng = Random(7)
    counts = Counter(pick("abcd", lambda each: each == last, rng, last) for _ in range(6_000))
    assert last not in counts
    assert all(1_800 < counts[other] < 2_200 for other in "abcd" if other != last)


def test_of_replicas_with_as_many_requests_the_one_with_fewer_open_streams_is_picked() -> None:
    loads = {"a": (1, 0), "b": (0, 900), "c": (0, 7)}
    assert {pick(["a", "b"], loads.__getitem__, Random(seed)) for seed in range(20)} == {"b"}
    assert {pick(["b", "c"], loads.__getitem__, Random(seed), last="b") for seed in range(20)} == {"c"}


LOAD = st.tuples(st.integers(0, 200), st.integers(0, 2_000))


@given(one=LOAD, other=LOAD, streamed=st.booleans())
def test_no_two_replicas_are_clearly_less_loaded_than_each_other(
    one: tuple[int, int], other: tuple[int, int], streamed: bool
) -> None:
    assert not (is_clearly_less(one, other, streamed=streamed) and is_clearly_less(other, one, streamed=streamed))


@given(own=LOAD, other=LOAD, more=LOAD, streamed=st.booleans())
def test_a_client_that_moves_would_also_leave_a_replica_with_more_requests(
    own: tuple[int, int], other: tuple[int, int], more: tuple[int, int], streamed: bool
) -> None:
    if is_clearly_less(other, own, streamed=streamed):
        assert is_clearly_less(other, (own[0] + more[0], own[1]), streamed=streamed)


@given(load=LOAD, requests=st.integers(0, SPARE_REQUESTS), opened=st.integers(0, SPARE_OPEN))
def test_a_few_more_requests_and_its_own_streams_do_not_drive_a_client_away(
    load: tuple[int, int], requests: int, opened: int
) -> None:
    assert not is_clearly_less(load, (load[0] + requests, load[1] + opened))


@given(load=st.integers(0, 200))
def test_a_client_leaves_a_replica_with_half_as_many_requests_more_and_five(load: int) -> None:
    assert is_clearly_less((load, 0), (load + load // 2 + 5, 0))
    assert is_clearly_less((load, 0), (0, load + load // 2 + 5), streamed=True)
    assert not is_clearly_less((load, 0), (0, load + SPARE_OPEN))
