"""Compare two builds. Both run at the same time, and slices of one second measure them alternately.

The speed of a busy machine varies by more than most code changes gain. Here both builds are measured during the same
minutes, so the ratio of two neighbouring slices shows which build is faster. Bare FastAPI on uvicorn is measured, too.

python -m benchmarks.ab ../old .                               # two checkouts, each with its environment in .venv
python -m benchmarks.ab ../old . --only get_32 calls --rounds 10
"""

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from benchmarks.calls import _look
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.measures import MEASURES, Failed, warm_up
from benchmarks.servers import Server, started

BARE, OLD, NEW = "bare", "old", "new"
HTTP = ("get_32", "post_32", "stream_8", "download", "get_1")
CALLS = {"calls": ("/throughput", "rps"), "call": ("/latency", "p50_ms")}
"""By name: the path at which the ingress measures it, and the name of the figure."""

TITLES = {name: MEASURES[name].title for name in HTTP} | {
    "calls": "Handle calls, 32 concurrent",
    "call": "Handle calls, sequential",
}

Figures = Mapping[str, Mapping[str, Sequence[float]]]
"""By measure and by contender: the figure of each round."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and the quartiles of ratios."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratios(of: Sequence[float], to: Sequence[float]) -> Spread:
    """Return the spread of the ratios of each round."""
    found = [one / other for one, other in zip(of, to, strict=True)]
    low, _, high = quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return Spread(low, median(found), high)


def table(figures: Figures) -> str:
    lines = [
        "| measure, unit | bare | old | new | new / old | new / bare |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for name, found in figures.items():
        medians = [f"{median(found[each]):,.4g}" if each in found else "" for each in (BARE, OLD, NEW)]
        beside = ratios(found[NEW], found[BARE]) if BARE in found else ""
        lines.append(
            f"| {TITLES[name]}: {_unit(name)} | {' | '.join(medians)} | {ratios(found[NEW], found[OLD])} | {beside} |"
        )
    return "\n".join(lines)


def _unit(name: str) -> str:
    return CALLS[name][1] if name in CALLS else MEASURES[name].figures[0]


def build(name: str, checkout: Path, app: str, options: str = "") -> Contender:
    """Return the build of a checkout, on Ray. It runs in the environment of that checkout."""
    python = checkout.resolve() / ".venv" / "bin" / "python"
    # Older builds know no other engine, and no option for it.
    if (checkout / "app_toolkit" / "engines" / "processes").is_dir():
        options = f"--engine ray {options}"
    return Contender(
        name=name,
        title=name,
        command=f"{python} -m app_toolkit.cli run {{apps}}/{app} --host 127.0.0.1 --port {{port}} {options}",
        roles={"proxy": "_Proxy", "replica": "_Replica"},
        says="Serving ",
    )


def slice_of(name: str, server: Server) -> float:
    """Measure for one second."""
    if name in CALLS:
        path, figure = CALLS[name]
        return _look(server, path, 1)[figure]
    return MEASURES[name].run(server, 1)[MEASURES[name].figures[0]]


def measure(contenders: Sequence[Contender], names: Sequence[str], rounds: int, rng: random.Random) -> Figures:
    """Measure all contenders in slices while all of them run. Raises `Failed` if a slice has a wrong response."""
    figures: dict[str, dict[str, list[float]]] = {name: {each.name: [] for each in contenders} for name in names}
    with ExitStack() as stack:
        servers = [stack.enter_context(started(each)) for each in contenders]
        for server in servers:
            if names[0] in CALLS:
                _look(server, "/throughput", 1)
            else:
                warm_up(server)
        for number in range(rounds):
            print(f"\rRound {number + 1} of {rounds} ", end="", file=sys.stderr, flush=True)
            for name in names:
                for server in rng.sample(servers, len(servers)):
                    figures[name][server.contender.name].append(slice_of(name, server))
    print(file=sys.stderr)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.ab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="checkout of the old build, the baseline")
    parser.add_argument("new", type=Path, help="checkout of the new build")
    parser.add_argument("--rounds", type=int, default=40, help="number of rounds (40)")
    parser.add_argument("--replicas", type=int, default=2, help="number of replicas of the app (2)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the order within a round (1)")
    parser.add_argument(
        "--only", nargs="+", choices=list(TITLES), default=list(TITLES), help="measurements to run (default: all)"
    )
    options = parser.parse_args()
    rng = random.Random(options.seed)
    bare = next(each for each in CONTENDERS if each.name == BARE)
    checkouts = {OLD: options.old, NEW: options.new}
    replicas = f"--num-replicas {options.replicas}"
    apps = [build(name, checkout, "declare/toolkit.py", replicas) for name, checkout in checkouts.items()]
    handles = [build(name, checkout, "calls_toolkit.py") for name, checkout in checkouts.items()]
    try:
        for contenders, kinds in (([bare, *apps], HTTP), (handles, tuple(CALLS))):
            names = [name for name in kinds if name in options.only]
            if names:
                print(table(measure(contenders, names, options.rounds, rng)), flush=True)
    except Failed as error:
        sys.exit(f"a slice failed: {error}")


if __name__ == "__main__":
    main()
