from typing import Any

import pytest

from benchmarks.report import (
    BOUNDS,
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
