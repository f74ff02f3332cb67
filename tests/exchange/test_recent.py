"""How often something happened lately."""

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.exchange.recent import LONGEST_WAIT_S, WINDOW_S, Recent, retry_after_s

GAPS = st.lists(st.floats(0, 4) | st.floats(0, 0.01) | st.just(60.0), max_size=60)


@given(GAPS, st.floats(0, 30))
def test_recent_counts_equal_those_of_a_full_list(gaps, later):
    recent, times, now = Recent(), [], 5_000.0
    for gap in gaps:
        now += gap
        recent.note(now)
        times.append(now)
    now += later
    kept = [at for at in times if int(at) > int(now) - WINDOW_S]
    assert recent.total(now) == len(kept)
    span = max(now - int(kept[0]), 1.0) if kept else 1.0
    assert recent.rate(now) == len(kept) / span


def test_nothing_that_happened_is_no_rate():
    assert Recent().rate(7.0) == 0.0


def test_a_rate_is_not_diluted_by_the_calm_before():
    recent = Recent()
    for number in range(200):
        recent.note(1_000.0 + number / 100)
    assert recent.rate(1_002.0) == 100.0


def test_retry_after_is_the_time_until_waiting_requests_are_served():
    assert retry_after_s(waiting=100, rate=10.0) == 10
    assert retry_after_s(waiting=101, rate=10.0) == 11


@given(st.integers(0, 1_000_000), st.floats(0, 1e6))
def test_retry_after_is_between_a_second_and_a_minute(waiting, rate):
    assert 1 <= retry_after_s(waiting, rate) <= LONGEST_WAIT_S


def test_retry_after_of_a_short_queue_is_short_without_responses():
    assert retry_after_s(waiting=0, rate=0.0) == 1
    assert retry_after_s(waiting=3, rate=0.0) == 30
    assert retry_after_s(waiting=1_000, rate=0.0) == LONGEST_WAIT_S
