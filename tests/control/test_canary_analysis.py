"""`control.canary_analysis`: the statistics, the guards and the decisions of canary releases."""

from collections.abc import Sequence
from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.contract.compared import GROWTH, Requests, bucket_of
from app_toolkit.control.canary_analysis import (
    CanaryRelease,
    Guard,
    decide,
    duration_s,
    next_step,
    plan_release,
    read_steps,
)
from app_toolkit.errors import ConfigError

GUARDS = ["error_rate<1%", "error_rate<2x", "p50<100ms", "p95<1.2x", "p99<1s"]
EVERY_S = 60.0

GUARD_SETS = st.lists(st.sampled_from(GUARDS), max_size=3, unique=True)
LATENCIES = st.dictionaries(st.integers(0, 300), st.integers(1, 500), max_size=6)


@st.composite
def requests(draw: st.DrawFn) -> Requests:
    number = draw(st.integers(0, 2_000))
    return Requests(number, draw(st.integers(0, number)), draw(LATENCIES))


RELEASES = st.builds(
    lambda guards, step, at_least: (
        plan_release(every=EVERY_S, guards=guards, min_requests=at_least).begin(2).but(step=step)
    ),
    GUARD_SETS,
    st.integers(0, 3),
    st.integers(1, 300),
)


def release(*guards: str, step: int = 0, steps: Sequence[float] = (1, 10, 50, 100)) -> CanaryRelease:
    return plan_release(steps, EVERY_S, guards or ["error_rate<1%"]).begin(2).but(step=step)


def seen(number: int, errors: int = 0, *latencies_s: float) -> Requests:
    """Return requests, each with one of these latencies in turn."""
    latency: dict[int, int] = {}
    for at in range(number if latencies_s else 0):
        bucket = bucket_of(latencies_s[at % len(latencies_s)])
        latency[bucket] = latency.get(bucket, 0) + 1
    return Requests(number, errors, latency)


# Decisions


@given(RELEASES, requests(), requests(), st.floats(0, EVERY_S, exclude_max=True))
def test_a_step_never_ends_before_its_time(
    release: CanaryRelease, candidate: Requests, baseline: Requests, elapsed_s: float
) -> None:
    assert decide(release, candidate, baseline, elapsed_s).action in ("hold", "return")


@given(RELEASES, requests(), requests(), st.floats(0, 1e6))
def test_a_step_never_ends_below_the_minimum_sample(
    release: CanaryRelease, candidate: Requests, baseline: Requests, elapsed_s: float
) -> None:
    if decide(release, candidate, baseline, elapsed_s).action in ("advance", "finish"):
        assert max(candidate.requests, candidate.timed) >= release.min_requests
        assert candidate.requests >= release.min_requests or all(g.metric != "error_rate" for g in release.guards)
        if any(guard.relative for guard in release.guards):
            assert max(baseline.requests, baseline.timed) >= release.min_requests


@given(RELEASES, requests(), st.integers(0, 2_000), st.floats(0, 1e6))
def test_it_never_returns_while_no_request_is_bad(
    release: CanaryRelease, baseline: Requests, number: int, elapsed_s: float
) -> None:
    candidate = Requests(number, 0, {0: number})
    assert decide(release, candidate, baseline, elapsed_s).action != "return"


@given(RELEASES, requests(), requests(), st.floats(0, 1e6), st.data())
def test_more_bad_requests_never_turn_a_return_into_anything_else(
    release: CanaryRelease, candidate: Requests, baseline: Requests, elapsed_s: float, data: st.DataObject
) -> None:
    if decide(release, candidate, baseline, elapsed_s).action != "return":
        return
    worse = candidate.copy()
    worse.errors = data.draw(st.integers(candidate.errors, candidate.requests))
    if candidate.latency:
        slower = data.draw(st.sampled_from(sorted(candidate.latency)))
        moved = data.draw(st.integers(0, candidate.latency[slower]))
        worse.latency[slower] -= moved
        worse.latency[400] = moved
    assert decide(release, worse, baseline, elapsed_s).action == "return"


@given(RELEASES, requests(), requests(), st.floats(0, 1e6), st.none() | st.just("no such model"))
def test_a_paused_release_never_changes(
    release: CanaryRelease, candidate: Requests, baseline: Requests, elapsed_s: float, failure: str | None
) -> None:
    paused = release.but(paused=True)
    assert decide(paused, candidate, baseline, elapsed_s, failure=failure).action == "hold"


@given(RELEASES, requests(), requests(), st.floats(0, 1e6))
def test_a_release_that_has_ended_never_changes(
    release: CanaryRelease, candidate: Requests, baseline: Requests, elapsed_s: float
) -> None:
    ended = release.ended("returned", "the guard error_rate<1% does not hold")
    assert decide(ended, candidate, baseline, elapsed_s).action == "hold"
    assert ended.ended("aborted", "it was aborted") == ended


