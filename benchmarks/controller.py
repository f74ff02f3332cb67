"""What a controller costs by itself: its ticks, and what it writes, with 10,000 replicas of 1,000 deployments.

python -m benchmarks.controller --write-docs
python -m benchmarks.controller --applications 10 --replicas 5

No process is started: whoever is told to do something has done it at once, so all the time that is measured is the
controller's. The clock is turned by hand. What is written is counted at the store, in bytes.
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
from app_toolkit.controller.controller import Controller
from app_toolkit.core.reconcile import Drain, Kill, Probe, Reconfigure, Start, Stop
from app_toolkit.core.replica_state import Drained, Exited, ProbePassed, Reconfigured, Started
from app_toolkit.engines.memory import MemoryStore
from app_toolkit.interfaces import Emit, Location
from app_toolkit.types import Address, NodeId, ReplicaId
from benchmarks.__main__ import machine
from benchmarks.report import table

DOCS = Path(__file__).parents[1] / "docs" / "benchmarks-controller.md"
DEPLOYMENTS = 10
"""Of one application."""
PERIOD_S = 5.0
"""Between two probes of a replica."""


class CountedStore(MemoryStore):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = self.written = 0

    async def get(self, key: str) -> bytes | None:
        self.asked += 1
        return await super().get(key)

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes) -> None:
        self.written += len(value)
        await super().compare_and_set(key, expected, value)


class AtOnce:
    """A launcher whose processes have done everything by the time that it returns."""

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
    """What something took, all in all."""

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
    clock, store, launcher = ManualClock(), CountedStore(), AtOnce()
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
            await controller.apply(application(number, replicas))
        await clock.advance(0.1)

    async def crash() -> None:
        launcher.crash(victim)
        await clock.advance(1.0)

    async def apply_one() -> None:
        await controller.apply(application(0, replicas + 1))
        await clock.advance(0.1)

    try:
        await cost("everything comes up", apply_all)
        status = controller.status()
        running_now = [r for a in status.applications for d in a.deployments for r in d.replicas]
        assert len(running_now) == applications * DEPLOYMENTS * replicas, "not all of them run"
        victim = ReplicaId(running_now[0].id)
        await clock.advance(PERIOD_S)  # what came up together is probed together
        await cost("all are probed once", lambda: clock.advance(PERIOD_S))
        await cost("a tick for one that has died", crash)
        await cost("one application of them is applied anew", apply_one)
        await cost("a second in which nothing happens", lambda: clock.advance(0.001))
        await cost("the status of everything", lambda: asyncio.sleep(0, controller.status()))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return costs


def middle(rounds: Sequence[Sequence[Cost]]) -> list[Cost]:
    """Of each cost the median of its time; the rest is the same in every round."""
    return [replace(each[0], seconds=median(cost.seconds for cost in each)) for each in zip(*rounds, strict=True)]


def report(costs: Sequence[Cost]) -> str:
    head = ("", "CPU, ms", "orders", "us an order", "questions to the store", "bytes written")
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
    return f"""# The controller, measured

Made by `python -m benchmarks.controller --write-docs`; no figure here was typed. Measured on
{datetime.now(UTC):%Y-%m-%d}: CPU time, the median of {options.rounds} rounds.

{replicas} in {options.applications:,} applications. No process is started: whoever is told to do
something has done it at once, so all the time is the controller's own. An *order* is what it has somebody do: start,
probe, reconfigure, drain, stop. What it asks of the store and writes there is counted at the store.

{report(costs)}

Nothing polls: a second in which nothing comes due costs nothing, and only a group to which something happened is
planned for. Where a process comes or goes, all of them are looked through once for the nodes that need a proxy; where
something is applied, the routes of all applications are put together. In every `health_check_period_s`
({PERIOD_S:g} s) each replica is probed once, so the second row is what the controller is busy with all the time.

{found["cores"]} cores, {found["cpu"]}, {found["system"]}. Versions: {versions}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.controller", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--applications", type=int, default=100, help=f"with {DEPLOYMENTS} deployments each (100)")
    parser.add_argument("--replicas", type=int, default=10, help="of each deployment (10)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        print(f"Round {number + 1} of {options.rounds}", flush=True)
        rounds.append(asyncio.run(measure(options.applications, options.replicas)))
    costs = middle(rounds)
    print(report(costs))
    if options.write_docs:
        DOCS.write_text(document(costs, options))


if __name__ == "__main__":
    main()
