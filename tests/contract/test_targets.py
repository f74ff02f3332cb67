"""`contract.targets`: the members of a split that a process calls, and the choice for each request."""

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from math import sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.contract.targets import callable_members, choose, members, shard_key
from app_toolkit.wire import hop
from tests.keys import app

WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e300), min_size=1)
KEYS = [f"user-{number}" for number in range(5_000)]


def chosen(weights: Mapping[str, float], key: str | None, draw: float = 0.0) -> str:
    return choose(members(app("shop"), weights), key, lambda: draw).name


@given(code=WEIGHTS, published=st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1)))
def test_process_chooses_only_members_of_its_code(code: dict[str, float], published: dict[str, float]) -> None:
    mirrors = dict.fromkeys(published, 0.5)
    targets = callable_members(members(app("shop"), code), members(app("shop"), published, mirrors))
    shares = {target.name: target.weight for target in targets}
    assert shares.keys() == code.keys()
    assert {target.name for target in targets if target.mirror} == code.keys() & published.keys()
    if any(published.get(name, 0.0) for name in code):
        assert shares == {name: published.get(name, 0.0) for name in code}
    elif code.keys() != published.keys():
        assert shares == code


@given(st.binary(max_size=2_000))
def test_shard_key_of_a_request_is_bounded_text(value: bytes) -> None:
    key = shard_key(value)
    assert (key is None) == (not value.strip(b" \t"))
    if key is not None:
        assert value.strip(b" \t")[:512] == key.encode("utf-8", "surrogateescape")
        assert hop.decode_key(hop.encode_key(key)) == key


@given(weights=WEIGHTS, key=st.none() | st.text(), draw=st.floats(0, 1, exclude_max=True))
def test_a_member_without_weight_gets_nothing(weights: dict[str, float], key: str | None, draw: float) -> None:
    name = chosen(weights, key, draw)
    assert weights[name] > 0 or not any(weights.values())
    assert name == chosen(weights, key, draw)


@given(weights=WEIGHTS, key=st.text(), one=st.floats(0, 1, exclude_max=True), other=st.floats(0, 1, exclude_max=True))
def test_a_key_has_one_member_whatever_is_drawn(weights: dict[str, float], key: str, one: float, other: float) -> None:
    assert chosen(weights, key, one) == chosen(weights, key, other)


@given(weights=WEIGHTS, key=st.text(), member=st.sampled_from("abcd"), more=st.floats(1, 100))
def test_a_key_moves_only_to_the_member_with_more_weight(
    weights: dict[str, float], key: str, member: str, more: float
) -> None:
    before = chosen(weights, key)
    after = chosen({**weights, member: max(weights.get(member, 0.0), 1e-9) * more}, key)
    assert after in (before, member)


ELSEWHERE = """
from tests.contract.test_targets import chosen
for number in range(200):
    print(chosen({"one": 0.5, "two": 0.3, "three": 0.2}, f"user-{number}"))
"""


def test_key_has_the_same_member_in_two_processes() -> None:
    here = [chosen({"three": 0.2, "two": 0.3, "one": 0.5}, f"user-{number}") for number in range(200)]
    there = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=True, timeout=60)
    assert there.stdout.split() == here
    assert set(here) == {"one", "two", "three"}


@pytest.mark.parametrize("keyed", [False, True])
def test_each_member_gets_its_share(keyed: bool) -> None:
    rng = Random(1)
    counts = Counter(chosen({"a": 90.0, "b": 10.0}, key if keyed else None, rng.random()) for key in KEYS)
    assert abs(counts["b"] - 500) < 3 * sqrt(5_000 * 0.9 * 0.1)


def test_only_the_necessary_share_of_the_keys_moves() -> None:
    before = {key: chosen({"a": 90.0, "b": 10.0}, key) for key in KEYS}
    after = {key: chosen({"a": 80.0, "b": 20.0}, key) for key in KEYS}
    moved = [(before[key], after[key]) for key in KEYS if before[key] != after[key]]
    assert set(moved) == {("a", "b")}
    assert abs(len(moved) - 500) < 3 * sqrt(5_000 * 0.9 * 0.1)
