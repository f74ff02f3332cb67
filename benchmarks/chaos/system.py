"""The running victim: its address, its processes, and the requests in flight."""

import asyncio
import math
import operator
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self
from urllib.parse import urlsplit

import psutil

from app_toolkit.control.command import Command
from app_toolkit.control.queries import GetStatus
from app_toolkit.control.status import InstanceStatus
from app_toolkit.engines.processes.client import ProcessClient
from app_toolkit.engines.processes.engine import ProcessEngine
from app_toolkit.engines.processes.services import SUPERVISOR, Child, ProcessServices
from app_toolkit.engines.processes.wire import call
from app_toolkit.host.orders import GetCallLoads, GetStatistics
from app_toolkit.operate.instance import Instance
from app_toolkit.operate.remote import RemoteClient
from benchmarks.chaos.client import Client
from benchmarks.chaos.ledger import Ledger
from benchmarks.contenders import Contender
from benchmarks.servers import Server, started

ROOT = Path(__file__).parents[2]
VICTIM = Path(__file__).parent / "victim.py"
LEDGER = "VICTIM_LEDGER"
LOOK_S = 0.05
NEWS_S = 0.5
"""How long to wait for a change of an application's status."""
ANSWER_S = 5.0
"""How long a process may take to answer a question about its state."""

EngineName = Literal["ray", "processes"]


@dataclass(frozen=True, slots=True)
class Places:
    """The number of requests and calls in each place."""

    in_proxies: int = 0
    """Requests in the wait queues of proxies."""
    in_handles: int = 0
    """Calls in the wait queues of handles."""
    in_wait_queues: int = 0
    """Callers in the wait queues of replicas."""
    ongoing: int = 0
    """In flight in proxies, in replicas and from handles. A request counts in each of them."""
    buffered: int = 0
    """The ones among them that wait for a batch to close."""

    def __add__(self, other: "Places") -> "Places":
        return Places(*map(operator.add, astuple(self), astuple(other)))

    def __or__(self, other: "Places") -> "Places":
        """Return the larger number for each place."""
        return Places(*map(max, astuple(self), astuple(other)))

    def __str__(self) -> str:
        return (
            f"{self.in_proxies} waiting in proxies, {self.in_handles} in handles, {self.in_wait_queues} at replicas, "
            f"{self.ongoing} in flight, {self.buffered} in open batches"
        )


NOBODY = Places()


@dataclass(frozen=True, slots=True)
class Said:
    """The exit status and the output of a command. Times are `time.monotonic()`."""

    code: int
    output: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot of an application's status."""

    at: float
    status: Mapping[str, Any]

    def replicas(self, phase: str, *, new: bool) -> int:
        """Return the number of replicas in this phase that are of the current revision, or of an older one."""
        return sum(
            replica["phase"] == phase and (replica["template_hash"] == replica_set["template_hash"]) is new
            for replica_set in self.status["deployments"]
            for replica in replica_set["replicas"]
        )


class Processes(Protocol):
    """The processes of an instance, as its engine knows them."""

    address: str
    """What `--address` of a command names."""

    def controller(self) -> int:
        """Return the process ID of the controller."""
        ...

    def process_id(self, name: str) -> int:
        """Return the process ID of a proxy or a replica. Raises an error if it does not run."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether a process of this name exists, whether or not the controller knows it."""
        ...

    def existing(self) -> list[str]:
        """Return the IDs of all proxies and replicas whose processes exist."""
        ...


class Actors:
    """The processes on Ray. Ray reads environment variables when it is imported, so `launched` sets them first."""

    def __init__(self, address: str) -> None:
        self.address = address

    def controller(self) -> int:
        from app_toolkit.host.services import CONTROLLER

        return self.process_id(CONTROLLER)

    def process_id(self, name: str) -> int:
        import ray

        from app_toolkit.engines.ray.actors import NAMESPACE

        actor: Any = ray.get_actor(name, namespace=NAMESPACE)
        return int(ray.get(actor.here.remote(), timeout=ANSWER_S))

    def exists(self, name: str) -> bool:
        import ray

        from app_toolkit.engines.ray.actors import NAMESPACE

        with suppress(ValueError):  # no actor has this name
            ray.get_actor(name, namespace=NAMESPACE)
            return True
        return False

    def existing(self) -> list[str]:
        import ray

        from app_toolkit.engines.ray.actors import NAMESPACE
        from app_toolkit.host.services import CONTROLLER

        actors = ray.util.list_named_actors(all_namespaces=True)
        return [
            str(actor["name"]) for actor in actors if actor["namespace"] == NAMESPACE and actor["name"] != CONTROLLER
        ]


