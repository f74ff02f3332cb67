"""The actors of replicas and proxies: the processes of `host/`, with what they need of Ray.

They are threaded actors. Ray runs the constructor on the main thread of the process, and its own loop runs there from
then on. Control calls run on threads of their own.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayError

from app_toolkit.config import settings
from app_toolkit.contract.identity import AnySetKey
from app_toolkit.contract.loads import Compared, Loads, Lost
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.engines.ray.output import LOG_FOLDER, PROXY
from app_toolkit.engines.ray.payloads import RayPayloads
from app_toolkit.engines.ray.store import RayStore
from app_toolkit.errors import ControlError
from app_toolkit.host.exit_report import report_exit
from app_toolkit.host.orders import Order, serve
from app_toolkit.host.process import ControlledProcess, ProxyProcess, ReplicaProcess
from app_toolkit.host.runtime_folder import RuntimeFolder
from app_toolkit.host.services import CONTROLLER
from app_toolkit.interfaces import Location, Snapshot, Version
from app_toolkit.types import NodeId, ReplicaId
from app_toolkit.userapp.ending import descendants, end_processes

log = logging.getLogger("app_toolkit.ray")

NAMESPACE = "app_toolkit"

CONTROL = 8
"""Threads for control calls, the default group. A start, a reconfiguration, a drain and a stop may block at the same
time, while probes continue."""

Kind = tuple[AnySetKey | None, str]
"""The replica set and the template hash of a process. None: it has received no order to start."""

REPORT_S = 0.2
"""Seconds for which a call of `os._exit` waits, so that the launcher learns the exit code."""

F = TypeVar("F", bound=Callable[..., Any])
remote: Any = ray.remote  # untyped, because Ray's own type has no concurrency groups


def on(group: str) -> Callable[[F], F]:
    """Return a decorator that runs a method on the threads of a group."""
    return cast("Callable[[F], F]", ray.method(concurrency_group=group))


life = on("life")

WATCH_AGAIN_S = 0.5
"""Seconds before a caller watches again if no controller runs."""

SILENT_S = 60.0
"""Seconds without an answer after which a caller checks whether the controller is alive. A watch ends within 20 s."""

ANSWER_S = 30.0
"""Seconds that the controller has to answer this check."""


ENDING: Future[str] = Future()
"""How this process ends, once user code has called `os._exit`."""


class Actor:
    """An actor with a process of `host/process.py`, to which it delivers orders."""

    def __init__(self, process: ControlledProcess) -> None:
        self._process = process

    def __repr__(self) -> str:
        """Return the name that Ray puts before each line of output of this process."""
        return self._process.name

    def serve(self, order: Order[Any, Any]) -> Any:
        return serve(self._process, order)

    def here(self) -> int:
        """Return the process ID. Answers as soon as the process runs, whatever else it does."""
        return os.getpid()

    def place(self) -> tuple[NodeId, Kind]:
        """Return the node, and the kind that the last order to start has named. Answers as soon as the process runs."""
        return self._process.services.node, (self._process.replica_set, self._process.template_hash)

    @life
    def until_gone(self) -> str:
        """Block until user code calls `os._exit`, and return a sentence about that. Otherwise, block for ever.

        The call fails for its caller when the process ends.
        """
        return ENDING.result()


class _RayReplica(ReplicaProcess):
    def serve(self, spec: ReplicaSpec, secret: bytes) -> Location:
        context = ray.get_runtime_context()
        if not context.get_accelerator_ids()["GPU"] and settings.DEVICES not in context.runtime_env.env_vars():
            settings.hide_devices()
        return super().serve(spec, secret)

    def stop(self, timeout_s: float) -> None:
        super().stop(timeout_s)
        end_processes(descendants(os.getpid()))  # of user code: `ray.kill` would leave them


class _Replica(Actor):
    def __init__(self, name: ReplicaId) -> None:
        super().__init__(_RayReplica(name, RayServices()))
        # A replica runs the functions of atexit while it still answers an order. Ray's own would disconnect it.
        atexit.unregister(ray.shutdown)
        report_exit(_note_exit)


class _Proxy(Actor):
    def __init__(self, name: ReplicaId) -> None:
        super().__init__(ProxyProcess(name, RayServices()))

    def __repr__(self) -> str:
        """Return a short name for the output: that of the actor contains the whole ID of its node."""
        return PROXY


GROUPS: Mapping[str, int] = {"life": 1, "bulk": 2}
"""The threads of each actor beside those for control. A thread that reads log files or that writes a payload into the
object store is blocked meanwhile."""

ReplicaActor: Any = remote(max_restarts=0, max_concurrency=CONTROL, concurrency_groups=GROUPS)(_Replica)
ProxyActor: Any = remote(max_restarts=0, num_cpus=0, max_concurrency=CONTROL, concurrency_groups=GROUPS)(_Proxy)


class RayServices:
    """What a process on Ray gets from the engine: see `host/services.py`."""

    def __init__(self) -> None:
        self.store = RayStore()
        self._push_at = 0.0
        """When this process may push its metrics again, on its monotonic clock."""
        self._controller: Any = None
        """The controller's actor. It is looked up once, because the lookup blocks the event loop; it remains valid when
        Ray restarts the actor. None: not looked up yet."""

    @property
    def node(self) -> NodeId:
        return NodeId(ray.get_runtime_context().get_node_id())

    @property
    def address(self) -> str:
        state: Any = ray.util  # the function has no types
        return str(state.get_node_ip_address())

    def nodes(self) -> list[str]:
        state: Any = ray
        return [node["NodeManagerAddress"] for node in state.nodes() if node["Alive"]]

    @cached_property
    def folder(self) -> RuntimeFolder:
        return RuntimeFolder(ray.get_runtime_context().get_session_name())

    @property
    def log_folder(self) -> Path:
        return log_folder()

    def listener(self, host: str, port: int) -> None:
        """Return None: each proxy binds its address itself."""

    def payloads(self) -> AbstractContextManager[RayPayloads]:
        return contextlib.closing(RayPayloads(NAMESPACE))

    async def watch(
        self, name: str, seen: Mapping[str, Version], prefix: str | tuple[str, ...] = ""
    ) -> Mapping[str, Snapshot]:
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

    async def report(self, name: str, loads: Loads, compared: Compared, lost: Lost) -> bool:
        return bool(await self._ask("report", name, dict(loads), dict(compared), dict(lost)))

    async def push_metrics(self, process: str, snapshot: bytes) -> bool:
        if time.monotonic() < self._push_at:
            return False
        accepted, again_s = await self._ask("push_metrics", process, snapshot) or (False, WATCH_AGAIN_S)
        self._push_at = time.monotonic() + again_s
        return bool(accepted)

    async def _ask(self, method: str, *arguments: object) -> Any:
        """Call a method of the controller. Return None if no controller runs, or the controller ends."""
        try:
            if self._controller is None:
                self._controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
            return await getattr(self._controller, method).remote(*arguments)
        except ActorDiedError:  # Ray does not restart the controller
            self._controller = None
        except (RayError, ControlError, ValueError):
            pass
        return None


def _note_exit(sentence: str) -> None:
    with contextlib.suppress(InvalidStateError):  # another thread has called it
        ENDING.set_result(sentence)
    time.sleep(REPORT_S)


def log_folder() -> Path:
    """Return the folder for our log files on this node, in the one that Ray's own tools show."""
    context = ray.get_runtime_context()
    return Path(context.get_temp_dir(), context.get_session_name(), "logs", LOG_FOLDER)


def revive(controller: Any) -> None:
    """Restart the controller if its process does not answer, for example because it was stopped or hangs.

    Ray itself restarts the actor only when its process has ended.
    """
    if not ray.wait([controller.here.remote()], timeout=ANSWER_S)[0]:
        log.warning("the controller does not answer; its process is restarted")
        ray.kill(controller, no_restart=False)
