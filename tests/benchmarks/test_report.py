from typing import Any

import pytest

from benchmarks.contenders import CONTENDERS
from benchmarks.measures import MEASURES
from benchmarks.report import (
    BOUNDS,
    Bound,
    bounds_table,
    document,
    figure,
    judge,
)


def results(figures: dict[str, Any], rounds: int = 3) -> dict[str, Any]:
    return {
        "run": {"date": "2026-01-01", "rounds": rounds, "seconds": 2, "seed": 1, "load": "wrk 4.2"},
        "machine": {
            "cores": 2,
            "cpu": "a CPU",
            "memory_gb": 8.0,
            "system": "Linux 6",
            "round_trip_us": 40.0,
            "all_at_once": 1.6,
        },
        "versions": {"ray": "2.60.0"},
        "absent": {"mosec": "its environment is missing"},
        "failed": [{"contender": "ray-serve", "measure": "post_32", "round": 1, "why": "Failed: 3 of 9"}],
        "figures": figures,
        "profiles": [],
    }


def gets(*rps: float | None) -> dict[str, Any]:
    return {"get_32": {"rps": list(rps), "p50_ms": [4.0], "p99_ms": [9.0], "replica_us": [100.0]}}


def test_a_ratio_is_computed_within_each_round() -> None:
    # The machine was half as fast in the second round, for both.
    found = results({"bare": gets(100, 50, 100), "toolkit-2": gets(120, 60, 130)})
    verdict = judge(found, [bound for bound in BOUNDS if "relative to bare" in bound.says][:1])[0]
    assert (verdict.value, verdict.low, verdict.high) == pytest.approx((1.2, 1.2, 1.3))
    assert verdict.holds is True


def test_a_round_in_which_either_failed_is_left_out() -> None:
    found = results({"bare": gets(100, None, 100), "toolkit-2": gets(50, 900)})
    assert judge(found)[0].value == 0.5
    assert judge(found)[0].holds is False


def test_disturbed_measurements_are_left_out_and_counted_on_the_page() -> None:
    busy = gets(10, 100) | {"stream_8": {"rps": [1.0], "others_percent": [None]}}
    busy["get_32"]["others_percent"] = [90.0, 2.0]
    found = results({"bare": busy, "toolkit-2": gets(100, 100)})
    assert figure(found, "bare", "get_32", "rps") == 100
    assert judge(found)[0].value == 1.0
    assert "Left out: 1 measurements" in document(found)


def test_a_target_without_figures_is_not_measured() -> None:
    verdicts = judge(results({"bare": gets(1)}))
    assert [verdict.holds for verdict in verdicts] == [None] * len(BOUNDS)
    assert bounds_table(verdicts).count("not measured") == len(BOUNDS)


def test_a_missed_target_is_explained_with_its_size_and_the_range_of_bare() -> None:
    text = document(results({"bare": gets(100, 120), "toolkit-2": gets(88, 105.6)}))
    assert "Missed: GET, 32 clients: requests/s relative to bare, by 20%." in text
    assert "Bare itself served 100 to 120 GET requests per second" in text
    assert "Missed:" not in document(results({"bare": gets(100), "toolkit-2": gets(150)}))


def test_an_upper_bound_holds_at_its_limit() -> None:
    bound = Bound("time", lambda need: need("bare", "get_32", "p50_ms"), limit=4.0, at_most=True)
    assert [verdict.holds for verdict in judge(results({"bare": gets(1)}), [bound])] == [True]


def test_the_document_names_absent_contenders_and_failed_measurements() -> None:
    said = document(results({"bare": gets(100), "toolkit-2": gets(150)}))
    assert "Not measured: Mosec, 2 workers (its environment is missing)." in said
    assert "Failed: Ray Serve, defaults, post_32, round 2: `Failed: 3 of 9`" in said
    assert "None" not in said


def test_the_bounds_are_computed_for_two_replicas_and_for_one() -> None:
    said = document(results({"bare": gets(100), "toolkit-2": gets(150), "toolkit-1": gets(120)}))
    two, one = (line for line in said.splitlines() if line.startswith(f"| {BOUNDS[0].says} |"))
    assert (two.split(" | ")[2], one.split(" | ")[2]) == ("1.50", "1.20")


def test_every_bound_uses_figures_that_a_measure_of_its_contender_returns() -> None:
    measures = {contender.name: contender.measures for contender in CONTENDERS}

    def need(contender: str, measure: str, name: str) -> float:
        assert measure in measures[contender]
        assert name in MEASURES[measure].figures or name.endswith("_us")
        return 1.0

    for bound in BOUNDS:
        bound.value(need)