class Children:
    """The processes of the engine on processes of one machine: children of the supervisor."""

    def __init__(self, services: ProcessServices, supervisor: int) -> None:
        self.address = services.session
        self._services = services
        self._supervisor = psutil.Process(supervisor)

    def controller(self) -> int:
        began = time.monotonic()
        while time.monotonic() - began < ANSWER_S:  # the next one starts within a second
            for process in self._supervisor.children():
                with suppress(psutil.NoSuchProcess):
                    if process.name() == "at-controller" and process.status() != psutil.STATUS_ZOMBIE:
                        return process.pid
            time.sleep(LOOK_S)
        raise AssertionError("the instance has no controller")

    def process_id(self, name: str) -> int:
        return self._running()[name].pid

    def exists(self, name: str) -> bool:
        return name in self._running()

    def existing(self) -> list[str]:
        return [name for name, child in self._running().items() if child.role != "template"]

    def _running(self) -> Mapping[str, Child]:
        running: Mapping[str, Child] = call(self._services.path_of(SUPERVISOR), "running", timeout_s=ANSWER_S)
        return running


class System:
    """A deployed application of the victim. The methods that are not coroutines block: call them in a thread."""

    def __init__(self, client: RemoteClient, processes: Processes, application: str, ledger: Path) -> None:
        self._client = client
        self._processes = processes
        self._application = application
        self.ledger = Ledger(ledger)
        place = urlsplit(client.execute(GetStatus()).url or "")
        assert place.hostname is not None
        assert place.port is not None
        #: The address of the proxies. It stays the same while no proxy runs.
        self.address = (place.hostname, place.port)
        self.prefix = str(self.status()["route_prefix"]).rstrip("/")

    def beside(self, application: str) -> "System":
        """Return another application of the same instance."""
        return System(self._client, self._processes, application, self.ledger.path)

    def client(self, patience_s: float = 10.0) -> Client:
        return Client(self.address, self.prefix, patience_s)

    def replicas(self, ingress: str, revision: int | None = None) -> dict[str, int]:
        """Return the process IDs of this ingress's running replicas, by replica ID.

        `revision`: of this live revision; None: of the main one.
        """
        live = self.status()
        if revision not in (None, live["revision"]):
            live = next(each for each in live["traffic"] if each["revision"] == revision)
        replica_sets = {str(replica_set["name"]).rpartition("/")[2]: replica_set for replica_set in live["deployments"]}
        return self._running(replica_sets[ingress])

    def proxies(self) -> dict[str, int]:
        return {id: pid for replica_set in self._whole()["proxies"] for id, pid in self._running(replica_set).items()}

    def processes(self) -> dict[str, int]:
        """Return the process IDs of the proxies and of this application's replicas."""
        found = self.proxies()
        for replica_set in self.status()["deployments"]:
            found |= self._running(replica_set)
        return found

    def controller(self) -> int:
        """Return the process ID of the controller."""
        return self._processes.controller()

    def existing(self) -> list[str]:
        """Return the IDs of all proxies and replicas whose processes exist, also of those that the controller lost."""
        return self._processes.existing()

    def living(self, ids: Collection[str]) -> list[str]:
        """Return the IDs for which a process exists, whether or not the controller knows it."""
        return [id for id in ids if self._processes.exists(id)]

    async def deploy(self, application: str, version: str, *options: str, file: Path = VICTIM) -> Said:
        """Run `app-toolkit deploy` for an app of a victim's file. The application's name is also its route prefix."""
        target = (f"{file}:{version}", "--app-dir", str(file.parent))
        named = ("--name", application, "--route-prefix", f"/{application}")
        return await self.command("deploy", *target, *named, *options)

    @asynccontextmanager
    async def deployed(
        self, application: str, version: str, *options: str, file: Path = VICTIM
    ) -> AsyncIterator["System"]:
        """Deploy an app of a victim's file, and delete it at the end of the block."""
        said = await self.deploy(application, version, "--wait", *options, file=file)
        assert said.code == 0, said.output
        try:
            yield self.beside(application)
        finally:
            await self.delete(application)

    async def delete(self, application: str) -> None:
        said = await self.command("delete", application)
        assert said.code == 0, said.output

    async def command(self, *words: str) -> Said:
        """Run an `app-toolkit` command in a subprocess."""
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app_toolkit.cli", *words, "--address", self._processes.address),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Said(process.returncode, output.decode(), began, time.monotonic())

    def look(self) -> Look:
        return Look(time.monotonic(), self.status())

    def news(self, after: int) -> tuple[int, Look]:
        """Wait until the status changes after this change number, at most `NEWS_S`. Return both."""
        status = asdict(self._client.execute(GetStatus(after, NEWS_S)))
        return status["change"], Look(time.monotonic(), self._application_of(status))

    def going_on(self) -> Places:
        """Count the requests and calls in each place."""
        status = self._whole()
        proxies, replicas = _ids(status["proxies"]), _ids(self._application_of(status)["deployments"])
        # A process that does not serve yet has no answer.
        statistics: Mapping[str, Any] = self._client.control.ask(dict.fromkeys([*proxies, *replicas], GetStatistics()))
        loads: Mapping[str, Any] = self._client.control.ask(dict.fromkeys(replicas, GetCallLoads()))
        found = NOBODY
        for id, each in statistics.items():
            if id in proxies:
                found += Places(in_proxies=each.waiting, ongoing=each.ongoing)
            else:
                ongoing = max(each.ongoing, each.running) + each.websockets
                found += Places(in_wait_queues=each.waiting_callers, ongoing=ongoing, buffered=each.buffered)
        for calling in loads.values():
            for called in calling.values():
                found += Places(in_handles=called.waiting, ongoing=called.ongoing)
        return found

    def is_quiet(self) -> bool:
        return self.going_on() == NOBODY

    def is_whole(self) -> bool:
        """Whether the application and all proxies are healthy."""
        status = self._whole()
        return all(each["status"] == "healthy" for each in (self.status(), *status["proxies"]))

    def perform(self, operation: Command[Any], timeout_s: float) -> None:
        """Perform an operation, and wait for its effect. Raises as the methods of `Instance` do."""
        Instance(self._client, timeout_s).perform(operation)

    def instance(self) -> InstanceStatus:
        """Return the status of the instance."""
        return self._client.execute(GetStatus())

    def status(self) -> Mapping[str, Any]:
        """Return the status of the application."""
        return self._application_of(self._whole())

    def _whole(self) -> dict[str, Any]:
        """Return the status of the instance."""
        return asdict(self.instance())

    def _application_of(self, status: Mapping[str, Any]) -> Mapping[str, Any]:
        applications = status["applications"]
        found: Mapping[str, Any] = next(each for each in applications if each["name"] == self._application)
        return found

    def _running(self, replica_set: Mapping[str, Any]) -> dict[str, int]:
        found = {}
        for replica in replica_set["replicas"]:
            if replica["phase"] == "running":
                with suppress(Exception):  # it may have just died; the status shows that shortly after
                    found[str(replica["id"])] = self._processes.process_id(replica["id"])
        return found


