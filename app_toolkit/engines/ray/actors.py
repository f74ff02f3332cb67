"""The actors that hold a data plane: shells, a line or two per method, around components that know no Ray.

They are threaded actors. The constructor runs on the main thread of the process, which Ray's own loop keeps from then
on; control calls run on threads of their own, and the data plane has one more. So a handler that blocks never blocks
control, and the signal handlers of user code can be installed where the interpreter wants them.
"""

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayError

from app_toolkit.config import settings
from app_toolkit.config.models import HTTPOptions
from app_toolkit.controller.checkpoint import decode_checkpoint
from app_toolkit.controller.state_store import EPOCH
from app_toolkit.core.reports import Loads
from app_toolkit.engines.ray.payloads import Lent, RayPayloads
from app_toolkit.engines.ray.runtime import LOGS, RuntimeFolder
from app_toolkit.engines.ray.store import RayStore
from app_toolkit.errors import ControlError, CorruptValue, NotWell, ReplicaGone, StaleEpoch, TargetError, Unresponsive
from app_toolkit.interfaces import Location, ProxySpec, ReloadableOptions, ReplicaSpec, Snapshot, Version, code_key
from app_toolkit.observability.access import AccessLog, LogFile
from app_toolkit.observability.logs import show_logs
from app_toolkit.proxy.edge import Edge
from app_toolkit.proxy.proxy import Proxy
from app_toolkit.replica import sources
from app_toolkit.replica.artifact import Unpacked
from app_toolkit.replica.breakpoints import Breakpoints
from app_toolkit.replica.host import users_traceback
from app_toolkit.replica.server import ReplicaServer
from app_toolkit.replica.signals import Signals
from app_toolkit.router import handle
from app_toolkit.router.remote import Called, Callers
from app_toolkit.router.router import Router
from app_toolkit.types import Address, NodeId, ReplicaId

log = logging.getLogger("app_toolkit.ray")

NAMESPACE = "app_toolkit"
CONTROLLER = "controller"

GROUPS = {"control": 8, "life": 1}
"""Threads: a start, a reconfiguration, a drain and a stop may wait at the same time, with probes beside them."""

COURIERS = 2
"""Threads of a replica that take and give payloads; one that writes a result into the store is busy for as long as
that takes, and no control call is to wait behind it."""

F = TypeVar("F", bound=Callable[..., Any])
remote: Any = ray.remote  # whose own types know no concurrency groups


def on(group: str) -> Callable[[F], F]:
    """Run a method on the threads of a group."""
    return cast("Callable[[F], F]", ray.method(concurrency_group=group))


control = on("control")
life = on("life")
payload = on("payload")

WATCH_AGAIN_S = 0.5
"""How long a proxy lets a controller that is gone come back before it asks again."""

SILENT_S = 60.0
"""After so long without an answer a controller is asked whether it is there. A watch is answered within 20 s."""

ANSWER_S = 30.0
"""How long its answer to that may take."""


