"""Simulate canary releases: which ones return, how soon, and how often a good one does.

python -m benchmarks.canary                 # print the tables
python -m benchmarks.canary --write-docs    # also write the results, docs/benchmarks-canary.md and its plot

Each run decides as the controller does, every `LOOK_S` seconds. The requests are drawn at random with a fixed seed.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import erf, log, sqrt
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from app_toolkit.core.canary import GROWTH, LEAST_S, Requests, decide, next_step, plan_release
from benchmarks.plot import plot
from benchmarks.report import table

GUARDS = ("error_rate<1%", "p95<1.2x")
PLAN = plan_release(guards=GUARDS)
RPS = 200
LOOK_S = 2
LONGEST_S = 3_600
"""Seconds after which a run that still holds ends."""
RUNS = 100
USUAL = 0.001
"""The error rate of the baseline, and of the candidate where the latency differs."""
MEDIAN_S, SIGMA = 0.05, 0.5
"""Of the log-normal latencies of the baseline."""
BUCKETS = 300

ERROR_RATES = (0.0, 0.001, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.5)
RATIOS = (1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0)

RESULTS = Path(__file__).with_name("results-canary.json")
DOCS = Path(__file__).parent.parent / "docs" / "benchmarks-canary.md"


@dataclass(frozen=True, slots=True)
class Run:
    outcome: str
    """`passed`, `returned` or `held`."""
    seconds: float
    requests: int
    """The requests of the candidate."""
    step: int
    """The number of the last step."""


def simulate(error_rate: float, ratio: float, seed: int) -> Run:
    """Simulate one release of a candidate with this error rate, whose latencies are `ratio` times the baseline's."""
    rng = np.random.default_rng(seed)
    release, began, requests = PLAN.begin(2), 0, 0
    candidate, baseline = Requests(), Requests()
    slow, usual = _latencies(ratio), _latencies(1.0)
    for now in range(LOOK_S, LONGEST_S + 1, LOOK_S):
        number = int(rng.binomial(RPS * LOOK_S, release.share))
        requests += number
        _serve(rng, candidate, number, error_rate, slow)
        _serve(rng, baseline, RPS * LOOK_S - number, USUAL, usual)
        decision = decide(release, candidate, baseline, now - began)
        if decision.action in ("return", "finish"):
            outcome = "returned" if decision.action == "return" else "passed"
            return Run(outcome, now, requests, release.step + 1)
        if decision.action == "advance":
            release, began = next_step(release, baseline), now
            candidate, baseline = Requests(), Requests()
    return Run("held", LONGEST_S, requests, release.step + 1)


def _latencies(ratio: float) -> list[float]:
    """Return the probability of each bucket."""

    def below(bucket: int) -> float:
        bound_s = LEAST_S * GROWTH**bucket
        return (1 + erf(log(bound_s / (MEDIAN_S * ratio)) / SIGMA / sqrt(2))) / 2

    sums = [0.0, *(below(bucket) for bucket in range(BUCKETS - 1)), 1.0]
    return [high - low for low, high in pairwise(sums)]


def _serve(
    rng: np.random.Generator, seen: Requests, number: int, error_rate: float, latencies: Sequence[float]
) -> None:
    counts = rng.multinomial(number, latencies)
    new = {bucket: int(count) for bucket, count in enumerate(counts) if count}
    seen.add(Requests(number, int(rng.binomial(number, error_rate)), new))


@dataclass(frozen=True, slots=True)
class Summary:
    """The runs of one candidate."""

    error_rate: float
    ratio: float
    passed: int
    returned: int
    held: int
    returned_in_one_window: int
    """The number of runs that returned within the first step."""
    requests: float | None
    """The median number of the candidate's requests until it returned; None: no run returned."""
    seconds: float | None
    """The median time until it returned."""


def summary(error_rate: float, ratio: float, runs: Sequence[Run]) -> Summary:
    counts = {name: sum(run.outcome == name for run in runs) for name in ("passed", "returned", "held")}
    back = [run for run in runs if run.outcome == "returned"]
    return Summary(
        error_rate,
        ratio,
        **counts,
        returned_in_one_window=sum(run.seconds <= PLAN.every_s for run in back),
        requests=median(run.requests for run in back) if back else None,
        seconds=median(run.seconds for run in back) if back else None,
    )


