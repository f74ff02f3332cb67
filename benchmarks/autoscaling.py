"""Measure how fast app_toolkit and Ray Serve scale when the load rises from 1 client to 40, and then drops to zero.

python -m benchmarks.peers ray_serve && python -m benchmarks.autoscaling
python -m benchmarks.autoscaling --rounds 1 --more          # add a round to those of the last run
python -m benchmarks.autoscaling --read --write-docs        # write docs/measurements.md from recorded results

Each response names the replica process, so clients see when a new replica serves. Each contender records when it
requested a replica and when the replica ran.
"""

import argparse
import asyncio
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks.__main__ import ROOT, _failure, _note, _versions, machine
from benchmarks.apps import step
from benchmarks.contenders import Contender
from benchmarks.load import percentile, request_of
from benchmarks.measures import Figures
from benchmarks.plot import curves
from benchmarks.report import Bound, bounds_table, figure, judge, number, table, with_document
from benchmarks.servers import APPS, CannotStart, python_of, started

CLIENTS = 40
NEEDED = CLIENTS // step.TARGET
BEFORE_S = 6.0
"""Seconds with one client before the step."""
AFTER_S = 3.0
"""Seconds with all clients after all needed replicas have responded, and then with one client again."""
STEP_S = 90.0
"""Maximum seconds with all clients until all needed replicas have responded."""
EMPTY_S = 90.0
"""Maximum seconds without clients until no replica is left."""
REST_S = 2.0
"""Seconds without clients after no replica is left."""
AGAIN_S = 0.1
"""Seconds until a client retries after a failed request."""
ANSWER_S = 60.0
"""Timeout of a request in seconds."""
PLOTTED_S = 70

DEFAULTS, NO_DELAYS = step.FOLLOWS
OURS, OURS_NO_DELAYS = "toolkit", f"toolkit-{NO_DELAYS}"
NAME = "step"
Results = dict[str, Any]
DOCS = ROOT / "docs" / "measurements.md"
PLOT = DOCS.with_name("benchmarks-autoscaling.svg")
RESULTS = ROOT / "benchmarks" / "results-autoscaling.json"


def _contender(name: str, title: str, how: str, **more: Any) -> Contender:
    # app_toolkit is imported from this checkout.
    folders = (APPS, *((ROOT,) if more.get("peer") is None else ()))
    script = "step_toolkit.py" if more.get("peer") is None else "step_ray_serve.py"
    environ = {"PYTHONPATH": ":".join(map(str, folders))}
    return Contender(name, title, f"{{python}} {{apps}}/{script} {{port}} {how}", {}, "ready", environ=environ, **more)


CONTENDERS = (
    _contender(OURS, "app_toolkit, defaults", DEFAULTS),
    _contender(OURS_NO_DELAYS, "app_toolkit, no delays", NO_DELAYS),
    _contender("ray-serve", "Ray Serve, defaults", DEFAULTS, peer="ray_serve"),
    _contender(f"ray-serve-{NO_DELAYS}", "Ray Serve, no delays", NO_DELAYS, peer="ray_serve"),
)
TITLES = {each.name: each.title for each in CONTENDERS}


# The load


@dataclass(frozen=True, slots=True)
class Answer:
    at: float
    """When the response was received: `time.time()`, as all times here."""
    took_s: float
    replica: int | None
    """The process ID of the replica. None: the request failed."""


@dataclass(frozen=True, slots=True)
class Look:
    """The number of starting and of running replicas from a time on, as the contender recorded them."""

    at: float
    starting: int
    running: int


@dataclass(frozen=True, slots=True)
class Walk:
    answers: Sequence[Answer]
    stepped_at: float
    """When the other clients started."""
    left_at: float
    """When the other clients stopped."""
    empty_at: float
    """When the last client stopped."""
    asked_at: float | None
    """When a client sent a request to the application without replicas. None: not measured."""


