"""`core.traffic`: shares of live revisions, and the choice for each request."""

from collections import Counter
from math import inf, isclose, nan, sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.core.traffic import choose, shares
from app_toolkit.errors import ConfigError

WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e300), min_size=1)
KEYS = [f"user-{number}" for number in range(5_000)]


@given(weights=st.dictionaries(st.integers(1, 4), st.floats(0, 1e9), min_size=1))
def test_shares_are_the_normalized_weights(weights: dict[int, float]) -> None:
    if not any(weights.values()):
        with pytest.raises(ConfigError, match="the weights of application 'shop' are all 0; one of 1, 2, 3, 4"):
            shares(weights, [1, 2, 3, 4], "shop")
        return
    found = shares(weights, [1, 2, 3, 4], "shop")
    assert isclose(sum(found.values()), 1.0)
    total = sum(weights.values())
    assert found == pytest.approx({revision: weights.get(revision, 0.0) / total for revision in found})


def test_weights_may_be_huge() -> None:
    assert shares({1: 1e308, 2: 1e308}, [1, 2], "shop") == {1: 0.5, 2: 0.5}


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({3: 1.0}, "application 'shop' has no live revision 3; it has 1, 2"),
        ({1: -1.0}, "the weight of revision 1 is -1; it should be a number from 0"),
        ({1: nan}, "the weight of revision 1 is nan"),
        ({1: inf}, "the weight of revision 1 is inf"),
        ({}, "are all 0"),
        ({1: 0.0, 2: 0.0}, "are all 0"),
    ],
)
def test_invalid_weights_are_refused(weights: dict[int, float], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        shares(weights, [1, 2], "shop")


@given(weights=WEIGHTS, key=st.none() | st.text(), draw=st.floats(0, 1, exclude_max=True))
def test_a_member_without_weight_gets_nothing(weights: dict[str, float], key: str | None, draw: float) -> None:
    chosen = choose(weights, key, draw)
    assert weights[chosen] > 0 or not any(weights.values())
    assert chosen == choose(weights, key, draw)


@given(weights=WEIGHTS, key=st.text(), one=st.floats(0, 1, exclude_max=True), other=st.floats(0, 1, exclude_max=True))
def test_a_key_has_one_member_whatever_is_drawn(weights: dict[str, float], key: str, one: float, other: float) -> None:
    assert choose(weights, key, one) == choose(weights, key, other)


@given(weights=WEIGHTS, key=st.text(), member=st.sampled_from("abcd"), more=st.floats(1, 100))
def test_a_key_moves_only_to_the_member_with_more_weight(
    weights: dict[str, float], key: str, member: str, more: float
) -> None:
    before = choose(weights, key, 0.0)
    after = choose({**weights, member: max(weights.get(member, 0.0), 1e-9) * more}, key, 0.0)
    assert after in (before, member)


@pytest.mark.parametrize("keyed", [False, True])
def test_each_member_gets_its_share(keyed: bool) -> None:
    rng = Random(1)
    counts = Counter(choose({"a": 90.0, "b": 10.0}, key if keyed else None, rng.random()) for key in KEYS)
    assert abs(counts["b"] - 500) < 3 * sqrt(5_000 * 0.9 * 0.1)


def test_only_the_necessary_share_of_the_keys_moves() -> None:
    before = {key: choose({"a": 90.0, "b": 10.0}, key, 0.0) for key in KEYS}
    after = {key: choose({"a": 80.0, "b": 20.0}, key, 0.0) for key in KEYS}
    moved = [(before[key], after[key]) for key in KEYS if before[key] != after[key]]
    assert set(moved) == {("a", "b")}
    assert abs(len(moved) - 500) < 3 * sqrt(5_000 * 0.9 * 0.1)
