"""A simulated instance: the real controller on simulated processes, with numbers that look like those of a load."""

import asyncio
import random
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from app_toolkit.clock import SystemClock
from app_toolkit.config.models import (
    AdminOptions,
    ApplicationSpec,
    AutoscalingConfig,
    ClassConfig,
    ClassSpec,
    DeploymentConfig,
    IngressSpec,
    Route,
)
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.control.command import Command
from app_toolkit.control.controller import Controller
from app_toolkit.control.operations import Deploy
from app_toolkit.control.queries import GetApplications, GetStatus
from app_toolkit.control.status import Load
from app_toolkit.observability.log_query import MOST_RECORDS, LoggedRecord, LogPage, LogQuery
from app_toolkit.observability.metrics import LATENCY_S, SIZES
from app_toolkit.observability.slowest import SlowAttempt, SlowRequest, is_selected
from app_toolkit.operate.admin.app import create_app
from app_toolkit.operate.admin.server import AdminServer
from app_toolkit.operate.aggregate import DeploymentNumbers, MetricsAggregate, Numbers, ProcessNumbers
from app_toolkit.operate.client import Client
from tests.memory import MemoryStore
from tests.simulated import SimulatedLauncher, World

R = TypeVar("R")

STOP_S = 90.0
"""Seconds that the server may take to stop."""
DRAWN = 40
"""The number of latencies that are drawn for a deployment and a sample. Each counts for several requests."""


TRACEBACK = """Traceback (most recent call last):
  File "/srv/main.py", line 21, in rank
    vector = self.index[item.name]
KeyError: 'lamp'
"""
UNTRUSTED = "<img src=x onerror=alert(1)> \x1b[31mred"
RECORDS = [
    LoggedRecord(
        f"2026-05-04T09:30:0{number}.123Z", level, "shop", message, "5f1c-2a", (), "", "shop", 1, "web", replica, error
    )
    for number, (level, message, replica, error) in enumerate(
        [
            ("INFO", "12 items in the index", "shop.web-1-1", ""),
            ("INFO", UNTRUSTED, "shop.web-1-2", ""),
            ("WARNING", "the index is 40 s old", "shop.web-1-1", ""),
            ("ERROR", "the item is not in the index", "shop.web-1-2", TRACEBACK),
        ]
    )
]
BEGAN = 1_777_887_000.0
CALL = SlowRequest(
    BEGAN, 0.31, "call", "shop/m0", "shop.m0-1-1", "rank", "", 0, "ok", "5f1c-2a", 0, 0.02, (), 0.28, 0.01
)
SLOW = [
    SlowRequest(
        BEGAN, 0.92, "http", "shop/web", "shop.web-1-1", "GET", "/shop/items", 200, "ok", "5f1c-2a", 0.004, 0.31,
        (SlowAttempt("shop.web-1-2", 0.06, "lost"),), 0.53, 0.016, (CALL,),
    ),
    SlowRequest(
        BEGAN, 0.44, "http", "shop/web", "-", "PUT", "/shop/items/7", 503, "queue_timeout", "5f1c-2b", 0, 0.44, (), 0, 0
    ),
]  # fmt: skip