@given(RELEASES, requests(), requests(), st.floats(0, 1e6))
def test_decisions_are_deterministic_and_steps_rise(
    release: CanaryRelease, candidate: Requests, baseline: Requests, elapsed_s: float
) -> None:
    found = decide(release, candidate, baseline, elapsed_s)
    assert found == decide(release, candidate.copy(), baseline.copy(), elapsed_s)
    assert found.why
    if found.action == "advance":
        after = next_step(release, baseline)
        assert after.share > release.share
        assert decide(after, Requests(), Requests(), 1e9).action == "hold", "each step has requests of its own"


def test_a_good_release_passes_each_step_and_finishes() -> None:
    it, good = release("error_rate<1%", "p95<1.2x"), seen(1_000, 1, 0.1, 0.2)
    for share in (0.1, 0.5, 1.0):
        assert decide(it, good, good, EVERY_S).action == "advance"
        it = next_step(it, good)
        assert it.share == share
    assert decide(it, good, Requests(), EVERY_S).action == "finish"


@pytest.mark.parametrize(
    ("candidate", "elapsed_s", "why"),
    [
        (seen(1_000), 59.0, "the step takes at least 60 s"),
        (seen(99), 1e6, "it waits for 100 requests of the candidate, which has had 99"),
        (seen(100, 2), 1e6, "it waits until the guard error_rate<1% holds: 2 of 100 requests of the candidate failed"),
    ],
)
def test_a_step_says_what_it_waits_for(candidate: Requests, elapsed_s: float, why: str) -> None:
    found = decide(release(), candidate, Requests(), elapsed_s)
    assert (found.action, found.why) == ("hold", why)


def test_a_step_waits_for_what_the_controller_names() -> None:
    found = decide(release(), seen(1_000), Requests(), 1e6, waits_for="revision 2, which is not available yet")
    assert (found.action, found.why) == ("hold", "it waits for revision 2, which is not available yet")


def test_a_candidate_that_fails_returns() -> None:
    found = decide(release(), Requests(), Requests(), 0.0, failure="shop@2/web: no such model")
    assert (found.action, found.why) == ("return", "revision 2 failed: shop@2/web: no such model")


# Guards


def test_many_errors_return_before_the_minimum_sample() -> None:
    found = decide(release(), seen(20, 10), seen(2_000), 1.0)
    assert found.action == "return"
    assert found.why == "the guard error_rate<1% does not hold: 10 of 20 requests of the candidate failed"


def test_errors_are_compared_with_the_baseline() -> None:
    it = release("error_rate<2x", step=2)
    assert decide(it, seen(1_000, 40), seen(1_000, 40), EVERY_S).action == "advance"
    assert decide(it, seen(1_000, 70), seen(1_000, 40), EVERY_S).action == "advance"
    assert decide(it, seen(1_000, 90), seen(1_000, 40), EVERY_S).action == "hold"
    assert decide(it, seen(1_000, 200), seen(1_000, 40), EVERY_S).action == "return"


def test_one_error_holds_no_step() -> None:
    assert decide(release("error_rate<2x"), seen(500, 1), seen(50_000), EVERY_S).action == "advance"
    assert decide(release("error_rate<2x"), seen(500, 2), seen(50_000), EVERY_S).action == "hold"
    assert decide(release("error_rate<2x"), seen(500, 10), seen(50_000), EVERY_S).action == "return"


def test_latencies_are_compared_with_the_baseline() -> None:
    it = release("p95<1.2x", step=2)
    usual = [0.1, 0.11, 0.12, 0.13, 0.14]
    assert decide(it, seen(1_000, 0, *usual), seen(1_000, 0, *usual), EVERY_S).action == "advance"
    slower = [each * 1.4 for each in usual]
    found = decide(it, seen(1_000, 0, *slower), seen(1_000, 0, *usual), EVERY_S)
    assert found.action == "return"
    assert found.why.startswith("the guard p95<1.2x does not hold: the p95 of the candidate is 200 ms, and that")


def test_the_first_slow_requests_of_new_processes_do_not_return() -> None:
    it = release("p95<100ms")
    assert decide(it, seen(20, 0, 1.0), Requests(), 1.0).action == "hold"
    cold = seen(990, 0, 0.01)
    cold.add(seen(20, 0, 1.0))
    assert decide(it, cold, Requests(), EVERY_S).action == "advance"


def test_without_a_baseline_the_last_step_is_compared_with_the_one_before() -> None:
    it = release("error_rate<2x", "p95<1.2x", step=2)
    last = next_step(it, seen(10_000, 100, 0.1, 0.11, 0.12))
    assert last.share == 1
    assert last.measured is not None
    errors, p95 = last.measured
    assert not errors.relative
    assert not p95.relative
    assert 0.02 < errors.limit < 0.03
    assert p95.limit == pytest.approx(0.144, rel=0.05)
    assert decide(last, seen(2_000, 100, 0.1), Requests(), 1.0).action == "return"
    assert decide(last, seen(2_000, 20, 0.2), Requests(), 1.0).action == "return"
    assert decide(last, seen(2_000, 20, 0.1, 0.11, 0.12), Requests(), EVERY_S).action == "finish"


