"""The limits of requests, over random histories with a manual time."""

import math
import time

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app_toolkit.chat.rate_limits import (
    BUSY_RETRY_S,
    MAX_PER_MINUTE,
    MINUTE_S,
    KeyLimits,
    OverLimit,
    RateLimiter,
    RatePermit,
    SlidingWindow,
)

LIMITS = KeyLimits(max_concurrent=3, max_per_minute=5)

STEPS = st.one_of(st.floats(0, 30), st.sampled_from([0.0, MINUTE_S, math.nextafter(MINUTE_S, 0)]))


class Requests(RuleBasedStateMachine):
    """Requests of one client, and what the limits say of each one."""

    def __init__(self) -> None:
        super().__init__()
        self.limiter = RateLimiter(LIMITS)
        self.now = 0.0
        self.admitted: list[float] = []
        self.running: list[RatePermit] = []

    def recent(self) -> int:
        return sum(self.now - at < MINUTE_S for at in self.admitted)

    @rule(seconds=STEPS)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def ask(self) -> None:
        recent, running = self.recent(), len(self.running)
        result = self.limiter.acquire(self.now)
        if isinstance(result, RatePermit):
            self.running.append(result)
            self.admitted.append(self.now)
            assert (recent < 5, running < 3) == (True, True)
        elif result.limit == "max_concurrent":
            assert running == 3
            assert result.retry_after_s == BUSY_RETRY_S
        else:
            assert recent == 5
            assert 0 <= result.retry_after_s <= MINUTE_S

    @precondition(lambda self: self.running)
    @rule(data=st.data(), twice=st.booleans())
    def end(self, data: st.DataObject, twice: bool) -> None:
        permit = data.draw(st.sampled_from(self.running))
        self.running.remove(permit)
        for _ in range(1 + twice):
            self.limiter.release(permit)

    @invariant()
    def the_running_requests_are_counted(self) -> None:
        assert self.limiter.running == len(self.running)

    @invariant()
    def no_minute_has_more_than_the_limit(self) -> None:
        assert all(sum(at <= each < at + MINUTE_S for each in self.admitted) <= 5 for at in self.admitted)


Requests.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
test_any_history = Requests.TestCase


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(1, 6))
def test_refused_request_is_admitted_after_retry_after_and_not_before(steps: list[int], limit: int) -> None:
    window, now = SlidingWindow(limit), 0
    for step in steps:
        now += step
        if not window.admit(now):
            wait = window.retry_after_s(now)
            assert not window.admit(now + wait - 0.5)
            assert window.admit(now + wait)
            return


def test_without_limits_every_request_is_admitted() -> None:
    limiter = RateLimiter(KeyLimits())
    assert all(isinstance(limiter.acquire(0.0), RatePermit) for _ in range(1_000))
    assert limiter.running == 1_000


def test_a_request_that_does_not_run_counts_in_the_minute_only() -> None:
    limiter = RateLimiter(KeyLimits(max_concurrent=1, max_per_minute=3))
    permit = limiter.acquire(0.0)
    assert isinstance(limiter.acquire(0.0, runs=False), RatePermit)
    assert limiter.running == 1
    assert isinstance(limiter.acquire(0.0), OverLimit)
    assert isinstance(permit, RatePermit)
    limiter.release(permit)
    assert isinstance(limiter.acquire(0.0, runs=False), RatePermit)
    refused = limiter.acquire(0.0, runs=False)
    assert isinstance(refused, OverLimit)
    assert refused.limit == "max_per_minute"


def test_the_requests_left_of_a_full_window_are_known_without_counting_them() -> None:
    window = SlidingWindow(MAX_PER_MINUTE)
    assert all(window.admit(0.0) for _ in range(MAX_PER_MINUTE))
    began = time.process_time()
    assert not any(window.remaining(1.0) for _ in range(1_000))
    assert time.process_time() - began < 2  # counting takes 10 s
    assert window.remaining(MINUTE_S) == MAX_PER_MINUTE
