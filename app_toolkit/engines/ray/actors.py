"""The actors of replicas and proxies: thin wrappers around components that do not use Ray.

They are threaded actors. Ray runs the constructor on the main thread of the process, and its own loop runs there from
then on. Control calls run on threads of their own, and requests are served on another thread. A handler that blocks
therefore does not block control calls, and the signal handlers of user code can be installed on the main thread, as
Python requires.
"""

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
import time
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
from app_toolkit.observability.tracebacks import shorten_paths
from app_toolkit.proxy.state import ProxyState
from app_toolkit.proxy.thread import ProxyThread
from app_toolkit.replica import breakpoints
from app_toolkit.replica.server import ReplicaServer
from app_toolkit.replica.signals import Signals
from app_toolkit.router import handle
from app_toolkit.router.remote import CallLoad, RemoteDataPlane
from app_toolkit.router.router import Router
from app_toolkit.types import Address, NodeId, ReplicaId
from app_toolkit.userapp import sources
from app_toolkit.userapp.artifact import Unpacked
from app_toolkit.userapp.loading import users_traceback

log = logging.getLogger("app_toolkit.ray")

NAMESPACE = "app_toolkit"
CONTROLLER = "controller"

GROUPS = {"control": 8, "life": 1}
"""Threads per concurrency group. A start, a reconfiguration, a drain and a stop may block at the same time, while
probes continue."""

COURIERS = 2
"""Threads of a replica that receive and return payloads. They are separate from the control threads, because a thread
that writes a result into the object store is blocked meanwhile."""

F = TypeVar("F", bound=Callable[..., Any])
remote: Any = ray.remote  # untyped, because Ray's own type has no concurrency groups


def on(group: str) -> Callable[[F], F]:
    """Return a decorator that runs a method on the threads of a group."""
    return cast("Callable[[F], F]", ray.method(concurrency_group=group))


control = on("control")
life = on("life")
payload = on("payload")

WATCH_AGAIN_S = 0.5
"""Seconds before a caller watches again if no controller runs."""

SILENT_S = 60.0
"""Seconds without an answer after which a caller checks whether the controller is alive. A watch ends within 20 s."""

ANSWER_S = 30.0
"""Seconds that the controller has to answer this check."""


