"""Whether a client sends its body fast enough: only the time in which the server was ready to read counts. Whether a
body is slow, and how many slots such bodies may hold."""

from hypothesis import assume, given
from hypothesis import strategies as st

from app_toolkit.exchange.upload_rate import (
    LONGEST_LOOK_S,
    PROMPT,
    PROMPT_S,
    MinimumRate,
    Period,
    is_slow,
    measured,
    most_slow_bodies,
)

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
def test_no_client_is_cut_without_a_minimum_rate(looks: list[float]) -> None:
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


# Slow bodies

BYTES = st.integers(0, 10_000_000)
SECONDS = st.floats(0.001, 1_000)


@given(BYTES, SECONDS)
def test_a_complete_body_is_never_slow(received: int, seconds: float) -> None:
    assert not is_slow(received, 0, seconds)


@given(BYTES, st.none() | BYTES, SECONDS)
def test_a_body_that_is_not_slow_is_complete_fast_or_soon_there(
    received: int, missing: int | None, seconds: float
) -> None:
    if is_slow(received, missing, seconds):
        return
    rate = received / seconds
    soon = missing is not None and missing <= rate * PROMPT_S * 1.001
    assert soon or rate >= PROMPT.bytes_per_s * 0.999


@given(BYTES, BYTES, SECONDS)
def test_a_body_of_unknown_length_is_slow_if_a_long_one_of_the_same_rate_is(
    received: int, missing: int, seconds: float
) -> None:
    if is_slow(received, missing, seconds):
        assert is_slow(received, None, seconds)


@given(BYTES, BYTES, SECONDS, st.integers(0, 1_000_000))
def test_more_bytes_in_the_same_time_never_make_a_body_slow(
    received: int, missing: int, seconds: float, more: int
) -> None:
    if not is_slow(received, missing, seconds):
        assert not is_slow(received + more, max(0, missing - more), seconds)


def test_a_body_of_which_nothing_has_arrived_is_slow() -> None:
    assert is_slow(0, 100_000, 0.2)
    assert is_slow(0, None, 0.2)


@given(st.integers(1, 10_000))
def test_slow_bodies_may_hold_a_slot_but_never_most_of_several(slots: int) -> None:
    most = most_slow_bodies(slots)
    assert 1 <= most <= slots
    assert slots == 1 or most <= slots / 2
