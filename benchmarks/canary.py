"""Simulate canary releases: which ones return, how soon, and how often a good one does.

python -m benchmarks.canary                 # print the tables
python -m benchmarks.canary --write-docs    # also write the results, docs/measurements.md and its plot

Each run decides as the controller does, every `LOOK_S` seconds. The requests are drawn at random with a fixed seed.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import erf, exp, log, sqrt
from pathlib import Path
from statistics import median

import numpy as np

from app_toolkit.contract.compared import GROWTH, LEAST_S, Requests
from app_toolkit.control.canary_analysis import CanaryPlan, decide, next_step, plan_release
from benchmarks.plot import plot
from benchmarks.report import table, with_document

PLAN = plan_release(guards=("error_rate<1%", "p95<1.2x"))
RELATIVE = plan_release(guards=("error_rate<2x", "p95<1.2x"))
RPS = 200
LOOK_S = 2
LONGEST_S = 3_600
"""Seconds after which a run that still holds ends."""
RUNS = 100
USUAL, MANY = 0.001, 0.01
"""The error rates of baselines."""
MEDIAN_S, SIGMA = 0.05, 0.5
"""Of the log-normal latencies of the baseline."""
BUCKETS = 300

RESULTS = Path(__file__).with_name("results-canary.json")
DOCS = Path(__file__).parent.parent / "docs" / "measurements.md"
PLOT = DOCS.with_name("benchmarks-canary.svg")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate, and the baseline that it is compared with."""

    label: str
    error_rate: float = USUAL
    ratio: float = 1.0
    """Its latencies, as a multiple of the baseline's."""
    baseline: float = USUAL
    """The error rate of the baseline."""
    plan: CanaryPlan = PLAN


SERIES: Mapping[str, Sequence[Candidate]] = {
    "error rate": [
        Candidate(f"{100 * rate:g} %", rate) for rate in (0.0, 0.001, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.5)
    ],
    "error rate, relative": [
        Candidate(f"{times:g} times", times * MANY, baseline=MANY, plan=RELATIVE) for times in (0, 1, 1.5, 2, 3, 5, 10)
    ],
    "latency": [Candidate(f"{ratio:g} times", ratio=ratio) for ratio in (1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0)],
}


@dataclass(frozen=True, slots=True)
class Run:
    outcome: str
    """`passed`, `returned` or `held`."""
    seconds: float
    requests: int
    """The requests of the candidate."""


def simulate(it: Candidate, seed: int) -> Run:
    """Simulate one release."""
    rng = np.random.default_rng(seed)
    release, began, requests = it.plan.begin(2), 0, 0
    candidate, baseline = Requests(), Requests()
    slow, usual = _latencies(it.ratio), _latencies(1.0)
    for now in range(LOOK_S, LONGEST_S + 1, LOOK_S):
        number = int(rng.binomial(RPS * LOOK_S, release.share))
        requests += number
        _serve(rng, candidate, number, it.error_rate, slow)
        _serve(rng, baseline, RPS * LOOK_S - number, it.baseline, usual)
        decision = decide(release, candidate, baseline, now - began)
        if decision.action in ("return", "finish"):
            return Run("returned" if decision.action == "return" else "passed", now, requests)
        if decision.action == "advance":
            release, began = next_step(release, baseline), now
            candidate, baseline = Requests(), Requests()
    return Run("held", LONGEST_S, requests)


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

    label: str
    passed: int
    returned: int
    held: int
    returned_in_one_window: int
    """The number of runs that returned within the first step."""
    requests: float | None
    """The median number of the candidate's requests until it returned; None: no run returned."""
    seconds: float | None
    """The median time until it returned."""


def summary(label: str, runs: Sequence[Run]) -> Summary:
    counts = {name: sum(run.outcome == name for run in runs) for name in ("passed", "returned", "held")}
    back = [run for run in runs if run.outcome == "returned"]
    return Summary(
        label,
        **counts,
        returned_in_one_window=sum(run.seconds <= PLAN.every_s for run in back),
        requests=median(run.requests for run in back) if back else None,
        seconds=median(run.seconds for run in back) if back else None,
    )