class Controlled:
    """What the controller says to a replica or a proxy. Whoever obeyed an epoch refuses orders of an earlier one."""

    server: ReplicaServer | Edge

    def __init__(self, name: ReplicaId) -> None:
        self.name = name
        self.epoch = 0
        self.phase = "starting"
        #: Known once it was told what to be.
        self.replica_set: str | None = None
        self.template_hash: str | None = None
        self.location: Future[Location] = Future()

    def __repr__(self) -> str:
        """What Ray puts before each line that the process logs."""
        return self.name

    @property
    def live(self) -> ReloadableOptions | None:
        """The options that a replica has taken up."""
        return None

    def obey(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise StaleEpoch(f"an order of epoch {epoch} came after one of epoch {self.epoch}")
        self.epoch = epoch

    @control
    def here(self) -> int:
        """Answers once the process is placed and up, whatever else it is doing."""
        return os.getpid()

    @control
    def heed(self, epoch: int) -> None:
        """Raises `StaleEpoch` for who is not to be obeyed any more."""
        self.obey(epoch)

    @life
    def until_gone(self) -> None:
        """Never returns: it fails for whoever waits, at the moment the process ends."""
        threading.Event().wait()

    @control
    def describe(self, epoch: int) -> dict[str, Any]:
        """Who this is, for a controller that was not there when it started."""
        self.obey(epoch)
        location = self.location.result() if self.phase != "starting" else None
        return {
            "group": self.replica_set,
            "revision": self.template_hash,
            "phase_name": self.phase,
            "location": location,
            "live": self.live,
        }

    @control
    def started(self) -> Location:
        """Where it serves, once it does; raises what its start raised."""
        return self.location.result()

    def run_as(self, replica_set: str, template_hash: str, epoch: int, start: Callable[[], Location]) -> Location:
        """Come up, once: whoever asks a second time is told how the first went."""
        self.obey(epoch)
        if self.replica_set is None:
            self.replica_set, self.template_hash = replica_set, template_hash
            try:
                if last_epoch() > epoch:
                    # Whoever ordered it was stopped meanwhile: nobody else knows that this process is there.
                    os._exit(0)
                location = start()
            except BaseException as error:
                self.location.set_exception(error)
            else:
                # What is there now stays. Looked through in every full collection, it stops all requests for 0.1 s.
                gc.collect()
                gc.freeze()
                self.phase = "running"
                self.location.set_result(location)
        return self.location.result()

    @control
    def probe(self, timeout_s: float, epoch: int) -> None:
        self.obey(epoch)
        try:
            self.server.probe(timeout_s)
        except (Unresponsive, ReplicaGone, NotWell):
            raise
        except Exception as error:
            raise NotWell(users_traceback(error)) from error

    @control
    def drain(self, timeout_s: float, epoch: int) -> None:
        self.obey(epoch)
        self.phase = "draining"
        self.server.drain(timeout_s)

    @control
    def stop(self, timeout_s: float, epoch: int) -> None:
        self.obey(epoch)
        self.phase = "stopping"
        self.server.stop(timeout_s)

    @control
    def statistics(self) -> Any:
        return self.server.statistics()


class _Replica(Controlled):
    def __init__(self, name: ReplicaId) -> None:
        super().__init__(name)
        self.server: ReplicaServer = ReplicaServer(Signals())

    @property
    def live(self) -> ReloadableOptions | None:
        return self.server.live

    @control
    def reconfigure(self, live: ReloadableOptions, timeout_s: float, epoch: int) -> None:
        self.obey(epoch)
        self.server.reconfigure(live, timeout_s)

    @control
    def calling(self) -> Mapping[str, Called]:
        """What its handles have under way, by deployment."""
        plane = handle.plane()
        return plane.called() if isinstance(plane, Callers) else {}

    @payload
    def deposit(self, key: str, pieces: Sequence[memoryview]) -> None:
        self.server.deposits.put(key, pieces)

    @payload
    def collect(self, key: str) -> list[Lent] | None:
        pieces = self.server.deposits.take(key)
        return None if pieces is None else [Lent(piece) for piece in pieces]

    @control
    def start(self, spec: ReplicaSpec, replica_set: str, template_hash: str, secret: bytes, epoch: int) -> Location:
        if not ray.get_runtime_context().get_accelerator_ids()["GPU"]:
            settings.hide_devices()

        def start() -> Location:
            show_logs(settings.log_level())
            # Hashed: a path to a socket has room for 107 bytes, and an id may be longer.
            address = Address(f"unix:{_runtime().path / sha256(spec.id.encode()).hexdigest()[:16]}.sock")
            debugger = _runtime().path / f"{sha256(spec.id.encode()).hexdigest()[:16]}.pdb"
            Breakpoints(debugger if settings.wants_debugger() else None).install()
            here = _with_files(spec)
            if here.sources:
                sources.use(here.app_dir, sources.read(here.sources, _packed(here.sources)))
            with contextlib.suppress(FileNotFoundError):  # a folder that only the deploying node has
                os.chdir(here.working_dir or os.curdir)
            # Where there is one node only, no port is opened.
            remote_host = own_host() if len(living_nodes()) > 1 else None
            around = partial(_calling, here, secret)
            local = self.server.start(here, secret, address, remote_host, around, packed_code(here.code))
            return Location(local, node(), self.server.remote_address)

        return self.run_as(replica_set, template_hash, epoch, start)


class _Proxy(Controlled):
    def __repr__(self) -> str:
        """Its name has the whole id of its node in it."""
        return "proxy"

    @control
    def start(self, spec: ProxySpec, replica_set: str, template_hash: str, secret: bytes, epoch: int) -> Location:
        options = HTTPOptions(**spec.options)

        def start() -> Location:
            here = node()
            shared = options.proxies_per_node > 1 or living_nodes().count(own_host()) > 1
            self.server: Edge = Edge(
                lambda: Proxy(secret, Router, here, self._access(options)),
                options,
                partial(watch, self.name),
                _runtime().path if shared else None,
                Reporting(self.name),
            )
            return Location(self.server.start(), here)

        return self.run_as(replica_set, template_hash, epoch, start)

    def _access(self, options: HTTPOptions) -> AccessLog | None:
        if not options.access_log:
            return None
        if options.access_log == "-":
            return AccessLog(_write_out)
        if isinstance(options.access_log, str):
            return AccessLog(LogFile(Path(options.access_log), most=sys.maxsize).write)
        return AccessLog(LogFile(_runtime().folder(LOGS) / f"access-{self.name}.log").write)


def _write_out(lines: str) -> None:
    sys.stdout.write(lines)
    sys.stdout.flush()


# Functions, not methods: with a coroutine among its methods Ray would take the whole actor for an asynchronous one.


async def watch(name: str, seen: Mapping[str, Version], prefix: str | tuple[str, ...] = "") -> Mapping[str, Snapshot]:
    """What is new on the board for a caller, from whichever controller there is; nothing, after a while, from none."""
    try:
        controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
    except (RayError, ValueError):  # there is none just now, or nobody who would know
        await asyncio.sleep(WATCH_AGAIN_S)
        return {}
    asked: Awaitable[Mapping[str, Snapshot]] = controller.watch.remote(name, dict(seen), prefix)
    try:
        return await asyncio.wait_for(asked, SILENT_S)
    except TimeoutError:
        await asyncio.to_thread(revive, controller)
    except (RayActorError, ControlError):  # it ends
        await asyncio.sleep(WATCH_AGAIN_S)
    return {}


def revive(controller: Any) -> None:
    """Where its process is stopped, or stuck, have Ray end it and bring the controller back: it would not by itself."""
    if not ray.wait([controller.here.remote()], timeout=ANSWER_S)[0]:
        log.warning("the controller does not answer any more: its process is ended, and another one goes on")
        ray.kill(controller, no_restart=False)


class Reporting:
    """How one caller tells the controller of its loads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._controller: Any = None
        """Looked up once, for everything here stands still meanwhile; it stays the same where Ray brings it back."""

    async def __call__(self, loads: Loads) -> bool:
        try:
            if self._controller is None:
                self._controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
            heard: bool = await self._controller.report.remote(self._name, dict(loads))
        except ActorDiedError:  # for good
            self._controller = None
            return False
        except (RayError, ControlError, ValueError):  # there is none just now, or it ends
            return False
        return heard


@contextlib.asynccontextmanager
async def _calling(spec: ReplicaSpec, secret: bytes) -> AsyncIterator[None]:
    """What handles need, on the loop that serves: who may be called, and where."""
    payloads = RayPayloads(NAMESPACE)
    callers = Callers(secret, spec.application, spec.callees, node(), payloads)
    handle.use(callers)  # to the end of the process: a handle never falls back on objects of this process's own
    life = callers.run(partial(watch, spec.id), Reporting(spec.id))
    following = asyncio.get_running_loop().create_task(life)
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await callers.aclose()
        payloads.close()


ReplicaActor: Any = remote(max_restarts=0, concurrency_groups={**GROUPS, "payload": COURIERS})(_Replica)
ProxyActor: Any = remote(max_restarts=0, num_cpus=0, concurrency_groups=GROUPS)(_Proxy)


def _packed(hash: str) -> bytes | None:
    """What a replica unpacks, from the store, which has it as long as the application is there; None: nothing."""
    return asyncio.run(RayStore().get(code_key(hash))) if hash else None


def packed_code(hash: str) -> bytes | None:
    """The same of code, which is named by the hash of its bytes. Raises `TargetError` where these are others."""
    code = _packed(hash)
    if code is not None and sha256(code).hexdigest() != hash:
        raise TargetError(f"what the store has as {code_key(hash)!r} is not what was packed: deploy it again")
    return code


def last_epoch() -> int:
    """Of all controllers; 0: nobody can know."""
    value = asyncio.run(RayStore().get(EPOCH))
    try:
        return 0 if value is None else decode_checkpoint(EPOCH, value).epoch
    except CorruptValue:
        return 0


def _with_files(spec: ReplicaSpec) -> ReplicaSpec:
    """The same with its folders on this node, where the application's files are to the end of this process."""
    if not spec.artifact:
        return spec
    folder = Unpacked(spec.artifact, partial(_packed, spec.artifact), _runtime().path / "artifacts").folder
    return replace(spec, app_dir=str(folder / spec.app_dir), working_dir=str(folder / spec.working_dir))


def node() -> NodeId:
    """The one that this process runs on."""
    return NodeId(ray.get_runtime_context().get_node_id())


def own_host() -> str:
    """The address of this node, as Ray knows it."""
    state: Any = ray.util  # which has no types
    return str(state.get_node_ip_address())


def living_nodes() -> list[str]:
    """Their addresses; one host may be several nodes."""
    state: Any = ray
    return [node["NodeManagerAddress"] for node in state.nodes() if node["Alive"]]


@cache
def _runtime() -> RuntimeFolder:
    """The private folder of this session on this host, held until this process ends. Raises `InsecurePath`."""
    return RuntimeFolder(ray.get_runtime_context().get_session_name())
