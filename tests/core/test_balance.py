from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.core.balance import pick


def test_nobody_can_be_picked_from_nobody() -> None:
    assert pick([], lambda _: 0, Random(0)) is None


@given(loads=st.lists(st.integers(0, 50), min_size=1, max_size=12), seed=st.integers())
def test_the_busiest_of_several_is_never_picked_while_it_stands_alone(loads: list[int], seed: int) -> None:
    picked = pick(range(len(loads)), lambda i: loads[i], Random(seed))
    assert picked is not None
    if len(loads) > 1 and loads.count(max(loads)) == 1:
        assert loads[picked] < max(loads)


def test_equals_share_the_requests_evenly() -> None:
    rng = Random(7)
    counts = Counter(pick("abcd", lambda _: 1, rng) for _ in range(8_000))
    assert all(1_800 < count < 2_200 for count in counts.values())