def measure(it: Candidate, runs: int = RUNS) -> Summary:
    return summary(it.label, [simulate(it, seed) for seed in range(runs)])


Found = Mapping[str, Sequence[Summary]]
"""The summaries of each series."""


def measure_all() -> Found:
    with ProcessPoolExecutor(2) as pool:
        return {name: list(pool.map(measure, candidates)) for name, candidates in SERIES.items()}


# The page

HEAD = ("passed", "held", "returned", "in one window", "requests until then, median", "time until then, median, s")


def _row(each: Summary) -> list[str]:
    requests, seconds = ("" if value is None else f"{value:,.0f}" for value in (each.requests, each.seconds))
    numbers = [each.passed, each.held, each.returned, each.returned_in_one_window]
    return [each.label, *map(str, numbers), requests, seconds]


def tables(found: Found) -> dict[str, str]:
    return {
        name: table([name.partition(",")[0], *HEAD], [_row(each) for each in summaries])
        for name, summaries in found.items()
    }


def drawing(found: Found) -> str:
    panels: dict[str, dict[str, tuple[str, float]]] = {}
    for name, summaries in found.items():
        panels[f"Releases that returned, of {RUNS}, by {name}"] = {
            f"toolkit-{each.label}": (each.label, each.returned) for each in summaries
        }
        panels[f"The candidate's requests until it returned, median, by {name}"] = {
            f"toolkit-{each.label}": (each.label, each.requests)
            for each in summaries
            if each.requests is not None and each.returned > each.passed + each.held
        }
    return plot(panels)


def document(date: str, found: Found) -> str:
    shown = tables(found)
    steps = ", ".join(f"{each:g}" for each in PLAN.steps)
    p95_ms = 1000 * MEDIAN_S * exp(1.645 * SIGMA)
    return f"""# Simulation of canary releases

`python -m benchmarks.canary --write-docs` writes this section. The figures are in `benchmarks/results-canary.json`;
they were computed on {date}.

A [canary release](traffic.md#canary-releases) has the steps {steps} %, each for at least {PLAN.every_s / 60:g} minutes,
and the guards `{"` and `".join(map(str, PLAN.guards))}`. The application gets {RPS} requests per second, so the
candidate gets {RPS * PLAN.steps[0] / 100:g} per second in the first step. Of the baseline's requests, {100 * USUAL:g} %
fail, and their latencies are log-normal: p50 {1000 * MEDIAN_S:g} ms, p95 {p95_ms:.0f} ms. The release decides every
{LOOK_S} s, with the function that the controller calls. Each row has {RUNS} runs.

A run *passed* if all steps did. It *held* if it had not ended after an hour, and *returned in one window* if it did
within the first {PLAN.every_s / 60:g} minutes.

![Releases that returned, and requests until then](benchmarks-canary.svg)

## Error rate

The candidate's latencies are those of the baseline. The limit is 1 %.

{shown["error rate"]}

## Error rate, compared with the baseline

Of the baseline's requests, {100 * MANY:g} % fail. The guard is `error_rate<2x`. The candidate's error rate is this
multiple.

{shown["error rate, relative"]}

## Latency

All latencies of the candidate are longer by this factor. {100 * USUAL:g} % of its requests fail. The limit is
1.2 times.

{shown["latency"]}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-docs", action="store_true", help="write the results, the page and its plot")
    options = parser.parse_args()
    found = measure_all()
    print("\n\n".join(tables(found).values()))
    if options.write_docs:
        date = datetime.now(UTC).date().isoformat()
        series = {name: [asdict(each) for each in summaries] for name, summaries in found.items()}
        RESULTS.write_text(json.dumps({"date": date, "series": series}, indent=1) + "\n")
        DOCS.write_text(with_document(DOCS.read_text(), document(date, found)))
        PLOT.write_text(drawing(found))


if __name__ == "__main__":
    main()
