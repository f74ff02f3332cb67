"""When a replica set that fails may try again."""

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_toolkit.control.backoff import (
    FAILED_STARTS,
    KEPT,
    LONGEST_WAIT_S,
    LOST_PER_WINDOW,
    PER_WINDOW,
    REFUSED_S,
    SERVED_S,
    WINDOW_S,
    Failure,
    cannot_start,
    cleared,
    exception_name,
    failed_starts,
    has_outlived,
    is_held_back,
    not_before,
    noted,
)


def failing_at_once(times, *, served=False, first_at=0.0):
    """Each start fails the moment it is made; the waits between."""
    failures, now, waits = (), first_at, []
    for _ in range(times):
        failures = noted(failures, Failure(now, "v1", served))
        when = not_before(failures, "v1")
        waits.append(when - now)
        now = max(when, now + 0.5)
    return waits


def test_start_is_not_delayed_without_failures():
    assert not_before((), "v1") is None


def test_a_first_death_of_one_that_served_is_made_good_at_once():
    assert failing_at_once(4, served=True) == [0.0, 0.5, 1.0, 2.0]


def test_a_failed_start_waits_and_each_next_one_twice_as_long():
    assert failing_at_once(4) == [0.5, 1.0, 2.0, 4.0]


def test_the_wait_has_an_end():
    waits = failing_at_once(14)
    assert waits[-5:] == [30.0] * 5


def test_no_more_than_five_fall_into_one_minute():
    failures, now, times = (), 0.0, []
    for _ in range(30):
        failures = noted(failures, Failure(now, "v1", served=True))
        times.append(now)
        now = max(not_before(failures, "v1"), now + 0.5)
    for first, sixth in zip(times, times[PER_WINDOW:], strict=False):
        assert sixth - first >= WINDOW_S


def test_of_several_replicas_that_served_each_has_its_five():
    failures = ()
    for number in range(PER_WINDOW + 1):
        failures = noted(failures, Failure(10.0 * number, "v1", served=True))
    last = failures[-1].at
    assert not_before(failures, "v1") == failures[1].at + WINDOW_S
    assert not_before(failures, "v1", desired=3) == last + 8.0  # doubled four times
    failed = noted(failures, Failure(last + 1.0, "v1", served=False))
    assert not_before(failed, "v1", desired=3) == failures[2].at + WINDOW_S


def test_one_of_two_proxies_that_is_killed_every_ten_seconds_is_replaced_at_once():
    failures = ()
    for number in range(30):
        died = Failure(10.0 * number, "v1", served=True, ended=True, lived_s=SERVED_S)
        failures = noted(failures, died)
        assert not_before(failures, "v1", desired=2) == died.at


def test_deaths_that_come_together_count_once():
    failures = ()
    for _ in range(10):
        failures = noted(failures, Failure(7.0, "v1", served=True))
    assert not_before(failures, "v1") == 7.0


def killed(at, lived_s):
    """The failure of a replica whose process ended at this time, after it had served."""
    return Failure(at, "v1", served=True, ended=True, lived_s=lived_s)


# A killed replica has started, which takes a while, and then served.
KILLS = st.lists(st.tuples(st.floats(3.0, 20.0), st.floats(SERVED_S, 60.0)), min_size=1, max_size=40)


@given(KILLS, st.integers(1, 4))
def test_killed_replica_is_replaced_at_once_each_time(kills, desired):
    failures, now = (), 0.0
    for start_s, lived_s in kills:
        now += start_s + lived_s
        failures = noted(failures, killed(now, lived_s))
        assert not_before(failures, "v1", desired) == now


def starts_of_replicas_that_end(lives, start_s):
    """Return the times of the starts if each replica ends after its time of service, the last one again and again."""
    failures, now, starts = (), 0.0, [0.0]
    for lived_s in lives:
        now += start_s + lived_s
        failures = noted(failures, killed(now, lived_s))
        now = max(now, not_before(failures, "v1"))
        starts.append(now)
    return starts


LIVES = st.lists(st.floats(0, 10), min_size=60, max_size=60)


@settings(max_examples=20)
@given(LIVES, st.floats(0.5, 2.0))
def test_replicas_that_end_again_and_again_do_not_start_in_a_hot_loop(lives, start_s):
    starts = starts_of_replicas_that_end(lives, start_s)
    for first, later in zip(starts, starts[2 * LOST_PER_WINDOW :], strict=False):
        assert later - first >= WINDOW_S


@settings(max_examples=20)
@given(st.lists(st.floats(0, SERVED_S, exclude_max=True), min_size=30, max_size=30), st.floats(0.5, 2.0))
def test_replicas_that_end_as_soon_as_they_serve_are_held_back_for_longer_and_longer(lives, start_s):
    starts = starts_of_replicas_that_end(lives, start_s)
    for first, later in zip(starts[1:], starts[PER_WINDOW + 1 :], strict=False):
        assert later - first >= LONGEST_WAIT_S


@given(st.lists(st.floats(0, SERVED_S, exclude_max=True), min_size=1, max_size=20))
def test_a_replica_that_served_for_long_ends_the_series_of_those_that_did_not(lives):
    failures = ()
    for number, lived_s in enumerate(lives):
        failures = noted(failures, killed(2.0 * number, lived_s))
    failures = noted(failures, killed(50.0, SERVED_S))
    spacing = WINDOW_S / LOST_PER_WINDOW if len(failures) >= LOST_PER_WINDOW else 0.0
    assert not_before(failures, "v1") == 50.0 + spacing


def test_unhealthy_replica_counts_as_failed_after_any_time():
    failures = ()
    for at in (0.0, 20.0, 40.0):
        failures = noted(failures, Failure(at, "v1", served=True, lived_s=15.0))
    assert not_before(failures, "v1") == 41.0