@pytest.mark.parametrize("text", ["error_rate<1%", "error_rate<2x", "p95<300ms", "p50<1.5s", "p99<1.2x", "p90<2x"])
def test_guards_are_read_and_shown(text: str) -> None:
    assert str(Guard.parse(text)) == str(Guard.parse(str(Guard.parse(f" {text.replace('<', ' < ')} "))))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("errors<1%", "the guard 'errors<1%' should be error_rate<1%, error_rate<2x, or p50, p90, p95 or p99 with a"),
        ("p95>1s", "the guard 'p95>1s' should be"),
        ("p95<1.2.3x", "should be"),
        ("p95<1%", "the limit of the guard 'p95<1%' should have the unit ms, s or x"),
        ("error_rate<1s", "should have the unit % or x"),
        ("error_rate<0%", "should be above 0 % and below 100 %"),
        ("error_rate<100%", "should be above 0 % and below 100 %"),
        ("p95<0ms", "should be above 0"),
        ("p95<0.9x", "asks for less than the baseline has; its limit is at least 1x"),
    ],
)
def test_invalid_guards_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Guard.parse(text)


# Plans


def test_a_plan_is_read() -> None:
    it = plan_release(read_steps("1, 5,25%,100"), "5m", ["p95<1.2x"], 50).begin(3)
    assert (it.revision, it.steps, it.every_s, it.min_requests) == (3, (1, 5, 25, 100), 300, 50)
    assert CanaryRelease.model_validate_json(it.model_dump_json()) == it
    assert [duration_s(each) for each in ("30s", "1.5m", "1h", 7)] == [30, 90, 3600, 7]


@pytest.mark.parametrize(
    ("steps", "every", "guards", "min_requests", "why"),
    [
        ([], "5m", [], 1, "the steps are missing, and should be percentages above 0 and up to 100"),
        ([0, 5], "5m", [], 1, "the steps 0, 5 should be percentages above 0 and up to 100"),
        ([5, 101], "5m", [], 1, "the steps 5, 101 should be"),
        ([5, "9"], "5m", [], 1, "the steps 5, '9' should be"),
        ([5, 5], "5m", [], 1, "the steps 5, 5 should rise"),
        ([5], "5 minutes", [], 1, "the duration '5 minutes' should be a time above 0, such as 30s, 5m or 1h"),
        ([5], 0, [], 1, "the duration 0 should be"),
        ([5], "5m", [], 0, "the minimum number of requests of a step is 0; it should be at least 1"),
        ([100], "5m", ["p95<1.2x"], 1, "the guard p95<1.2x needs a step below 100 %"),
    ],
)
def test_invalid_plans_are_refused(
    steps: list[float], every: str | float, guards: list[str], min_requests: int, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        plan_release(steps, every, guards, min_requests)


def test_steps_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="the steps '1,five' should be percentages, such as 1,5,25,50,100"):
        read_steps("1,five")


# Statistics


@given(requests(), requests())
def test_what_was_added_is_the_difference(before: Requests, added: Requests) -> None:
    after = before.copy()
    after.add(added)
    assert after.since(before) == added
    assert after.since(Requests()) == after


def test_counts_that_begin_anew_are_all_new() -> None:
    anew = Requests(3, 1, {5: 3})
    assert anew.since(Requests(10, 0, {5: 10})) == anew
    assert anew.since(Requests(2, 0, {7: 2})) == anew


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_quantiles_are_exact_to_one_bucket(latencies: list[float], level: float) -> None:
    counted = seen(len(latencies), 0, *latencies)
    exact = sorted(latencies)[max(ceil(level * len(latencies) - 1e-9) - 1, 0)]
    assert exact / GROWTH / 1.001 <= counted.quantile_s(level) <= exact * GROWTH * 1.001
    assert counted.slower_than(exact * GROWTH * 1.001) <= sum(each > exact for each in latencies)
    assert counted.slower_than(exact / GROWTH / 1.001) >= sum(each > exact for each in latencies)


def test_a_candidate_at_its_limit_seldom_returns() -> None:
    """The guarantee of the sequential test, looked at after every tenth request."""
    random, runs, returned = Random(1), 200, 0
    it = plan_release([50], EVERY_S, ["error_rate<1%"]).begin(2)
    for _ in range(runs):
        candidate = Requests()
        for _ in range(300):
            candidate.add(Requests(10, sum(random.random() < 0.01 for _ in range(10))))
            if decide(it, candidate, Requests(), 1.0).action == "return":
                returned += 1
                break
    assert returned <= 0.05 * runs