class SimulatedClient(Client):
    """Commands go to a controller on the event loop of a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="app-toolkit simulated", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._live())

    async def _live(self) -> None:
        clock = SystemClock()
        self.world = World(clock)
        self.world.start_s = 0.2
        self.controller = Controller(MemoryStore(), SimulatedLauncher(self.world), clock)
        await self.controller.start()
        self._ended = asyncio.Event()
        self._run = asyncio.create_task(self.controller.run())
        self._ready.set()
        await self._ended.wait()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # the controller, and commands that wait for a change
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self.world.aclose()

    def execute(self, command: Command[R]) -> R:
        return asyncio.run_coroutine_threadsafe(command.perform(self.controller), self.loop).result()

    def load(self) -> Mapping[str, Load]:
        return {}

    def logs(
        self, query: LogQuery, last: int = MOST_RECORDS, after: Mapping[str, Mapping[str, str]] | None = None
    ) -> LogPage:
        lines = [] if after is not None else [each.line.encode() for each in RECORDS if query.reads(each.replica)]
        records = (LoggedRecord.parse(line) for line in lines if query.matches(line))
        return LogPage(tuple(each for each in records if each is not None), {"node": {"shop.web-1-1": "7"}})

    def slow(self, name: str | None = None, last: int = 20) -> Sequence[SlowRequest]:
        return [each for each in SLOW if is_selected(each, name)]

    def acquire_lease(self) -> None:
        pass

    def leave(self) -> None:
        self.close()

    def shutdown(self) -> None:
        self.close()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self.loop.close()


def application(name: str, *, classes: int = 2, replicas: int = 2, autoscaled: bool = False) -> ApplicationSpec:
    """An application with an ingress `web` that calls `m0`, which calls `m1`, and so on."""
    callees = [f"m{number}" for number in range(classes)]
    scaling = AutoscalingConfig(min_replicas=1, max_replicas=8) if autoscaled else None
    count = {"num_replicas": "auto"} if autoscaled else {"num_replicas": replicas}
    return ApplicationSpec(
        name=name,
        target="main:app",
        app_dir="/srv",
        route_prefix=f"/{name}",
        default="web",
        deployments=(
            IngressSpec(config=DeploymentConfig(name="web", num_replicas=replicas), calls=tuple(callees[:2])),
            *(
                ClassSpec(
                    config=ClassConfig(name=callee, **count, autoscaling_config=scaling),
                    calls=tuple(callees[place + 1 : place + 2]) if place else (),
                )
                for place, callee in enumerate(callees)
            ),
        ),
        routes=(
            Route(kind="http", pattern="^/items$", methods=("GET",), path="/items", owner="web"),
            Route(kind="http", pattern="^/items/[^/]+$", methods=("PUT",), path="/items/{item_id}", owner="web"),
        ),
    )


class Traffic(MetricsAggregate):
    """Metrics of a load with a seed: each call adds what two seconds bring."""

    def __init__(self, client: Client, seed: int = 7) -> None:
        super().__init__()
        self._client = client
        self._random = random.Random(seed)
        self._load: dict[str, DeploymentNumbers] = {}
        self._speed: dict[str, float] = {}

    def latest(self) -> Numbers:
        status = self._client.execute(GetStatus())
        applications, _ = self._client.execute(GetApplications())
        kinds = {
            f"{name}/{each.config.name}": each.kind for name, spec in applications.items() for each in spec.deployments
        }
        found = {}
        processes = {}
        for each in (each for one in status.applications for each in one.deployments):
            numbers = found[each.name] = self._load.get(each.name, DeploymentNumbers())
            speed = self._speed.get(each.name, self._random.lognormvariate(4, 1))
            speed = self._speed[each.name] = max(speed * self._random.lognormvariate(0, 0.06), 0.5)
            requests = int(2 * speed) if each.running else 0
            typical = 0.004 * (1 + len(each.name) % 7)
            counts = [0] * (len(LATENCY_S) + 1)
            for _ in range(min(requests, DRAWN)):
                counts[bisect_left(LATENCY_S, typical * self._random.lognormvariate(0, 0.7))] += max(
                    requests // DRAWN, 1
                )
            errors = int(sum(counts) * 0.2) if "fail" in each.name else int(self._random.random() < 0.1)
            if kinds.get(each.name) == "class":
                numbers.calls += sum(counts)
                numbers.call_errors += errors
                numbers.call_latency = list(map(sum, zip(numbers.call_latency, counts, strict=True)))
                batch = self._random.randint(3, 6)
                numbers.batches[bisect_left(SIZES, batch)] += requests // batch
                numbers.batch_items += batch * (requests // batch)
            else:
                numbers.requests += sum(counts)
                numbers.errors += errors
                if each.name.startswith("flaky"):
                    ended, failed = numbers.routes.get("PUT /items/{item_id}", (0, 0))
                    numbers.routes["PUT /items/{item_id}"] = (ended + requests, failed + requests)
                numbers.latency = list(map(sum, zip(numbers.latency, counts, strict=True)))
                numbers.streams = round(speed / 20) if each.running else 0
            numbers.ongoing = round(requests / 2 * typical * self._random.uniform(0.7, 1.6))
            numbers.queued = max(round(self._random.gauss(-1, 1.5)), 0) if each.running else 0
            numbers.replicas, numbers.desired = dict(each.counts), each.target
            for replica in each.replicas:
                processes[replica.id] = ProcessNumbers(
                    "replica",
                    each.name,
                    150_000_000 + 1_000_000 * (hash(replica.id) % 40),
                    self._random.uniform(0.0005, 0.004),
                    numbers.ongoing // len(each.replicas),
                    numbers.streams // len(each.replicas),
                )
        self._load = found
        return Numbers(0.0, dict(found), processes)


@contextmanager
def simulated(*applications: ApplicationSpec, broken: Mapping[str, str] | None = None) -> Iterator[SimulatedClient]:
    """A simulated instance with these applications. `broken`: the errors with which deployments fail to start."""
    client = SimulatedClient()
    try:
        client.world.broken |= {ReplicaSetKey.parse(name): error for name, error in (broken or {}).items()}
        for spec in applications:
            client.execute(Deploy(spec))
        yield client
    finally:
        client.close()


@contextmanager
def served(client: SimulatedClient, token: str | None = None, port: int = 0) -> Iterator[str]:
    """The admin server of a simulated instance in this process. Yields its URL."""
    options = AdminOptions(admin_port=port)
    app = create_app(client, Traffic(client), options, token)
    server = AdminServer(lambda: app, options, port)
    address = server.start()
    try:
        yield f"http://{address.partition(':')[2]}"
    finally:
        server.stop(STOP_S)
