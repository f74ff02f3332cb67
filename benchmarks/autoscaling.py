"""A step of the load, from 1 client to 40, and to none: how soon replicas follow, beside Ray Serve's.

python -m benchmarks.peers ray_serve && python -m benchmarks.autoscaling
python -m benchmarks.autoscaling --rounds 1 --more          # add a round to those of the last run
python -m benchmarks.autoscaling --read --write-docs        # measure nothing, write docs/benchmarks-autoscaling.md

Every answer names the process that gave it, so clients see when an added replica serves. When a replica was ordered and
when it ran, each contender writes down itself.
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
from benchmarks.report import Bound, bounds_table, figure, judge, number, table
from benchmarks.servers import APPS, CannotStart, python_of, started

CLIENTS = 40
NEEDED = CLIENTS // step.TARGET
BEFORE_S = 6.0
"""One client, before the step."""
AFTER_S = 3.0
"""All clients, after all that are needed have answered; and then one client again."""
STEP_S = 90.0
"""All clients, at most."""
EMPTY_S = 90.0
"""Nobody, at most, until no replica is left."""
REST_S = 2.0
"""Nobody, once none is left."""
AGAIN_S = 0.1
"""Until who was not answered comes again."""
ANSWER_S = 60.0
"""Until an answer is waited for no longer."""
PLOTTED_S = 70

DEFAULTS, NO_DELAYS = step.FOLLOWS
OURS, OURS_NO_DELAYS = "toolkit", f"toolkit-{NO_DELAYS}"
NAME = "step"
Results = dict[str, Any]
DOCS = ROOT / "docs" / "benchmarks-autoscaling.md"
RESULTS = ROOT / "benchmarks" / "results-autoscaling.json"


def _contender(name: str, title: str, how: str, **more: Any) -> Contender:
    # Ours imports the toolkit of this checkout.
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


# The walk


@dataclass(frozen=True, slots=True)
class Answer:
    at: float
    """When it was there, by the clock of the day, as all times here."""
    took_s: float
    replica: int | None
    """The process that gave it; None: it failed."""


@dataclass(frozen=True, slots=True)
class Look:
    """From when on so many replicas were said to start and to run."""

    at: float
    starting: int
    running: int


@dataclass(frozen=True, slots=True)
class Walk:
    answers: Sequence[Answer]
    stepped_at: float
    """The other clients came."""
    left_at: float
    """They went."""
    empty_at: float
    """The last one has gone, too."""
    asked_at: float | None
    """One came again; None: it was not waited until no replica was left."""


async def walk(url: str, folder: Path, needed: int, *, to_zero: bool) -> Walk:
    """One client, all of them until as many replicas as needed have answered, one, none, and one request again."""
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
    """Wait until it holds, at most so long; whether it does."""
    by = time.monotonic() + seconds
    while not (there := holds()) and time.monotonic() < by:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return there


async def _ask(url: str, answers: list[Answer], enough: asyncio.Event) -> None:
    """One request after another until it is enough, and one in any case; who is not answered comes again."""
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
        except (OSError, EOFError, ValueError):  # also one that took too long
            answers.append(Answer(time.time(), time.time() - began, None))
        if enough.is_set():
            return
        await asyncio.sleep(AGAIN_S)


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """The number that is answered. Raises `ValueError` for anything else."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)\r\n", head)
    if length is None or not head.startswith(b"HTTP/1.1 200 "):
        raise ValueError(f"this is no answer with a number: {head!r}")
    return int(await reader.readexactly(int(length[1])))


def looks(folder: Path) -> list[Look]:
    """What a contender has written down of its replicas."""
    return [Look(**json.loads(line)) for line in (folder / step.REPLICAS).read_text().splitlines()]


# What comes of it


def serving(answers: Iterable[Answer], since: float) -> dict[int, float]:
    """By replica, when its first answer since then was there; in this order."""
    first: dict[int, float] = {}
    for answer in answers:
        if answer.at >= since and answer.replica is not None:
            first.setdefault(answer.replica, answer.at)
    return first


def start_up(looks: Iterable[Look], since: float) -> tuple[float, float] | None:
    """When a replica was first said to start since then, and when one more was first said to run; None: not yet."""
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
    """Seconds and milliseconds; what did not happen is not there."""
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
    """Until it was ordered; what its start-up took; until its first answer, and what of that was no start-up."""
    ordered, ran = started
    return {
        f"{name}_ordered_s": ordered - since,
        f"{name}_start_s": ran - ordered,
        f"{name}_s": answered - since,
        f"{name}_beyond_s": answered - since - (ran - ordered),
    }


def timeline(walk: Walk) -> list[tuple[int, int, int, float]]:
    """For each second from the step on, and before: replicas that answered, answers, and their p99 in ms."""
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


# All of it


