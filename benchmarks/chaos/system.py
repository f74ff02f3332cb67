"""The victim while it is served: where it is, which processes it has, and how much is going on in them."""

import asyncio
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil

from app_toolkit.config.settings import show_ray_token
from benchmarks.chaos.client import Client
from benchmarks.chaos.ledger import Ledger
from benchmarks.contenders import Contender
from benchmarks.servers import Server, started

if TYPE_CHECKING:
    from app_toolkit.engines.ray.instance import Instance

ROOT = Path(__file__).parents[2]
VICTIM = Path(__file__).parent / "victim.py"
LEDGER = "VICTIM_LEDGER"
LOOK_S = 0.05
ANSWER_S = 5.0
"""How long a process may take to say how it is."""


class System:
    """An application that serves the victim. Its methods block: they are called on threads beside the event loop."""

    def __init__(self, instance: "Instance", application: str, ledger: Path) -> None:
        self._instance = instance
        self._application = application
        self.ledger = Ledger(ledger)
        place = urlsplit(instance.url())
        assert place.hostname is not None
        assert place.port is not None
        #: Where the proxies listen; also while none does.
        self.address = (place.hostname, place.port)
        self.prefix = str(self._status()["route_prefix"]).rstrip("/")

    def client(self, patience_s: float = 10.0) -> Client:
        return Client(self.address, self.prefix, patience_s)

    def replicas(self, ingress: str) -> dict[str, int]:
        """The running ones: pid by id."""
        groups = {str(group["name"]).rpartition("/")[2]: group for group in self._status()["deployments"]}
        return self._running(groups[ingress])

    def proxies(self) -> dict[str, int]:
        return {id: pid for group in self._instance.status()["proxies"] for id, pid in self._running(group).items()}

    def processes(self) -> dict[str, int]:
        """Proxies and replicas."""
        return {**self.proxies(), **self.replicas("app"), **self.replicas("other")}

    def going_on(self) -> tuple[int, int]:
        """How many requests wait at proxies, and how many are ongoing there or run in replicas."""
        waiting = ongoing = 0
        for id in self.proxies():
            statistics = self._ask(id, "statistics")
            waiting, ongoing = waiting + statistics.waiting, ongoing + statistics.ongoing
        for id in (*self.replicas("app"), *self.replicas("other")):
            statistics = self._ask(id, "statistics")
            ongoing += max(statistics.ongoing, statistics.running) + statistics.websockets
        return waiting, ongoing

    def is_quiet(self) -> bool:
        return self.going_on() == (0, 0)

    def is_whole(self) -> bool:
        """Whether everything that is wanted runs."""
        status = self._instance.status()
        return all(each["status"] == "healthy" for each in (self._status(), *status["proxies"]))

    def _status(self) -> Mapping[str, Any]:
        applications = self._instance.status()["applications"]
        found: Mapping[str, Any] = next(each for each in applications if each["name"] == self._application)
        return found

    def _running(self, group: Mapping[str, Any]) -> dict[str, int]:
        found = {}
        for replica in group["replicas"]:
            if replica["phase"] == "running":
                with suppress(Exception):  # it has just died; the status will say so in a moment
                    found[str(replica["id"])] = int(self._ask(replica["id"], "here"))
        return found

    def _ask(self, actor: str, question: str) -> Any:
        # Imported here: what Ray is told by the environment is told by then.
        import ray

        from app_toolkit.engines.ray.actors import NAMESPACE

        return ray.get(getattr(ray.get_actor(actor, namespace=NAMESPACE), question).remote(), timeout=ANSWER_S)


async def seconds_until(condition: Callable[[], bool], at_most: float) -> float:
    """How long it took to come about; infinite where it did not in time."""
    began = time.monotonic()
    while time.monotonic() - began < at_most:
        if await asyncio.to_thread(condition):
            return time.monotonic() - began
        await asyncio.sleep(LOOK_S)
    return math.inf


@contextmanager
def launched(*options: str) -> Iterator[System]:
    """The victim as `app-toolkit run` serves it, on a Ray of its own, until the end of the block.

    Raises `CannotStart`, with what the command printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger"
        contender = Contender(
            name="victim",
            title="the victim",
            command=" ".join(
                (
                    f"{{python}} -m app_toolkit.cli run {VICTIM}",
                    "--host 127.0.0.1 --port {port}",
                    *options,
                )
            ),
            roles={"raylet": "/raylet/raylet "},
            says="Serving ",
            environ={LEDGER: str(ledger), "PYTHONPATH": str(ROOT)},
        )
        # Ray reads both when it is imported. What the victim logs is not for this terminal.
        os.environ["RAY_LOG_TO_DRIVER"] = "0"
        with started(contender) as server:
            show_ray_token()
            from app_toolkit.engines.ray.instance import Instance

            with Instance.connect(_cluster_of(server)) as instance:
                yield System(instance, "default", ledger)


def _cluster_of(server: Server) -> str:
    """HOST:PORT of the Ray that it started; others may run on this machine."""
    for process in server.of_role("raylet"):
        with suppress(psutil.NoSuchProcess):
            for word in process.cmdline():
                name, _, value = word.partition("=")
                if name == "--gcs-address":
                    return value
    raise AssertionError("the victim serves, and has no raylet")
