"""The time at which a batch closes, and its items."""

import itertools
import pickle
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app_toolkit.errors import ConfigError
from app_toolkit.userapp.batch import BOUNDS, BatchSettings, Buffer


def test_sizes_are_added_up_and_no_item_overtakes_a_large_one() -> None:
    buffer: Buffer[str] = Buffer(BatchSettings(max_batch_size=10, max_concurrent_batches=9, batch_wait_timeout_s=60))
    for item, size in {"a": 6, "b": 3, "large": 40, "c": 1, "d": 0}.items():
        buffer.add(item, size, 0.0)
    assert buffer.close(now=0) == ["a", "b"]
    assert buffer.close(now=0) == ["large"]
    assert buffer.close(now=0) == [], "one of ten, and its time is not up"
    assert buffer.close(now=60) == ["c", "d"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_batch_size", 0, "a whole number from 1 to"),
        ("max_batch_size", 2.5, "a whole number from 1 to"),
        ("max_batch_size", True, "a whole number from 1 to"),
        ("batch_wait_timeout_s", -0.1, "a number from 0 to 3,600"),
        ("batch_wait_timeout_s", float("nan"), "a number from 0 to 3,600"),
        ("batch_wait_timeout_s", "10ms", "a number from 0 to 3,600"),
        ("max_concurrent_batches", 1_001, "a whole number from 1 to 1,000"),
    ],
)
def test_a_limit_out_of_its_bounds_is_refused_in_one_sentence(name: str, value: Any, said: str) -> None:
    limits = BatchSettings()
    before = repr(limits)
    with pytest.raises(ConfigError, match=f"{name} = .* must be {said}"):
        setattr(limits, name, value)
    with pytest.raises(ConfigError, match=said):
        BatchSettings(**{name: value})
    assert repr(limits) == before


def test_a_limit_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=f"no limit 'max_size', only {', '.join(BOUNDS)}"):
        BatchSettings().max_size = 3


def test_limits_travel() -> None:
    limits = BatchSettings(max_batch_size=3, batch_wait_timeout_s=1, max_concurrent_batches=2)
    assert pickle.loads(pickle.dumps(limits)) == limits


class RandomBatches(RuleBasedStateMachine):
    """Items that come, leave and are served, and limits that change, held against the plainest account of them."""

    @initialize(size=st.integers(1, 6), wait=st.sampled_from([0, 0.5, 2]), most=st.integers(1, 3))
    def begin(self, size: int, wait: float, most: int) -> None:
        self.limits = BatchSettings(size, wait, most)
        self.buffer: Buffer[int] = Buffer(self.limits)
        self.tokens = itertools.count()
        self.now = 0.0
        self.sizes: dict[int, int] = {}
        self.came: dict[int, float] = {}
        #: Who is there, in the order in which they came.
        self.there: list[int] = []
        self.running: list[list[int]] = []
        self.served: set[int] = set()

    def settle(self) -> None:
        """What the shell does after every event."""
        while batch := self.buffer.close(self.now):
            assert len(self.running) < self.limits.max_concurrent_batches
            # Nobody overtakes, is lost or is served twice.
            assert batch == self.there[: len(batch)]
            assert self.served.isdisjoint(batch)
            total = sum(self.sizes[item] for item in batch)
            assert total <= self.limits.max_batch_size or len(batch) == 1
            waited = self.now - self.came[batch[0]] >= self.limits.batch_wait_timeout_s
            full = sum(self.sizes[item] for item in self.there) >= self.limits.max_batch_size
            assert waited or full
            after = self.there[len(batch) :]
            if after:
                assert total + self.sizes[after[0]] > self.limits.max_batch_size, "the next one had room"
            self.there = after
            self.served.update(batch)
            self.running.append(batch)

    @rule(size=st.sampled_from([1, 1, 1, 0, 2, 5, 9]))
    def an_item_comes(self, size: int) -> None:
        item = next(self.tokens)
        self.sizes[item], self.came[item] = size, self.now
        self.there.append(item)
        self.buffer.add(item, size, self.now)
        self.settle()

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def an_item_leaves(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.there))
        self.there.remove(item)
        assert self.buffer.remove(item)
        self.settle()

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def one_that_was_taken_cannot_leave(self, data: st.DataObject) -> None:
        assert not self.buffer.remove(data.draw(st.sampled_from(sorted(self.served))))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_batch_ends(self, data: st.DataObject) -> None:
        self.running.remove(data.draw(st.sampled_from(self.running)))
        self.buffer.ended()
        self.settle()

    @rule(seconds=st.sampled_from([0.125, 0.5, 1.0]))  # of which sums are exact
    def time_passes(self, seconds: float) -> None:
        """As a clock does that wakes the shell when a batch is due."""
        until = self.now + seconds
        while (at := self.buffer.closes_at) is not None and at <= until:
            self.now = max(self.now, at)
            self.settle()
        self.now = until

    @rule(size=st.integers(1, 6), wait=st.sampled_from([0, 0.5, 2]), most=st.integers(1, 3))
    def limits_change(self, size: int, wait: float, most: int) -> None:
        self.limits.max_batch_size = size
        self.limits.batch_wait_timeout_s = wait
        self.limits.max_concurrent_batches = most
        self.settle()

    @invariant()
    def nobody_waits_for_longer_than_agreed_while_a_batch_may_run(self) -> None:
        if self.there and len(self.running) < self.limits.max_concurrent_batches:
            closes_at = self.buffer.closes_at
            assert closes_at == self.came[self.there[0]] + self.limits.batch_wait_timeout_s
            assert closes_at > self.now
        else:
            assert self.buffer.closes_at is None

    @invariant()
    def a_full_batch_does_not_wait(self) -> None:
        if len(self.running) < self.limits.max_concurrent_batches:
            assert sum(self.sizes[item] for item in self.there) < self.limits.max_batch_size

    @invariant()
    def the_account_is_right(self) -> None:
        assert list(self.buffer.items) == self.there
        assert self.buffer.size == sum(self.sizes[item] for item in self.there)
        assert self.buffer.running == len(self.running)

    def teardown(self) -> None:
        for _ in range(len(self.there) + 1):  # each time, one is served at least
            self.now += self.limits.batch_wait_timeout_s
            self.settle()
            for _ in range(len(self.running)):
                self.running.pop()
                self.buffer.ended()
        assert (self.buffer.items, self.buffer.size, self.buffer.running) == ({}, 0, 0)


RandomBatches.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
TestRandomBatches = RandomBatches.TestCase
