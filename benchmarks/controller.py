"""Measure the CPU time and the store accesses of a controller with 10,000 replicas of 1,000 deployments.

python -m benchmarks.controller --write-docs
python -m benchmarks.controller --applications 10 --replicas 5

No process is started. A launcher in memory completes each action at once, so the measured time is that of the
controller only. The clock is manual. The store counts reads and written bytes.
"""

import argparse
import asyncio
import platform
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from app_toolkit.clock import ManualClock
from app_toolkit.config.models import ApplicationSpec, DeploymentConfig, IngressSpec, Route
from app_toolkit.control.controller import Controller
from app_toolkit.control.operations import Deploy
from app_toolkit.control.reconcile import Drain, Kill, Probe, Reconfigure, Start, Stop
from app_toolkit.control.replica_state import Drained, Exited, ProbePassed, Reconfigured, Started
from app_toolkit.interfaces import Emit, Location
from app_toolkit.types import Address, NodeId, ReplicaId
from benchmarks.__main__ import machine
from benchmarks.report import table, with_document
from tests.memory import MemoryStore

DOCS = Path(__file__).parents[1] / "docs" / "measurements.md"
DEPLOYMENTS = 10
"""The number of deployments per application."""
PERIOD_S = 5.0
"""Seconds between two probes of a replica."""


class CountedStore(MemoryStore):
    """A store that counts its reads and the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = self.written = 0

    async def get(self, key: str) -> bytes | None:
        self.asked += 1
        return await super().get(key)

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> None:
        self.written += len(value)
        await super().compare_and_set(key, expected, value)


class ImmediateLauncher:
    """A launcher that completes each action before it returns."""

    home = NodeId("home")

    def __init__(self) -> None:
        self.performed = 0
        self._emit: Emit = lambda event: None

    def listen(self, emit: Emit, epoch: int) -> None:
        self._emit = emit

    def perform(self, action: Any) -> None:
        self.performed += 1
        id: ReplicaId = action.replica
        match action:
            case Start():
                self._emit(Started(id, Location(Address(f"tcp:127.0.0.1:{8_000 + self.performed % 1_000}"), self.home)))
            case Probe():
                self._emit(ProbePassed(id))
            case Reconfigure(_, live):
                self._emit(Reconfigured(id, live))
            case Drain():
                self._emit(Drained(id))
            case Stop():
                self._emit(Exited(id))
            case Kill(_, why):
                self._emit(Exited(id, why))

    def crash(self, id: ReplicaId) -> None:
        self._emit(Exited(id, "it was ended"))

    async def found(self) -> list[ReplicaId]:
        return []

    async def aclose(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one operation."""

    title: str
    seconds: float
    actions: int
    asked: int
    written: int


def application(number: int, replicas: int) -> ApplicationSpec:
    names = [f"d{each}" for each in range(DEPLOYMENTS)]
    return ApplicationSpec(
        name=f"app{number}",
        target="shop:app",
        app_dir="/srv",
        route_prefix=f"/{number}",
        default=names[0],
        deployments=tuple(
            IngressSpec(config=DeploymentConfig(name=name, num_replicas=replicas, health_check_period_s=PERIOD_S))
            for name in names
        ),
        routes=tuple(
            Route(kind="http", pattern=f"^/{name}$", methods=("GET",), path=f"/{name}", owner=name) for name in names
        ),
    )


async def measure(applications: int, replicas: int) -> list[Cost]:
    clock, store, launcher = ManualClock(), CountedStore(), ImmediateLauncher()
    controller = Controller(store, launcher, clock)
    await controller.start()
    running = asyncio.create_task(controller.run())
    costs: list[Cost] = []

    async def cost(title: str, work: Callable[[], Awaitable[object]]) -> None:
        before = launcher.performed, store.asked, store.written
        began = time.process_time()
        await work()
        seconds = time.process_time() - began
        after = launcher.performed, store.asked, store.written
        costs.append(Cost(title, seconds, *(new - old for new, old in zip(after, before, strict=True))))

    async def apply_all() -> None:
        for number in range(applications):
            await controller.change(Deploy(application(number, replicas)))
        await clock.advance(0.1)

    async def crash() -> None:
        launcher.crash(victim)
        await clock.advance(1.0)

    async def apply_one() -> None:
        await controller.change(Deploy(application(0, replicas + 1)))
        await clock.advance(0.1)

    try:
        await cost("start all replicas", apply_all)
        status = controller.status()
        running_now = [r for a in status.applications for d in a.deployments for r in d.replicas]
        assert len(running_now) == applications * DEPLOYMENTS * replicas, "not all replicas run"
        victim = ReplicaId(running_now[0].id)
        await clock.advance(PERIOD_S)  # the next probes of all replicas are due together
        await cost("probe each replica once", lambda: clock.advance(PERIOD_S))
        await cost("replace one replica that died", crash)
        await cost("scale up one application", apply_one)
        await cost("one second without events", lambda: clock.advance(0.001))
        await cost("status of all applications", lambda: asyncio.sleep(0, controller.status()))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return costs


def middle(rounds: Sequence[Sequence[Cost]]) -> list[Cost]:
    """Return each cost with the median of its time. The other figures are the same in each round."""
    return [replace(each[0], seconds=median(cost.seconds for cost in each)) for each in zip(*rounds, strict=True)]


def report(costs: Sequence[Cost]) -> str:
    head = ("", "CPU, ms", "actions", "µs per action", "store reads", "bytes written")
    return table(
        head,
        [
            (
                cost.title,
                f"{cost.seconds * 1e3:,.1f}",
                f"{cost.actions:,}",
                f"{cost.seconds / cost.actions * 1e6:,.0f}" if cost.actions else "–",
                f"{cost.asked:,}",
                f"{cost.written:,}",
            )
            for cost in costs
        ],
    )


def document(costs: Sequence[Cost], options: argparse.Namespace) -> str:
    found, deployments = machine(), options.applications * DEPLOYMENTS
    replicas = f"{deployments * options.replicas:,} replicas of {deployments:,} deployments"
    versions = f"Python {platform.python_version()}, " + ", ".join(
        f"{name} {version(name)}" for name in ("app-toolkit", "pydantic")
    )
    return f"""# Controller benchmark

`python -m benchmarks.controller --write-docs` writes this section. The figures are CPU times, medians of
{options.rounds} rounds, measured on {datetime.now(UTC):%Y-%m-%d}.

The controller manages {replicas} in {options.applications:,} applications. No process is
started: a launcher in memory completes each action at once, so the time is that of the controller only. An *action* is
the start, probe, reconfiguration, drain or stop of a replica.

{report(costs)}

The controller does not poll. Each replica is probed once per `health_check_period_s` ({PERIOD_S:g} s), so the second
row is the constant load of the controller.

The machine has {found["cores"]} cores ({found["cpu"]}, {found["system"]}). Versions: {versions}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.controller", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--applications",
        type=int,
        default=100,
        help=f"number of applications, each with {DEPLOYMENTS} deployments (100)",
    )
    parser.add_argument("--replicas", type=int, default=10, help="replicas per deployment (10)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (3)")
    parser.add_argument("--write-docs", action="store_true", help="write docs/measurements.md")
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        print(f"Round {number + 1} of {options.rounds}", flush=True)
        rounds.append(asyncio.run(measure(options.applications, options.replicas)))
    costs = middle(rounds)
    print(report(costs))
    if options.write_docs:
        DOCS.write_text(with_document(DOCS.read_text(), document(costs, options)))


if __name__ == "__main__":
    main()
