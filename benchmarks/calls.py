"""Measure calls through deployment handles with app_toolkit and Ray Serve in one run.

python -m benchmarks.calls                # `python -m benchmarks.peers ray_serve` creates Ray Serve's environment
python -m benchmarks.calls --write-docs   # also write docs/measurements.md

Each contender has one ingress and one replica of a class. The ingress measures the calls, so the figures include
neither a client nor a proxy.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.__main__ import machine
from benchmarks.contenders import Contender
from benchmarks.report import with_document
from benchmarks.servers import CannotStart, Server, python_of, started

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "measurements.md"
RESULTS = Path(__file__).parent / "results-calls.json"

OURS = "toolkit"
PEER = "ray-serve"
SERVE = {"proxy": "ray::ProxyActor", "replica": "ray::ServeReplica"}
CONTENDERS = (
    Contender(
        name=OURS,
        title="app_toolkit",
        command="{python} -m app_toolkit.cli run {apps}/calls_toolkit.py --engine ray --host 127.0.0.1 --port {port}",
        roles={"proxy": "_Proxy", "replica": "_Replica"},
        says="Serving ",
    ),
    Contender(
        name=PEER,
        title="Ray Serve, defaults",
        command="{python} {apps}/calls_ray_serve.py {port}",
        roles=SERVE,
        says="ready",
        peer="ray_serve",
    ),
    Contender(
        name="ray-serve-grpc",
        title="Ray Serve, calls over gRPC",
        command="{python} {apps}/calls_ray_serve.py {port}",
        roles=SERVE,
        says="ready",
        peer="ray_serve",
        environ={"RAY_SERVE_USE_GRPC_BY_DEFAULT": "1"},
    ),
)

MEASURES: Mapping[str, tuple[str, str, str]] = {
    "latency": ("/latency", "p50_ms", "sequential calls: p50, ms"),
    "throughput": ("/throughput", "rps", "32 concurrent calls: calls/s"),
    "items": ("/items", "rps", "streamed items/s"),
    "payload_1": ("/payload/1", "mb_s", "arrays of 1 MB: MB/s"),
    "payload_10": ("/payload/10", "mb_s", "arrays of 10 MB: MB/s"),
    "payload_64": ("/payload/64", "mb_s", "arrays of 64 MB: MB/s"),
}
"""By name: the path that measures it, the name of the figure, and the title."""

BOUNDS: Mapping[str, float] = {"latency": 15, "throughput": 30, "items": 10, "payload_10": 2, "payload_64": 1}
"""The required improvement over Ray Serve with defaults, by measure."""


def measure(contenders: Sequence[Contender], rounds: int, seconds: float, seed: int) -> dict[str, Any]:
    figures: dict[str, dict[str, list[float]]] = {each.name: {name: [] for name in MEASURES} for each in contenders}
    failed: list[str] = []
    rng = random.Random(seed)
    for number in range(rounds):
        for contender in rng.sample(list(contenders), len(contenders)):
            print(f"Round {number + 1} of {rounds}: {contender.title}", flush=True)
            try:
                with started(contender) as server:
                    _look(server, "/throughput", 1)  # warm
                    for name, (path, figure, _) in MEASURES.items():
                        try:
                            figures[contender.name][name].append(_look(server, path, seconds)[figure])
                        except (httpx.HTTPError, KeyError) as error:
                            failed.append(f"{contender.name}, {name}: {error!r}")
            except CannotStart as error:
                failed.append(str(error))
    return {"rounds": rounds, "seconds": seconds, "machine": machine(), "failed": failed, "figures": figures}


def _look(server: Server, path: str, seconds: float) -> dict[str, float]:
    answer = httpx.get(server.url + path, params={"seconds": seconds}, timeout=seconds + 60, trust_env=False)
    answer.raise_for_status()
    found: dict[str, float] = answer.json()
    return found


def table(results: Mapping[str, Any]) -> str:
    figures = results["figures"]
    titles = [each.title for each in CONTENDERS if each.name in figures]
    lines = [
        "| " + " | ".join(["", *titles, "improvement over Ray Serve, defaults", "required"]) + " |",
        "| --- " + "| --: " * (len(titles) + 2) + "|",
    ]
    for name, (_, _, title) in MEASURES.items():
        medians = {each: median(found[name]) if found[name] else None for each, found in figures.items()}
        ours, theirs = medians.get(OURS), medians.get(PEER)
        ratio = None if not ours or not theirs else theirs / ours if name == "latency" else ours / theirs
        required = f"≥ {BOUNDS[name]:g} ×" if name in BOUNDS else ""
        cells = [_shown(medians[each.name]) for each in CONTENDERS if each.name in figures]
        lines.append("| " + " | ".join([title, *cells, f"{ratio:.3g} ×" if ratio else "–", required]) + " |")
    return "\n".join(lines)


def _shown(figure: float | None) -> str:
    if figure is None:
        return "–"
    return f"{figure:,.0f}" if figure >= 1_000 else f"{figure:.3g}"


def document(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    return f"""# Handle call benchmark

`python -m benchmarks.calls --write-docs` writes this section. The figures are medians of {results["rounds"]} rounds of
{results["seconds"]:g} s per figure; each round measures the contenders in a new random order. Each contender has one
ingress and one replica of a class. The ingress measures the calls, so the figures include neither a client nor a proxy.
The machine has {machine["cores"]} cores ({machine["cpu"]}, {machine["system"]}) and was busy, so only ratios are
comparable with other machines.

{table(results)}

{_missing(results)}A call sends a string of 100 characters and returns it. Items are read from streams of 1,000 items.
A call with an array sends an array of float64 and returns its size.
"""


def _missing(results: Mapping[str, Any]) -> str:
    """Return a paragraph about the measurements that failed in each round, by contender."""
    titles = {each.name: each.title for each in CONTENDERS}
    lines = []
    for name, found in results["figures"].items():
        absent = [MEASURES[measure][2].partition(":")[0] for measure, figures in found.items() if not figures]
        if absent:
            lines.append(f"{titles[name]}: the calls returned an error in each round for {', '.join(absent)}.\n")
    return "".join(lines) + "\n" if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.calls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each measurement (2)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the order of the contenders (1)")
    parser.add_argument(
        "--only", nargs="+", choices=[each.name for each in CONTENDERS], help="measure only these contenders"
    )
    parser.add_argument("--read", action="store_true", help="read the results of the last run, without measuring")
    parser.add_argument("--write-docs", action="store_true", help="write docs/measurements.md")
    options = parser.parse_args()
    if options.read:
        results = json.loads(RESULTS.read_text())
    else:
        chosen = [each for each in CONTENDERS if each.name in (options.only or [each.name]) and python_of(each)]
        results = measure(chosen, options.rounds, options.seconds, options.seed)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for sentence in results["failed"]:
        print(sentence)
    print(table(results))
    if options.write_docs:
        DOCS.write_text(with_document(DOCS.read_text(), document(results)))


if __name__ == "__main__":
    main()
