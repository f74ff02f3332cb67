from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.core.balance import pick


def test_nobody_can_be_picked_from_nobody() -> None:
    assert pick([], lambda _: 0, Random(0)) is None


WORLDS = given(loads=st.lists(st.integers(0, 50), min_size=1, max_size=12), seed=st.integers(), data=st.data())


@WORLDS
def test_the_busiest_of_several_is_never_picked_while_it_stands_alone(
    loads: list[int], seed: int, data: st.DataObject
) -> None:
    last = data.draw(st.none() | st.sampled_from(range(len(loads))))
    picked = pick(range(len(loads)), lambda i: loads[i], Random(seed), last)
    assert picked is not None
    if len(loads) > 1 and loads.count(max(loads)) == 1:
        assert loads[picked] < max(loads)


@WORLDS
def test_who_was_picked_last_stays_until_another_has_less_to_do(
    loads: list[int], seed: int, data: st.DataObject
) -> None:
    last = data.draw(st.sampled_from(range(len(loads))))
    picked = pick(range(len(loads)), lambda i: loads[i], Random(seed), last)
    assert picked is not None
    assert picked == last or loads[picked] < loads[last]
    if loads[last] == min(loads):
        assert picked == last


@WORLDS
def test_who_moves_on_stays_only_where_the_other_has_more_to_do(
    loads: list[int], seed: int, data: st.DataObject
) -> None:
    last = data.draw(st.sampled_from(range(len(loads))))
    picked = pick(range(len(loads)), lambda i: loads[i], Random(seed), last, moves=True)
    assert picked is not None
    assert len(loads) == 1 or picked != last or loads[last] < max(loads)
    assert loads[picked] <= loads[last]


def test_equals_share_the_requests_evenly() -> None:
    rng = Random(7)
    counts = Counter(pick("abcd", lambda _: 1, rng) for _ in range(8_000))
    assert all(1_800 < count < 2_200 for count in counts.values())


@pytest.mark.parametrize("last", "abcd")
def test_who_was_picked_last_is_compared_with_each_of_the_others_alike(last: str) -> None:
    rng = Random(7)
    counts = Counter(pick("abcd", lambda each: each == last, rng, last) for _ in range(6_000))
    assert last not in counts
    assert all(1_800 < counts[other] < 2_200 for other in "abcd" if other != last)
