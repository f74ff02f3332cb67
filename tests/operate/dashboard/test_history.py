"""Rates, quantiles, and the points of the charts."""

from bisect import bisect_left
from math import ceil, isnan

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app_toolkit.observability.metrics import SIZES
from app_toolkit.operate.dashboard.history import MOST_NAMES, WINDOW_S, History, Point, Sample, point, quantile

BOUNDS = (0.01, 0.1, 1.0)
COUNTS = st.lists(st.integers(0, 1_000), min_size=4, max_size=4).map(tuple)
SAMPLES = st.builds(
    Sample,
    requests=st.integers(0, 10_000),
    errors=st.integers(0, 10_000),
    latency=COUNTS,
    batches=COUNTS,
    batch_items=st.integers(0, 10_000),
    queued=st.integers(0, 9),
)


def counted(durations: list[float]) -> list[int]:
    counts = [0, 0, 0, 0]
    for each in durations:
        counts[bisect_left(BOUNDS, each)] += 1
    return counts


@given(st.lists(st.floats(0.0001, 0.99), min_size=1), st.sampled_from([0.5, 0.95, 0.99]))
def test_quantile_lies_in_the_bucket_of_the_exact_one(durations: list[float], level: float) -> None:
    exact = sorted(durations)[ceil(level * len(durations)) - 1]
    upper = BOUNDS[bisect_left(BOUNDS, exact)]
    lower = max((bound for bound in BOUNDS if bound < upper), default=0.0)
    assert lower <= quantile(counted(durations), BOUNDS, level) <= upper


@given(COUNTS)
@example((0, 0, 717, 717))
def test_higher_quantiles_are_not_lower(counts: tuple[int, ...]) -> None:
    levels = [quantile(counts, BOUNDS, level) for level in (0.5, 0.95, 0.99)]
    assert all(map(isnan, levels)) if not sum(counts) else levels == sorted(levels)


def test_quantile_beyond_the_last_bound_is_that_bound() -> None:
    assert quantile((0, 0, 0, 5), BOUNDS, 0.5) == 1.0


@given(SAMPLES, SAMPLES)
def test_no_rate_is_ever_negative(before: Sample, after: Sample) -> None:
    found = point(before, after, 2.0, BOUNDS)
    assert all(isnan(value) or value >= 0 for value in found)


@given(SAMPLES, SAMPLES)
def test_rate_of_a_sum_is_the_sum_of_the_rates(before: Sample, grown: Sample) -> None:
    after = before + grown
    assert point(before, after, 2.0, BOUNDS).rate == grown.requests / 2.0
    assert point(before, after, 2.0, BOUNDS).errors == grown.errors / 2.0


@given(st.lists(st.integers(1, 1_024), min_size=1, max_size=50))
def test_quantiles_of_batch_sizes_are_whole_and_lie_in_the_buckets_of_the_exact_ones(sizes: list[int]) -> None:
    batches = [0] * (len(SIZES) + 1)
    for each in sizes:
        batches[bisect_left(SIZES, each)] += 1
    found = point(Sample(), Sample(batches=tuple(batches), batch_items=sum(sizes)), 2.0, BOUNDS)
    assert found.batch == pytest.approx(sum(sizes) / len(sizes))
    for level, value in ((0.5, found.batch_p50), (0.95, found.batch_p95), (0.99, found.batch_p99)):
        exact = sorted(sizes)[ceil(level * len(sizes)) - 1]
        assert bisect_left(SIZES, value) == bisect_left(SIZES, exact)
        assert value == int(value)


def test_quantiles_of_batches_with_one_item_are_one() -> None:
    found = point(Sample(), Sample(batches=(7,), batch_items=7), 2.0, BOUNDS)
    assert (found.batch, found.batch_p50, found.batch_p95, found.batch_p99) == (1.0, 1.0, 1.0, 1.0)


def test_number_that_has_decreased_began_again() -> None:
    assert point(Sample(requests=100), Sample(requests=6), 2.0, BOUNDS).rate == 3.0


def test_first_sample_has_gauges_and_no_rate() -> None:
    history = History(BOUNDS)
    history.add(0.0, {"shop": Sample(requests=5, queued=3)})
    assert history.latest["shop"].queued == 3
    assert isnan(history.latest["shop"].rate)


@given(st.lists(st.integers(0, 500), min_size=8, max_size=40))
def test_rate_covers_the_window(counts: list[int]) -> None:
    history = History(BOUNDS)
    total = 0
    for number, count in enumerate(counts):
        total += count
        history.add(2.0 * number, {"shop": Sample(requests=total)})
    intervals = int(WINDOW_S / 2)
    assert history.latest["shop"].rate == pytest.approx(sum(counts[-intervals:]) / WINDOW_S)


def test_deployment_that_begins_later_has_no_rate_from_before() -> None:
    history = History(BOUNDS)
    history.add(0.0, {})
    history.add(2.0, {"shop": Sample(requests=4)})
    assert history.latest["shop"].rate == 2.0


@given(st.integers(1, 30), st.integers(1, 10))
def test_series_has_the_last_points_in_order(samples: int, kept: int) -> None:
    history = History(BOUNDS, points=kept)
    for number in range(samples):
        history.add(2.0 * number, {"shop": Sample(queued=number)})
    series = history.series("shop")
    assert series["queued"] == list(range(samples))[-kept:]
    assert series["at"] == [2.0 * number for number in range(samples)][-kept:]
    assert set(series) == {"at", *Point._fields}


def test_series_has_no_value_before_the_first_sample_of_a_name() -> None:
    history = History(BOUNDS)
    history.add(0.0, {})
    history.add(2.0, {"shop": Sample(queued=1)})
    assert history.series("shop")["queued"] == [None, 1.0]
    assert history.series("unknown")["queued"] == [None, None]


def test_name_that_is_missing_is_forgotten() -> None:
    history = History(BOUNDS)
    history.add(0.0, {"shop": Sample(queued=1)})
    history.add(2.0, {})
    history.add(4.0, {"shop": Sample(queued=2)})
    assert history.series("shop")["queued"] == [None, None, 2.0]


def test_number_of_names_with_a_past_is_bounded() -> None:
    history = History(BOUNDS, points=2)
    names = [f"d{number}" for number in range(MOST_NAMES + 1)]
    history.add(0.0, {name: Sample(queued=1) for name in names})
    assert history.latest[names[-1]].queued == 1
    assert history.series(names[-1])["queued"] == [None]
    assert history.series(names[0])["queued"] == [1.0]
