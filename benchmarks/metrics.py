"""Measure what the metrics of 500 deployments with 10 replicas each cost the admin server and the controller.

python -m benchmarks.metrics --write-docs
python -m benchmarks.metrics --deployments 50 --rounds 1

No process is started. The processes of an instance are simulated: each has the counters, the pushes and the labels of
a real one, and the aggregate takes them as the admin server does. The controller is real, with a launcher in memory.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psutil

from app_toolkit.clock import ManualClock
from app_toolkit.control.controller import Controller
from app_toolkit.control.operations import Deploy
from app_toolkit.exchange.gauges import OPEN_STREAMS, OPEN_WEBSOCKETS, REQUESTS_ONGOING, REQUESTS_QUEUED
from app_toolkit.host.replica_server import REPLICA_BUFFERED, REPLICA_ONGOING, REPLICA_STREAMS, REPLICA_WEBSOCKETS
from app_toolkit.observability.counts import BatchCounts, Counters
from app_toolkit.observability.metrics import Sample
from app_toolkit.observability.process_use import LOOP_LAG_SECONDS, MEMORY_BYTES
from app_toolkit.observability.records import Record
from app_toolkit.observability.snapshots import PUSH_S, Snapshots, UserFamily, UserMetrics
from app_toolkit.operate.aggregate import MetricsAggregate
from benchmarks.__main__ import machine
from benchmarks.controller import DEPLOYMENTS, ImmediateLauncher, application
from benchmarks.report import replace_section, table
from tests.memory import MemoryStore

DOCS = Path(__file__).parents[1] / "docs" / "measurements.md"
HEADING = "A scrape of many deployments"
PROXIES = 4
ROUTES = 3
"""Routes of each deployment. Half of their requests fail, so each has two outcomes."""
LATENCY_S = 0.02


class SimulatedProxy:
    """A proxy that has served requests for every deployment."""

    def __init__(self, number: int, deployments: list[str]) -> None:
        self.name = f"proxy-{number}"
        self._deployments = deployments
        self._counters = Counters()
        self.snapshots = Snapshots("proxy", "", [self._samples])

    def serve(self) -> None:
        """Count one request of each route of each deployment, with either outcome."""
        for name in self._deployments:
            for route in range(ROUTES):
                for status in (200, 404):
                    self._counters.add(
                        Record(
                            0.0,
                            LATENCY_S,
                            "http",
                            name,
                            "r",
                            1,
                            "ok",
                            b"GET",
                            status=status,
                            size=100,
                            first_byte_s=LATENCY_S,
                            route=f"/items{route}/{{item_id}}",
                        )
                    )
            self._counters.gaps(name).observe(LATENCY_S)

    def _samples(self) -> Iterator[Sample]:
        yield from self._counters.samples()
        for name in self._deployments:
            for gauge in (REQUESTS_QUEUED, REQUESTS_ONGOING, OPEN_STREAMS, OPEN_WEBSOCKETS):
                yield Sample(gauge, (name,), [1])


class SimulatedReplica:
    """A replica with a method that it calls, a batch function, and metrics of its own code."""

    def __init__(self, deployment: str, number: int) -> None:
        self.name = f"{deployment.replace('/', '.')}-1-{number}"
        self._deployment = deployment
        self._counters, self._batches = Counters(), BatchCounts()
        self._orders = 0
        self.snapshots = Snapshots("replica", deployment, [self._samples], [self._use], self._user)

    def serve(self) -> None:
        """Count one call, one batch, and one observation of user code."""
        self._counters.add(Record(0.0, LATENCY_S, "call", self._deployment, "r", 1, "ok", b"embed", status=200))
        self._batches.add(None, "embed", 4, LATENCY_S, LATENCY_S)
        self._orders += 1

    def _samples(self) -> Iterator[Sample]:
        yield from self._counters.samples()
        yield from self._batches.samples(lambda _: self._deployment)
        for gauge in (REPLICA_ONGOING, REPLICA_STREAMS, REPLICA_WEBSOCKETS, REPLICA_BUFFERED):
            yield Sample(gauge, (self._deployment, self.name), [1])

    def _use(self) -> Iterator[Sample]:
        labels = self._deployment, "replica", self.name
        yield Sample(MEMORY_BYTES, labels, [100e6])
        yield Sample(LOOP_LAG_SECONDS, labels, [0.001])

    def _user(self) -> UserMetrics:
        families = {
            "orders": UserFamily("counter", "Orders."),
            "order_seconds": UserFamily("histogram", "Times.", ("0.1", "1.0", "+Inf")),
            "stock": UserFamily("gauge", "Stock."),
        }
        samples = [
            Sample("orders", ("kind", "book"), [self._orders]),
            Sample("order_seconds", (), [self._orders, 0, 0, self._orders / 20]),
            Sample("stock", (), [7]),
        ]
        return UserMetrics(families, samples)


Process = SimulatedProxy | SimulatedReplica


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of one round. Times are CPU times in seconds."""

    lines: int
    size: int
    """Bytes of the response to a scrape."""
    memory: int
    """Bytes by which the process has grown for the aggregate and its first scrape."""
    changed: float
    """A scrape after every series has changed."""
    unchanged: float
    """A scrape after no counter has changed."""
    make_replica: float
    make_proxy: float
    """To make a push of a replica and of a proxy."""
    take_replica: float
    take_proxy: float
    """To take them in the admin server."""
    controller: float
    """To make a push of the controller."""


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(deployments: int, replicas: int) -> Figures:
    names = [f"app{number // DEPLOYMENTS}/d{number % DEPLOYMENTS}" for number in range(deployments)]
    proxies = [SimulatedProxy(number, names) for number in range(PROXIES)]
    workers = [SimulatedReplica(name, number) for name in names for number in range(replicas)]
    processes: list[Process] = [*proxies, *workers]
    before = psutil.Process().memory_info().rss
    aggregate = MetricsAggregate()
    controller = asyncio.run(push_of_controller(deployments // DEPLOYMENTS, replicas, aggregate))
    now = 0.0

    def push_all() -> tuple[dict[type[Process], float], dict[type[Process], float]]:
        """Count something in every process, and push it. Return the times to make and to take a push of each type."""
        nonlocal now
        now += PUSH_S
        made = {SimulatedProxy: 0.0, SimulatedReplica: 0.0}
        taken = dict(made)
        for process in processes:
            process.serve()
            began = time.process_time()
            pushed = process.snapshots.next(now)
            between = time.process_time()
            assert pushed is not None
            assert aggregate.push(process.name, pushed)
            made[type(process)] += between - began
            taken[type(process)] += time.process_time() - between
            process.snapshots.acknowledge()
        return made, taken

    push_all()
    text, _ = aggregate.exposition()
    memory = psutil.Process().memory_info().rss - before
    made, taken = push_all()
    return Figures(
        lines=text.count(b"\n"),
        size=len(text),
        memory=memory,
        changed=timed(aggregate.exposition),
        unchanged=timed(aggregate.exposition),
        make_replica=made[SimulatedReplica] / len(workers),
        make_proxy=made[SimulatedProxy] / PROXIES,
        take_replica=taken[SimulatedReplica] / len(workers),
        take_proxy=taken[SimulatedProxy] / PROXIES,
        controller=controller,
    )


async def push_of_controller(applications: int, replicas: int, aggregate: MetricsAggregate) -> float:
    """Start a controller with all applications, and return the CPU time of one of its pushes."""
    clock = ManualClock()
    controller = Controller(MemoryStore(), ImmediateLauncher(), clock)
    await controller.start()
    running = asyncio.create_task(controller.run())
    try:
        for number in range(applications):
            await controller.change(Deploy(application(number, replicas)))
        await clock.advance(0.1)
        snapshots = Snapshots("controller", "", [controller.samples], state=controller.metrics_state)
        began = time.process_time()
        pushed = snapshots.next(0.0)
        took = time.process_time() - began
        assert pushed is not None
        aggregate.push("controller", pushed)
        return took
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def middle(rounds: list[Figures]) -> Figures:
    """Return the median of each figure."""
    return Figures(*(median(getattr(each, name) for each in rounds) for name in Figures.__slots__))


def report(found: Figures) -> str:
    def ms(seconds: float) -> str:
        return f"{seconds * 1e3:,.1f}" if seconds > 0.001 else f"{seconds * 1e3:.3f}"

    return table(
        ("", "CPU, ms"),
        [
            ("a scrape, if every series has changed since the one before", ms(found.changed)),
            ("a scrape, if no counter has changed", ms(found.unchanged)),
            ("a replica makes a push", ms(found.make_replica)),
            ("a proxy makes a push", ms(found.make_proxy)),
            ("the controller makes a push", ms(found.controller)),
            ("the admin server takes a push of a replica", ms(found.take_replica)),
            ("the admin server takes a push of a proxy", ms(found.take_proxy)),
        ],
    )


def section(found: Figures, options: argparse.Namespace) -> str:
    run, deployments, replicas = machine(), f"{options.deployments:,}", f"{options.replicas:,}"
    return f"""\
`python -m benchmarks.metrics --write-docs` measures this and writes this section. The figures are CPU times, medians of
{options.rounds} rounds, measured on {datetime.now(UTC):%Y-%m-%d}.

There are {deployments} deployments with {replicas} replicas each, and {PROXIES} proxies. Each deployment has {ROUTES}
routes with two statuses, a method, a batch function, and three metrics of user code. No process is started: one process
makes and takes the pushes of all. Every counter changes between two pushes.

{report(found)}

The response has {found.lines:,} lines and {found.size / 1e6:,.1f} MB. It takes {found.memory / 1e6:,.0f} MB of memory.
A scrape asks no other process. The controller takes part only by its own push, every {PUSH_S:g} s.

The machine has {run["cores"]} cores ({run["cpu"]}, {run["system"]}).
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.metrics", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deployments", type=int, default=500, help="number of deployments (500)")
    parser.add_argument("--replicas", type=int, default=10, help="replicas per deployment (10)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (3)")
    parser.add_argument("--write-docs", action="store_true", help=f"write the section of docs/{DOCS.name}")
    options = parser.parse_args()
    rounds = [measure(options.deployments, options.replicas) for _ in range(options.rounds)]
    found = middle(rounds)
    text = section(found, options)
    print(text)
    if options.write_docs:
        DOCS.write_text(replace_section(DOCS.read_text(), HEADING, text))


if __name__ == "__main__":
    main()
