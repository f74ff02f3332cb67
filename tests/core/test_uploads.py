"""Whether a client sends its body fast enough: only the time in which the server was ready to read counts."""

from hypothesis import assume, given
from hypothesis import strategies as st

from app_toolkit.core.uploads import LONGEST_LOOK_S, MinimumRate, Period, measured

RATE, GRACE_S = 500, 5.0
MINIMUM = MinimumRate(RATE, GRACE_S)
#: Seconds between two looks.
LOOKS = st.lists(st.floats(0.1, LONGEST_LOOK_S), min_size=1, max_size=100)


def watched(looks: list[float], rate: float, minimum: MinimumRate = MINIMUM) -> float | None:
    """When a client that sends at this rate is found to be too slow; None: never."""
    now = sent = 0.0
    period: Period | None = Period(now, 0)
    for seconds in looks:
        now += seconds
        sent += seconds * rate
        assert period is not None
        period = measured(period, now, round(sent), minimum)
        if period is None:
            return now
    return None


@given(LOOKS, st.floats(1.01, 1_000))
def test_a_client_that_is_fast_enough_is_never_cut(looks: list[float], times: float) -> None:
    assert watched(looks, RATE * times) is None


@given(LOOKS, st.floats(0, 0.99))
def test_a_client_that_is_too_slow_is_cut_at_the_end_of_a_period(looks: list[float], share: float) -> None:
    cut = watched([*looks, *[0.5] * 30], RATE * share)
    assert cut is not None
    assert GRACE_S <= cut <= GRACE_S + LONGEST_LOOK_S + 0.01


@given(LOOKS)
def test_without_a_minimum_nobody_is_cut(looks: list[float]) -> None:
    assert watched(looks, 0, MinimumRate(0, GRACE_S)) is None


@given(st.floats(LONGEST_LOOK_S, 3_600), st.floats(0, GRACE_S - LONGEST_LOOK_S - 0.01))
def test_a_process_that_stood_still_does_not_take_that_for_the_clients_slowness(stood: float, before: float) -> None:
    period = Period(0.0, 0, before)
    assert measured(period, stood, 0, MINIMUM) is not None


@given(st.floats(0, 100), st.integers(0, 10_000), st.floats(-10, 0))
def test_a_clock_that_is_read_out_of_order_adds_no_time(now: float, received: int, back: float) -> None:
    period = Period(now, received)
    after = measured(period, now + back, received, MINIMUM)
    assert after is not None
    assert after.seconds == 0


@given(st.floats(0, 1_000), st.integers(0, 1_000_000), st.integers(0, 1_000_000))
def test_a_period_counts_only_what_arrived_within_it(now: float, before: int, more: int) -> None:
    assume(abs(more - RATE * GRACE_S) > 1)
    period = Period(now, before, GRACE_S)
    after = measured(period, now, before + more, MINIMUM)
    assert (after is None) == (more < RATE * GRACE_S)
    assert after is None or after == Period(now, before + more)