async def walk(url: str, folder: Path, needed: int, *, to_zero: bool) -> Walk:
    """Run one client, all clients until the needed replicas have responded, one client, none, and one more request."""
    answers: list[Answer] = []

    async def asking(clients: int, enough: asyncio.Event) -> None:
        await asyncio.gather(*(_ask(url, answers, enough) for _ in range(clients)))

    enough, few = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as clients:
        clients.create_task(asking(1, enough))
        await asyncio.sleep(BEFORE_S)
        stepped_at = time.time()
        clients.create_task(asking(CLIENTS - 1, few))
        await _until(lambda: len(serving(answers[-4 * CLIENTS :], stepped_at)) >= needed, STEP_S)
        await asyncio.sleep(AFTER_S)
        left_at = time.time()
        few.set()
        await asyncio.sleep(AFTER_S)
        enough.set()
    empty_at, asked_at = time.time(), None
    if to_zero and await _until(lambda: looks(folder)[-1].running == 0, EMPTY_S):
        await asyncio.sleep(REST_S)
        asked_at = time.time()
        await _ask(url, answers, enough)
    return Walk(answers, stepped_at, left_at, empty_at, asked_at)


async def _until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds, at most `seconds`. Return whether it holds."""
    by = time.monotonic() + seconds
    while not (there := holds()) and time.monotonic() < by:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return there


async def _ask(url: str, answers: list[Answer], enough: asyncio.Event) -> None:
    """Send requests one after another until `enough` is set, at least one. Reconnect after a failure."""
    parts, request = urlsplit(url), request_of(url, None)
    while True:
        began = time.time()
        try:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                while True:
                    began = time.time()
                    async with asyncio.timeout(ANSWER_S):
                        replica = await _exchange(reader, writer, request)
                    answers.append(Answer(time.time(), time.time() - began, replica))
                    if enough.is_set():
                        return
            finally:
                writer.close()
        except (OSError, EOFError, ValueError):  # TimeoutError is an OSError
            answers.append(Answer(time.time(), time.time() - began, None))
        if enough.is_set():
            return
        await asyncio.sleep(AGAIN_S)


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Return the number in the response. Raises `ValueError` for any other response."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)\r\n", head)
    if length is None or not head.startswith(b"HTTP/1.1 200 "):
        raise ValueError(f"the response has no number: {head!r}")
    return int(await reader.readexactly(int(length[1])))


def looks(folder: Path) -> list[Look]:
    """Return the replica counts that a contender has recorded."""
    return [Look(**json.loads(line)) for line in (folder / step.REPLICAS).read_text().splitlines()]


# The figures


def serving(answers: Iterable[Answer], since: float) -> dict[int, float]:
    """Return the time of the first response of each replica since then, in order of time."""
    first: dict[int, float] = {}
    for answer in answers:
        if answer.at >= since and answer.replica is not None:
            first.setdefault(answer.replica, answer.at)
    return first


def start_up(looks: Iterable[Look], since: float) -> tuple[float, float] | None:
    """Return when a replica first started since then, and when one more replica first ran; None: not yet."""
    running, ordered = 0, None
    for look in looks:
        if look.at < since:
            running = look.running
        elif ordered is None:
            ordered = look.at if look.starting or look.running > running else None
        if ordered is not None and look.running > running:
            return ordered, look.at
    return None


def figures(walk: Walk, looks: Sequence[Look], needed: int) -> Figures:
    """Return the figures in seconds and milliseconds, without those of events that did not occur."""
    found: Figures = {"failed": sum(answer.replica is None for answer in walk.answers)}
    before = {answer.replica for answer in walk.answers if answer.at < walk.stepped_at}
    first = serving((each for each in walk.answers if each.at < walk.left_at), walk.stepped_at)
    added = [at for replica, at in first.items() if replica not in before]
    all_at = list(first.values())[needed - 1] if len(first) >= needed else walk.left_at
    if added and (started := start_up(looks, walk.stepped_at)):
        found |= _times("first", walk.stepped_at, started, added[0])
    if len(first) >= needed:
        found["all_s"] = all_at - walk.stepped_at
    rising = [each.took_s * 1_000 for each in walk.answers if walk.stepped_at <= each.at <= all_at]
    if rising:
        found |= {"p50_ms": median(rising), "p99_ms": percentile(rising, 99)}
    if walk.asked_at is not None:
        gone_at = next(each.at for each in looks if each.at >= walk.left_at and each.running == 0)
        found["gone_s"] = gone_at - walk.empty_at
        last = walk.answers[-1]
        if last.replica is not None and (started := start_up(looks, walk.asked_at)):
            found |= _times("woken", walk.asked_at, started, last.at)
    return found


def _times(name: str, since: float, started: tuple[float, float], answered: float) -> Figures:
    """Return the times until the request for a replica, of its start-up, until its first response, and the rest."""
    ordered, ran = started
    return {
        f"{name}_ordered_s": ordered - since,
        f"{name}_start_s": ran - ordered,
        f"{name}_s": answered - since,
        f"{name}_beyond_s": answered - since - (ran - ordered),
    }


def timeline(walk: Walk) -> list[tuple[int, int, int, float]]:
    """Return for each second, relative to the step: replicas that responded, responses, and p99 latency in ms."""
    seconds: dict[int, list[Answer]] = {}
    for answer in walk.answers:
        seconds.setdefault(math.floor(answer.at - walk.stepped_at), []).append(answer)
    return [
        (
            second,
            len({each.replica for each in there} - {None}),
            len(there),
            round(percentile([each.took_s for each in there], 99) * 1_000, 1),
        )
        for second, there in sorted(seconds.items())
        if second < PLOTTED_S and second < walk.left_at - walk.stepped_at
    ]


# The measurement


def measure(chosen: Sequence[Contender], rounds: int, seed: int, before: Results | None) -> Results:
    """Measure each contender once per round, in a new random order. `before`: earlier results, to which to add."""
    there = [each for each in chosen if python_of(each)]
    done = before["run"]["rounds"] if before else 0
    found: dict[str, Any] = before["figures"] if before else {}
    timelines: dict[str, Any] = before["timelines"] if before else {}
    failed: list[dict[str, Any]] = before["failed"] if before else []
    rng = random.Random(seed + done)
    for round_ in range(done, done + rounds):
        for contender in rng.sample(there, len(there)):
            print(f"Round {round_ + 1}: {contender.title}", flush=True)
            try:
                with started(contender) as server:
                    walked = asyncio.run(walk(server.url, server.folder, NEEDED, to_zero=NO_DELAYS in contender.name))
                    recorded = looks(server.folder)
            except (CannotStart, OSError) as error:
                failed.append(_failure(contender, NAME, round_, error))
            else:
                _note(found.setdefault(contender.name, {}), NAME, round_, figures(walked, recorded, NEEDED))
                timelines.setdefault(contender.name, timeline(walked))
    return {
        "run": {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "rounds": done + rounds,
            "seed": seed,
            "clients": CLIENTS,
            "handler_s": step.HANDLER_S,
            "target": step.TARGET,
            "needed": NEEDED,
        },
        "machine": machine(),
        "versions": _versions(there),
        "absent": {each.name: "its environment is missing" for each in chosen if each not in there},
        "failed": failed,
        "figures": found,
        "timelines": timelines,
    }


# The report


BOUNDS = (
    Bound(
        "First added replica, without its start-up: defaults",
        lambda need: need(OURS, NAME, "first_beyond_s"),
        2,
        at_most=True,
        unit="s",
    ),
    Bound(
        "First added replica, without its start-up: no delays",
        lambda need: need(OURS_NO_DELAYS, NAME, "first_beyond_s"),
        2,
        at_most=True,
        unit="s",
    ),
    Bound(
        "First response from zero replicas, without the start-up",
        lambda need: need(OURS_NO_DELAYS, NAME, "woken_beyond_s"),
        0.5,
        at_most=True,
        unit="s",
    ),
)
"""The targets for app_toolkit."""

STEP = {
    "first_ordered_s": "replica requested after, s",
    "first_start_s": "start-up, s",
    "first_s": "first response after, s",
    "first_beyond_s": "thereof not start-up, s",
    "all_s": "all replicas responded after, s",
    "p50_ms": "p50 until then, ms",
    "p99_ms": "p99 until then, ms",
    "failed": "failed requests, all rounds",
}
ZERO = {
    "gone_s": "zero replicas after, s",
    "woken_ordered_s": "replica requested after, s",
    "woken_start_s": "start-up, s",
    "woken_s": "first response after, s",
    "woken_beyond_s": "thereof not start-up, s",
}


def failures(results: Results, contender: str) -> int:
    """Return the failed requests of all rounds. A median would hide the failures of a single round."""
    found = results["figures"].get(contender, {}).get(NAME, {}).get("failed", ())
    return sum(int(value or 0) for value in found)


def _table(results: Results, columns: Mapping[str, str]) -> str:
    rows = []
    for name in TITLES:
        found = {each: figure(results, name, NAME, each) for each in columns}
        if any(value is not None for value in found.values()):
            shown = {each: number(value) for each, value in found.items()}
            if "failed" in shown:
                shown["failed"] = f"{failures(results, name):,}"
            rows.append((TITLES[name], *shown.values()))
    return table(("", *columns.values()), rows)


def report(results: Results) -> str:
    return "\n\n".join((_table(results, STEP), _table(results, ZERO), bounds_table(judge(results, BOUNDS))))


def drawing(results: Results) -> str:
    """Return the plot of the first round."""
    panels = {
        f"{title}, over seconds since the step": {
            name: (TITLES[name], [(row[0], row[column]) for row in results["timelines"][name]])
            for name in TITLES
            if name in results["timelines"]
        }
        for title, column in (
            ("Replicas that respond", 1),
            ("Responses per second", 2),
            ("p99 latency within a second, ms", 3),
        )
    }
    return curves(panels)


def document(results: Results) -> str:
    run, machine = results["run"], results["machine"]
    remarks = [f"{TITLES[name]} was not measured: {why}." for name, why in results["absent"].items()]
    remarks += [f"{TITLES[each['contender']]}, round {each['round'] + 1}: {each['why']}." for each in results["failed"]]
    remarks_text = "".join(f"{remark}\n\n" for remark in remarks)
    return f"""# Autoscaling benchmark