def measure(chosen: Sequence[Contender], rounds: int, seed: int, before: Results | None) -> Results:
    """Interleaved: each round measures every contender once, in an order of its own. `before`: rounds to add to."""
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
                    told = looks(server.folder)
            except (CannotStart, OSError) as error:
                failed.append(_failure(contender, NAME, round_, error))
            else:
                _note(found.setdefault(contender.name, {}), NAME, round_, figures(walked, told, NEEDED))
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
        "absent": {each.name: "its environment was not made" for each in chosen if each not in there},
        "failed": failed,
        "figures": found,
        "timelines": timelines,
    }


# The report


BOUNDS = (
    Bound(
        "First added replica, beyond its start-up: defaults",
        lambda need: need(OURS, NAME, "first_beyond_s"),
        2,
        at_most=True,
        unit="s",
    ),
    Bound(
        "First added replica, beyond its start-up: no delays",
        lambda need: need(OURS_NO_DELAYS, NAME, "first_beyond_s"),
        2,
        at_most=True,
        unit="s",
    ),
    Bound(
        "First answer from zero, beyond the start-up",
        lambda need: need(OURS_NO_DELAYS, NAME, "woken_beyond_s"),
        0.5,
        at_most=True,
        unit="s",
    ),
)
"""What is aimed at, for app_toolkit."""

STEP = {
    "first_ordered_s": "ordered after, s",
    "first_start_s": "its start-up, s",
    "first_s": "first answer after, s",
    "first_beyond_s": "of that no start-up, s",
    "all_s": "all have answered after, s",
    "p50_ms": "p50 until then, ms",
    "p99_ms": "p99, ms",
    "failed": "failed, in all rounds",
}
ZERO = {
    "gone_s": "none is left after, s",
    "woken_ordered_s": "ordered after, s",
    "woken_start_s": "its start-up, s",
    "woken_s": "first answer after, s",
    "woken_beyond_s": "of that no start-up, s",
}


def failures(results: Results, contender: str) -> int:
    """Of all rounds: a median would hide those of one."""
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
    """The first round over time."""
    panels = {
        f"{title}, by seconds since the step": {
            name: (TITLES[name], [(row[0], row[column]) for row in results["timelines"][name]])
            for name in TITLES
            if name in results["timelines"]
        }
        for title, column in (("Replicas that answer", 1), ("Answers a second", 2), ("p99 of a second, ms", 3))
    }
    return curves(panels)


def document(results: Results) -> str:
    run, machine = results["run"], results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    remarks = [f"{TITLES[name]} was not measured: {why}." for name, why in results["absent"].items()]
    remarks += [f"{TITLES[each['contender']]}, round {each['round'] + 1}: {each['why']}." for each in results["failed"]]
    said = "".join(f"{remark}\n\n" for remark in remarks)
    return f"""# Following a load, measured

Made by `python -m benchmarks.autoscaling --write-docs`; no figure here was typed. The raw figures of every round are in
`benchmarks/results-autoscaling.json`, measured on {run["date"]}: the medians of
{run["rounds"]} round{"s" * (run["rounds"] > 1)}, with the contenders in a new order in each.

A handler takes {run["handler_s"] * 1_000:g} ms. One client asks for it again and again, and after {BEFORE_S:g} s
{run["clients"]} do. A replica is meant to have {run["target"]} requests, and takes {2 * run["target"]} at a time; so
{run["needed"]} are needed. Once all have answered the clients go, and where there may be zero replicas one comes again
when none is left. Every answer names the replica that gave it.

*Defaults* are those of each: `max_replicas` is 10, since Ray Serve's own is 1. *No delays* has `upscale_delay_s` and
`downscale_delay_s` of 0, and `min_replicas=0`. The *start-up* of a replica is the time from its order until it runs, as
its own controller says. The Ray that app_toolkit starts runs its workers at an ordinary priority, those of Ray Serve
have Ray's default niceness of 15.

## The step

{_table(results, STEP)}

![Replicas, answers and latency over time](benchmarks-autoscaling.svg)

The first round, as clients saw it. *Failed* is every answer but a 200, and a connection that ended without one.

## To zero and back

{_table(results, ZERO)}

*None is left after* counts from the last answer; a request that came {REST_S:g} s later was the first from zero.

## What is aimed at

{bounds_table(judge(results, BOUNDS))}

And no request is to fail: {failures(results, OURS) + failures(results, OURS_NO_DELAYS)} of app_toolkit's did.

{said}{machine["cores"]} cores, {machine["cpu"]}, {machine["system"]}: clients, proxies and all replicas share them,
also while these start.

Versions: {versions}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.autoscaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the order of contenders (1)")
    parser.add_argument("--only", nargs="+", choices=list(TITLES), help="these contenders")
    parser.add_argument("--more", action="store_true", help="add the rounds to those of the last run")
    parser.add_argument("--read", action="store_true", help="take the figures of the last run")
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    results: Results | None = json.loads(RESULTS.read_text()) if options.read or options.more else None
    if results is None or not options.read:
        chosen = [each for each in CONTENDERS if not options.only or each.name in options.only]
        results = measure(chosen, options.rounds, options.seed, results)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(report(results))
    if options.write_docs:
        DOCS.write_text(document(results))
        DOCS.with_suffix(".svg").write_text(drawing(results))


if __name__ == "__main__":
    main()