def _measure(candidate: tuple[float, float], runs: int = RUNS) -> Summary:
    return summary(*candidate, [simulate(*candidate, seed) for seed in range(runs)])


def measure() -> tuple[list[Summary], list[Summary]]:
    """Return the summaries by error rate, and those by latency."""
    errors, latencies = [(rate, 1.0) for rate in ERROR_RATES], [(USUAL, ratio) for ratio in RATIOS]
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(_measure, [*errors, *latencies]))
    return found[: len(errors)], found[len(errors) :]


# The page

HEAD = ("passed", "held", "returned", "in one window", "requests until then, median", "time until then, median, s")


def _row(label: str, each: Summary) -> list[str]:
    requests, seconds = ("" if value is None else f"{value:,.0f}" for value in (each.requests, each.seconds))
    numbers = [each.passed, each.held, each.returned, each.returned_in_one_window]
    return [label, *map(str, numbers), requests, seconds]


def _labels(errors: Sequence[Summary], latencies: Sequence[Summary]) -> Mapping[str, dict[str, Summary]]:
    return {
        "error rate": {f"{100 * each.error_rate:g} %": each for each in errors},
        "latency": {f"{each.ratio:g} times": each for each in latencies},
    }


def tables(errors: Sequence[Summary], latencies: Sequence[Summary]) -> list[str]:
    return [
        table([name, *HEAD], [_row(label, each) for label, each in rows.items()])
        for name, rows in _labels(errors, latencies).items()
    ]


def drawing(errors: Sequence[Summary], latencies: Sequence[Summary]) -> str:
    panels: dict[str, dict[str, tuple[str, float]]] = {}
    for name, rows in _labels(errors, latencies).items():
        panels[f"Releases that returned, of {RUNS}, by {name}"] = {
            f"toolkit-{label}": (label, each.returned) for label, each in rows.items()
        }
        panels[f"The candidate's requests until it returned, median, by {name}"] = {
            f"toolkit-{label}": (label, each.requests)
            for label, each in rows.items()
            if each.requests is not None and each.returned > each.passed + each.held
        }
    return plot(panels)


def document(date: str, errors: Sequence[Summary], latencies: Sequence[Summary]) -> str:
    by_error_rate, by_latency = tables(errors, latencies)
    steps = ", ".join(f"{each:g}" for each in PLAN.steps)
    return f"""# Simulation of canary releases

`python -m benchmarks.canary --write-docs` generates this page. The figures are in `benchmarks/results-canary.json`;
they were computed on {date}.

A [canary release](traffic.md#canary-releases) has the steps {steps} %, each for at least {PLAN.every_s / 60:g} minutes,
and the guards `{"` and `".join(GUARDS)}`. The application gets {RPS} requests per second, so the candidate gets
{RPS * PLAN.steps[0] / 100:g} per second in the first step. Of the baseline's requests, {100 * USUAL:g} % fail, and
their latencies are log-normal: p50 {1000 * MEDIAN_S:g} ms, p95 {1000 * MEDIAN_S * np.exp(1.645 * SIGMA):.0f} ms. The
release decides every {LOOK_S} s, with the function that the controller calls. Each row has {RUNS} runs.

A run *passed* if all steps did. It *held* if it waited in a step for an hour in total, and *returned in one window* if
it did within the first {PLAN.every_s / 60:g} minutes.

![Releases that returned, and requests until then](benchmarks-canary.svg)

## By error rate

The candidate's latencies are those of the baseline. The limit is 1 %.

{by_error_rate}

## By latency

All latencies of the candidate are longer by this factor. {100 * USUAL:g} % of its requests fail. The limit is 1.2
times.

{by_latency}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-docs", action="store_true", help="write the results, the page and its plot")
    options = parser.parse_args()
    errors, latencies = measure()
    print("\n\n".join(tables(errors, latencies)))
    if options.write_docs:
        date = datetime.now(UTC).date().isoformat()
        results: dict[str, Any] = {
            "date": date,
            "errors": [asdict(each) for each in errors],
            "latencies": [asdict(each) for each in latencies],
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        DOCS.write_text(document(date, errors, latencies))
        DOCS.with_suffix(".svg").write_text(drawing(errors, latencies))


if __name__ == "__main__":
    main()
