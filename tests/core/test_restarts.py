"""When a group that fails may try again."""

from app_toolkit.core.restarts import (
    FAILED_STARTS,
    KEPT,
    PER_WINDOW,
    WINDOW_S,
    Failure,
    cleared,
    failed_starts,
    has_outlived,
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


def test_nothing_holds_back_who_has_not_failed():
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
    assert not_before(failures, "v1", wanted=3) == last + 8.0  # doubled four times
    failed = noted(failures, Failure(last + 1.0, "v1", served=False))
    assert not_before(failed, "v1", wanted=3) == failures[2].at + WINDOW_S


def test_deaths_that_come_together_count_once():
    failures = ()
    for _ in range(10):
        failures = noted(failures, Failure(7.0, "v1", served=True))
    assert not_before(failures, "v1") == 7.0


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


def test_what_is_kept_is_bounded():
    failures = ()
    for at in range(100):
        failures = noted(failures, Failure(float(at), "v1", served=False))
    assert len(failures) == KEPT


def test_who_has_served_longer_than_all_of_its_revision_that_died_has_outlived_them():
    failures = (Failure(5.0, "v1", served=True, lived_s=3.0), Failure(9.0, "v1", served=True, lived_s=4.0))
    assert [has_outlived(failures, "v1", seconds) for seconds in (3.5, 4.0, 4.1)] == [False, False, True]
    assert has_outlived(failures, "v2", 0.0)
    assert has_outlived((Failure(5.0, "v1", served=False),), "v1", 0.5), "who never served says nothing of those who do"


def test_deaths_that_come_together_count_once_however_long_each_had_served():
    failures = noted((), Failure(1.0, "v1", served=True, lived_s=3.0))
    assert noted(failures, Failure(1.1, "v1", served=True, lived_s=2.0)) == failures