class Watch:
    """Records each change of an application's status during a `with` block."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._news = asyncio.Condition()
        self.looks: list[Look] = []

    async def __aenter__(self) -> Self:
        number, look = await asyncio.to_thread(self._system.news, -1)
        self.looks.append(look)
        self._watching = asyncio.create_task(self._watch(number))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._watching.cancel()
        with suppress(asyncio.CancelledError):
            await self._watching

    async def until(self, condition: Callable[[Look], bool], at_most: float) -> float:
        """Wait until a new snapshot meets the condition. Return its time, or infinity after `at_most` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most), self._news:
                await self._news.wait()
                await self._news.wait_for(lambda: condition(self.looks[-1]))
                return self.looks[-1].at
        return math.inf

    async def _watch(self, number: int) -> None:
        while True:
            number, look = await asyncio.to_thread(self._system.news, number)
            async with self._news:
                self.looks.append(look)
                self._news.notify_all()


def _ids(replica_sets: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the IDs of the running replicas."""
    return [
        str(each["id"])
        for replica_set in replica_sets
        for each in replica_set["replicas"]
        if each["phase"] == "running"
    ]


async def seconds_until(condition: Callable[[], bool], at_most: float) -> float:
    """Return the seconds until the condition was met; infinity if it was not met within `at_most` seconds."""
    began = time.monotonic()
    while time.monotonic() - began < at_most:
        if await asyncio.to_thread(condition):
            return time.monotonic() - began
        await asyncio.sleep(LOOK_S)
    return math.inf


@contextmanager
def launched(engine: EngineName, *options: str) -> Iterator[System]:
    """Start `app-toolkit run` for the victim with an instance of its own, and stop it at the end of the block.

    Raises `CannotStart` with the output of the command.
    """
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger"
        contender = Contender(
            name="victim",
            title="the victim",
            command=" ".join(
                (
                    f"{{python}} -m app_toolkit.cli run {VICTIM} --engine {engine}",
                    "--host 127.0.0.1 --port {port}",
                    *options,
                )
            ),
            roles={"raylet": "/raylet/raylet "},
            says="Serving ",
            environ={LEDGER: str(ledger), "PYTHONPATH": str(ROOT)},
        )
        # Do not print the victim's logs to this terminal. Ray reads the variable when it is imported.
        os.environ["RAY_LOG_TO_DRIVER"] = "0"
        with started(contender) as server:
            if engine == "ray":
                from app_toolkit.engines.ray.client import RayClient

                address = _cluster_of(server)
                with RayClient.connect(address) as ray_client:
                    yield System(ray_client, Actors(address), "default", ledger)
            else:
                supervisor = server.family()[0].pid
                with ProcessEngine().connect(f"processes-{supervisor}") as client:
                    assert isinstance(client, ProcessClient)
                    yield System(client, Children(client.services, supervisor), "default", ledger)


def _cluster_of(server: Server) -> str:
    """Return HOST:PORT of the Ray instance that the server started; others may run on this machine."""
    for process in server.of_role("raylet"):
        with suppress(psutil.NoSuchProcess):
            for word in process.cmdline():
                name, _, value = word.partition("=")
                if name == "--gcs-address":
                    return value
    raise AssertionError("the server has no raylet process")