`python -m benchmarks.autoscaling --write-docs` wrote this section on {run["date"]}: medians of {run["rounds"]}
round{"s" * (run["rounds"] > 1)}, with {machine["cores"]} cores ({machine["cpu"]}).

A handler takes {run["handler_s"] * 1_000:g} ms. One client sends requests one after another, and after {BEFORE_S:g} s,
{run["clients"]} clients do. `target_ongoing_requests` is {run["target"]} and `max_ongoing_requests` is
{2 * run["target"]}, so {run["needed"]} replicas are needed.

*Defaults* are the defaults of each system, except that `max_replicas` is 10, because it is 1 in Ray Serve. *No delays*
sets `upscale_delay_s` and `downscale_delay_s` to 0 and `min_replicas` to 0. The *start-up* of a replica is the time
from the controller's request for it until it runs. The Ray workers of app_toolkit run at normal priority; those of Ray
Serve have Ray's default niceness of 15.

## Scaling up

{_table(results, STEP)}

![Replicas, responses and latency over time](benchmarks-autoscaling.svg)

## Scaling to zero and back

{_table(results, ZERO)}

*Zero replicas after* counts from the last response. The first request to zero replicas was sent {REST_S:g} s later.

## Targets

{bounds_table(judge(results, BOUNDS))}

No request may fail: {failures(results, OURS) + failures(results, OURS_NO_DELAYS)} requests to app_toolkit failed.

{remarks_text}"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.autoscaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (3)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the order of the contenders (1)")
    parser.add_argument("--only", nargs="+", choices=list(TITLES), help="measure only these contenders")
    parser.add_argument("--more", action="store_true", help="add the rounds to those of the last run")
    parser.add_argument("--read", action="store_true", help="read the results of the last run, without measuring")
    parser.add_argument("--write-docs", action="store_true", help="write docs/measurements.md and its plot")
    options = parser.parse_args()
    results: Results | None = json.loads(RESULTS.read_text()) if options.read or options.more else None
    if results is None or not options.read:
        chosen = [each for each in CONTENDERS if not options.only or each.name in options.only]
        results = measure(chosen, options.rounds, options.seed, results)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(report(results))
    if options.write_docs:
        DOCS.write_text(with_document(DOCS.read_text(), document(results)))
        PLOT.write_text(drawing(results))


if __name__ == "__main__":
    main()