def test_a_kill_and_a_crash_at_the_same_time_count_separately():
    failures = noted((), killed(1.0, SERVED_S))
    assert len(noted(failures, killed(1.1, 0.1))) == 2
    assert len(noted(failures, killed(1.1, 9.0))) == 1


def test_requests_are_refused_only_while_the_next_start_is_far_away():
    failures, at, held = (), 0.0, []
    for _ in range(6):
        failures = noted(failures, killed(at, 0.1))
        when = not_before(failures, "v1")
        held.append(is_held_back(failures, "v1", 1, at))
        assert not is_held_back(failures, "v1", 1, when)
        assert held[-1] == (when - at > REFUSED_S)
        at = when + 1.0
    assert held == [False, False, False, False, True, True]
    assert not is_held_back((), "v1", 1, 0.0)


def test_after_a_minute_of_calm_it_begins_anew():
    failures = noted((), Failure(0.0, "v1", served=True))
    failures = noted(failures, Failure(1.0, "v1", served=True))
    failures = noted(failures, Failure(100.0, "v1", served=True))
    assert not_before(failures, "v1") == 100.0


def test_a_revision_is_not_held_back_by_another():
    failures = ()
    for at in range(5):
        failures = noted(failures, Failure(float(at), "v1", served=False))
    assert not_before(failures, "v2") is None
    assert failed_starts(failures, "v1") >= FAILED_STARTS
    assert failed_starts(failures, "v2") == 0


def test_one_success_forgives_the_failed_starts_but_not_the_deaths():
    failures = noted((), Failure(0.0, "v1", served=True))
    failures = noted(failures, Failure(1.0, "v1", served=False))
    assert failed_starts(cleared(failures, "v1"), "v1") == 0
    assert not_before(cleared(failures, "v1"), "v1") == 0.0


def test_failures_are_bounded():
    failures = ()
    for at in range(100):
        failures = noted(failures, Failure(float(at), "v1", served=False))
    assert len(failures) == KEPT


def test_replica_outlives_failures_if_it_serves_longer():
    failures = (Failure(5.0, "v1", served=True, lived_s=3.0), Failure(9.0, "v1", served=True, lived_s=4.0))
    assert [has_outlived(failures, "v1", seconds) for seconds in (3.5, 4.0, 4.1)] == [False, False, True]
    assert has_outlived(failures, "v2", 0.0)
    assert has_outlived((Failure(5.0, "v1", served=False),), "v1", 0.5), "who never served says nothing of those who do"


STARTUP_S = 60.0


def refuses(failures, template_hash, tries, now=100.0):
    return cannot_start(failures, template_hash, tries, now, STARTUP_S)


def test_one_start_that_the_app_ended_itself_is_enough_to_refuse_requests():
    raised = Failure(5.0, "v1", served=False, raised=True)
    assert refuses((raised,), "v1", [])
    assert refuses((raised,), "v1", [6.0]), "the next try began after it failed"
    assert not refuses((raised,), "v1", [6.0, 4.0]), "another first try is under way"
    assert not refuses((raised,), "v2", [])
    assert refuses((Failure(5.0, "v1", served=False, never_ready=True),), "v1", [])


def test_requests_are_refused_after_the_third_process_that_dies_while_it_starts():
    died = tuple(Failure(float(at), "v1", served=False) for at in range(FAILED_STARTS))
    assert not refuses(died[:-1], "v1", [])
    assert refuses(died, "v1", [])


FAILURES = st.lists(
    st.builds(Failure, st.floats(0, 100), st.sampled_from(["v1", "v2"]), st.booleans(), st.booleans(), st.booleans()),
    max_size=8,
).map(tuple)


@given(FAILURES, st.lists(st.floats(0, 100), max_size=3))
def test_requests_are_not_refused_after_deaths_of_serving_replicas(failures, tries):
    assert not refuses(tuple(each for each in failures if each.served), "v1", tries)
    assert not refuses(cleared(failures, "v1"), "v1", tries)
    if refuses(failures, "v1", tries):
        assert refuses(failures, "v1", [])


@given(FAILURES, FAILURES, st.lists(st.floats(1_000, 1_100), max_size=3))
def test_failed_starts_before_a_calm_refuse_no_requests(old, recent, tries):
    recent = tuple(sorted((replace(each, at=each.at + 1_000) for each in recent), key=lambda each: each.at))
    old = tuple(sorted(old, key=lambda each: each.at))
    assert refuses(old + recent, "v1", tries, now=1_100.0) == refuses(recent, "v1", tries, now=1_100.0)
    assert not refuses(old, "v1", tries, now=1_100.0)


# Below the bound by more than the rounding errors of the sums.
PAUSES = st.lists(st.floats(0, WINDOW_S + STARTUP_S - 1e-6), min_size=FAILED_STARTS, max_size=8)


@given(st.floats(0, 60), PAUSES)
def test_slow_failing_starts_count(first, pauses):
    at = list(accumulate(pauses, initial=first))
    died = tuple(Failure(each, "v1", served=False) for each in at)
    assert refuses(died, "v1", [], now=at[-1] + WINDOW_S)


@pytest.mark.parametrize(
    ("why", "name"),
    [
        ('Traceback (most recent call last):\n  File "a.py", line 1\nRuntimeError: the key is s3cret', "RuntimeError"),
        ("the app's startup failed:\nTraceback\n  x\nshop.models.NoModel: it\nis missing", "NoModel"),
        ("AssertionError", "AssertionError"),
        ("it was not ready after 60 s", None),
        ("", None),
        (None, None),
    ],
)
def test_class_of_the_exception_is_read_from_a_traceback(why, name):
    assert exception_name(why) == name
