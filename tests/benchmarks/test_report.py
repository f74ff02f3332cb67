from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.contenders import CONTENDERS
from benchmarks.measures import MEASURES
from benchmarks.plot import plot
from benchmarks.report import (
    BOUNDS,
    Bound,
    best_of_ray_serve,
    bounds_table,
    cpu_table,
    document,
    figure,
    judge,
    measure_table,
    middle,
    number,
    table,
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


def test_the_median_is_of_the_rounds_with_a_figure() -> None:
    assert middle([3, None, 1, 2]) == 2
    assert middle([None]) is None
    assert middle([]) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (12_345.6, "12,346"), (99.94, "99.9"), (1.5, "1.50"), (0.0456, "0.0456"), (0.0, "0.00")],
)
def test_numbers_have_three_significant_digits_or_are_integers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_table_is_markdown() -> None:
    assert table(("", "a"), [("x", "1")]) == "|  | a |\n| --- | --: |\n| x | 1 |"


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


def test_tuned_ray_serve_is_the_better_of_one_and_two_replicas() -> None:
    found = results({"ray-serve-best-1": gets(10), "ray-serve-best-2": gets(30), "toolkit-2": gets(60)})
    assert best_of_ray_serve(found, "get_32") == 30
    assert judge(found)[1].value == 2.0


def test_a_measure_is_shown_relative_to_bare_and_to_ray_serve() -> None:
    found = results({"bare": gets(100), "toolkit-2": gets(150), "ray-serve-best-1": gets(50)})
    lines = measure_table(found, "get_32", MEASURES["get_32"]).splitlines()
    assert lines[3] == "| app_toolkit, 2 replicas | 150 | 4.00 | 9.00 | 1.50 × | 3.00 × |"


def test_cpu_is_shown_by_role_and_other_roles_are_summed() -> None:
    spent = {"proxy_us": [40.0], "replica_us": [100.0], "other_us": [2.0], "manager_us": [3.0], "client_us": [25.0]}
    found = results({"toolkit-2": {"get_32": {"rps": [10_000.0], **spent}, "idle": {"percent": [5.0]}}})
    row = cpu_table(found, "get_32").splitlines()[2]
    assert row == "| app_toolkit, 2 replicas | 40.0 | 100 | 5.00 | 145 | 25.0 | 1.70 | 5.00 |"


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


def test_the_longest_bar_is_the_largest_value() -> None:
    drawn = plot({"GET": {"bare": ("Bare & plain", 50.0), "toolkit-2": ("app_toolkit", 100.0)}})
    bars = ElementTree.fromstring(drawn).findall("{*}rect")[1:]
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert widths[1] == pytest.approx(2 * widths[0])


def test_a_figure_that_was_not_measured_is_missing() -> None:
    assert figure(results({}), "bare", "get_32", "rps") is None