class Controlled:
    """The methods by which the controller controls a replica or a proxy.

    A call with an earlier epoch than that of a previous call raises `StaleEpoch`.
    """

    server: ReplicaServer | ProxyThread

    def __init__(self, name: ReplicaId) -> None:
        self.name = name
        self.epoch = 0
        self.phase = "starting"
        #: When the process began to serve, on its monotonic clock; None: it has not.
        self.running_since: float | None = None
        #: None until `run_as` is called.
        self.replica_set: str | None = None
        self.template_hash: str | None = None
        self.location: Future[Location] = Future()

    def __repr__(self) -> str:
        """Return the name that Ray puts before each line of output of this process."""
        return self.name

    @property
    def live(self) -> ReloadableOptions | None:
        """The reloadable options that a replica uses now; None: it is a proxy, or the options are not known."""
        return None

    def obey(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise StaleEpoch(f"an order of epoch {epoch} came after one of epoch {self.epoch}")
        self.epoch = epoch

    @control
    def here(self) -> int:
        """Return the process ID. Answers as soon as the process runs, whatever else it does."""
        return os.getpid()

    @control
    def heed(self, epoch: int) -> None:
        """Raise `StaleEpoch` if the epoch is an earlier one."""
        self.obey(epoch)

    @life
    def until_gone(self) -> None:
        """Block for ever. The call fails for its caller when the process ends."""
        threading.Event().wait()

    @control
    def describe(self, epoch: int) -> dict[str, Any]:
        """Return the state of this process, for a controller that did not start it."""
        self.obey(epoch)
        location = self.location.result() if self.phase != "starting" else None
        return {
            "replica_set": self.replica_set,
            "template_hash": self.template_hash,
            "phase_name": self.phase,
            "location": location,
            "live": self.live,
            "running_s": 0.0 if self.running_since is None else time.monotonic() - self.running_since,
        }

    @control
    def started(self) -> Location:
        """Wait until the process serves, and return its location. Raises the error of a failed start."""
        return self.location.result()

    def run_as(self, replica_set: str, template_hash: str, epoch: int, start: Callable[[], Location]) -> Location:
        """Start serving. A second call only returns the result of the first one."""
        self.obey(epoch)
        if self.replica_set is None:
            self.replica_set, self.template_hash = replica_set, template_hash
            try:
                if last_epoch() > epoch:
                    # The controller that ordered the start was replaced meanwhile. The later one does not know this
                    # process.
                    os._exit(0)
                location = start()
            except BaseException as error:
                self.location.set_exception(error)
            else:
                # The objects that exist now live as long as the process. Without a freeze every full garbage
                # collection traverses them, which stops all requests for 0.1 s.
                gc.collect()
                gc.freeze()
                self.phase = "running"
                self.running_since = time.monotonic()
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
        """Return the current statistics, or None if this process does not serve yet or any more.

        An error would be written to the terminal of a client that does not wait for it any more: Ray does so.
        """
        if self.phase == "starting":
            return None
        try:
            return self.server.statistics()
        except ReplicaGone:
            return None


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
    def calling(self) -> Mapping[str, CallLoad]:
        """Return the calls of the handles of this replica that wait or are ongoing, by deployment."""
        data_plane = handle.data_plane()
        return data_plane.call_loads() if isinstance(data_plane, RemoteDataPlane) else {}

    @payload
    def put_payload(self, key: str, pieces: Sequence[memoryview]) -> None:
        self.server.payloads.put(key, pieces)

    @payload
    def get_payload(self, key: str) -> list[Lent] | None:
        pieces = self.server.payloads.take(key)
        return None if pieces is None else [Lent(piece) for piece in pieces]

    @control
    def start(self, spec: ReplicaSpec, replica_set: str, template_hash: str, secret: bytes, epoch: int) -> Location:
        if not ray.get_runtime_context().get_accelerator_ids()["GPU"]:
            settings.hide_devices()

        def start() -> Location:
            show_logs(settings.log_level())
            # The path of a socket has at most 107 bytes, and an ID may be longer, so its hash is the file name.
            address = Address(f"unix:{_runtime().path / sha256(spec.id.encode()).hexdigest()[:16]}.sock")
            breakpoints.install()
            here = _with_files(spec)
            if here.sources:
                sources.use(here.app_dir, sources.read(here.sources, _packed(here.sources)))
            with contextlib.suppress(FileNotFoundError):  # a folder that only the deploying node has
                os.chdir(here.working_dir or os.curdir)
            # On a cluster with one node, no port is opened.
            remote_host = own_host() if len(alive_nodes()) > 1 else None
            around = partial(_calling, here, secret)
            local = self.server.start(here, secret, address, remote_host, around, packed_code(here.code))
            return Location(local, node(), self.server.remote_address)

        return self.run_as(replica_set, template_hash, epoch, start)


class _Proxy(Controlled):
    def __repr__(self) -> str:
        """Return a short name: that of the actor contains the whole ID of its node."""
        return "proxy"

    @control
    def start(self, spec: ProxySpec, replica_set: str, template_hash: str, secret: bytes, epoch: int) -> Location:
        options = HTTPOptions(**spec.options)

        def start() -> Location:
            here = node()
            shared = options.proxies_per_node > 1 or alive_nodes().count(own_host()) > 1
            self.server: ProxyThread = ProxyThread(
                lambda: ProxyState(secret, Router, here, self._access(options)),
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


# These are functions, because Ray makes an actor with a coroutine method an asyncio actor.


async def watch(name: str, seen: Mapping[str, Version], prefix: str | tuple[str, ...] = "") -> Mapping[str, Snapshot]:
    """Return the snapshots that the controller has published since `seen`.

    Returns an empty mapping after a while if there are none, or if no controller answers.
    """
    try:
        controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
    except (RayError, ValueError):  # no controller runs, or Ray's control store does not answer
        await asyncio.sleep(WATCH_AGAIN_S)
        return {}
    asked: Awaitable[Mapping[str, Snapshot]] = controller.watch.remote(name, dict(seen), prefix)
    try:
        return await asyncio.wait_for(asked, SILENT_S)
    except TimeoutError:
        await asyncio.to_thread(revive, controller)
    except (RayActorError, ControlError):  # the controller ends
        await asyncio.sleep(WATCH_AGAIN_S)
    return {}


def revive(controller: Any) -> None:
    """Restart the controller if its process does not answer, for example because it was stopped or hangs.

    Ray itself restarts the actor only when its process has ended.
    """
    if not ray.wait([controller.here.remote()], timeout=ANSWER_S)[0]:
        log.warning("the controller does not answer; its process is restarted")
        ray.kill(controller, no_restart=False)


class Reporting:
    """Reports the loads of one caller to the controller. A call returns whether the controller took all of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._controller: Any = None
        """The controller's actor. It is looked up once, because the lookup blocks the event loop; it remains valid when
        Ray restarts the actor. None: not looked up yet."""

    async def __call__(self, loads: Loads) -> bool:
        try:
            if self._controller is None:
                self._controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
            heard: bool = await self._controller.report.remote(self._name, dict(loads))
        except ActorDiedError:  # Ray does not restart the controller
            self._controller = None
            return False
        except (RayError, ControlError, ValueError):  # no controller runs, or the controller ends
            return False
        return heard


@contextlib.asynccontextmanager
async def _calling(spec: ReplicaSpec, secret: bytes) -> AsyncIterator[None]:
    """Let the handles of a replica call other deployments, on the event loop that serves the replica."""
    payloads = RayPayloads(NAMESPACE)
    data_plane = RemoteDataPlane(secret, spec.application, spec.callees, node(), payloads)
    handle.use(data_plane)  # until the process ends: a handle must never call objects in this process instead
    life = data_plane.run(partial(watch, spec.id), Reporting(spec.id))
    following = asyncio.get_running_loop().create_task(life)
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await data_plane.aclose()
        payloads.close()


ReplicaActor: Any = remote(max_restarts=0, concurrency_groups={**GROUPS, "payload": COURIERS})(_Replica)
ProxyActor: Any = remote(max_restarts=0, num_cpus=0, concurrency_groups=GROUPS)(_Proxy)


def _packed(hash: str) -> bytes | None:
    """Return what the store has under this hash, or None.

    The store keeps the code and files of an application until the application is deleted.
    """
    return asyncio.run(RayStore().get(code_key(hash))) if hash else None


def packed_code(hash: str) -> bytes | None:
    """Return pickled code from the store, or None. Raises `TargetError` if the code does not match its hash."""
    code = _packed(hash)
    if code is not None and sha256(code).hexdigest() != hash:
        raise TargetError(
            f"the store's value of {code_key(hash)!r} does not match its hash: deploy the application again"
        )
    return code


def last_epoch() -> int:
    """Return the epoch of the latest controller; 0 if the store has no readable epoch."""
    value = asyncio.run(RayStore().get(EPOCH))
    try:
        return 0 if value is None else decode_checkpoint(EPOCH, value).epoch
    except CorruptValue:
        return 0


def _with_files(spec: ReplicaSpec) -> ReplicaSpec:
    """Unpack the artifact on this node, and return the spec with the unpacked folders.

    The files stay until this process ends.
    """
    if not spec.artifact:
        return spec
    folder = Unpacked(spec.artifact, partial(_packed, spec.artifact), _runtime().path / "artifacts").folder
    shorten_paths(folder)
    return replace(spec, app_dir=str(folder / spec.app_dir), working_dir=str(folder / spec.working_dir))


def node() -> NodeId:
    """Return the node that this process runs on."""
    return NodeId(ray.get_runtime_context().get_node_id())


def own_host() -> str:
    """Return the address of this node in the Ray cluster."""
    state: Any = ray.util  # the function has no types
    return str(state.get_node_ip_address())


def alive_nodes() -> list[str]:
    """Return the addresses of the nodes that are alive. Several nodes may run on one host."""
    state: Any = ray
    return [node["NodeManagerAddress"] for node in state.nodes() if node["Alive"]]


@cache
def _runtime() -> RuntimeFolder:
    """Return the private folder of this session on this host, locked until this process ends. Raises `InsecurePath`."""
    return RuntimeFolder(ray.get_runtime_context().get_session_name())
