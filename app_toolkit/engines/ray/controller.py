"""The actor of the controller, with its state store, its launcher and the secret of the instance."""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from app_toolkit.client.commands import Command, Shutdown
from app_toolkit.clock import SystemClock
from app_toolkit.controller.controller import Controller
from app_toolkit.core.reports import Compared, Loads, Lost
from app_toolkit.engines.ray.actors import CONTROLLER, NAMESPACE, log_folder, remote
from app_toolkit.engines.ray.launcher import RayProcesses
from app_toolkit.engines.ray.store import RayStore
from app_toolkit.errors import CorruptValue
from app_toolkit.host.launcher import ProcessLauncher
from app_toolkit.host.logs import begin_logs, process_context
from app_toolkit.host.store import create_secret, is_left_over
from app_toolkit.interfaces import Snapshot, Version
from app_toolkit.observability.loop_lag import LoopLag
from app_toolkit.observability.process import ProcessUse
from app_toolkit.observability.pushing import MetricsPush
from app_toolkit.observability.snapshots import PUSH_S, Snapshots
from app_toolkit.types import ReplicaId

R = TypeVar("R")

log = logging.getLogger("app_toolkit.ray")

AGAIN_S = 5.0
"""Seconds for which a controller that could not start answers calls with its error, before Ray restarts it."""


class _Controller:
    """The actor of the controller. Its name is unique in the cluster.

    Ray restarts it when it dies. It then takes over the replicas and proxies that run.
    """

    def __init__(self, *, lasting: bool = False) -> None:
        """`lasting`: as of `Controller`. Ray passes it again after each restart."""
        self._lasting = lasting
        begin_logs(log_folder(), process_context(CONTROLLER), f"{CONTROLLER}-{os.getpid()}")
        self._lag = LoopLag()
        # Runs on the actor's own loop. Ray also calls this after each restart, without any other call.
        self._begin()

    def _begin(self, *, discard: bool = False) -> None:
        self._ready: asyncio.Future[Controller] = asyncio.get_running_loop().create_future()
        self._life = asyncio.get_running_loop().create_task(self._live(discard=discard))

    def __repr__(self) -> str:
        """Return the name that precedes each line of output of this process."""
        return "controller"

    async def _live(self, *, discard: bool) -> None:
        try:
            store = RayStore()
            discard = discard or await is_left_over(store)
            launcher = ProcessLauncher(RayProcesses(), await create_secret(store, discard=discard))
            controller = Controller(store, launcher, SystemClock(), lasting=self._lasting)
            await controller.start(discard=discard)
        except Exception as error:
            self._ready.set_exception(error)  # for calls until the process ends
            log.exception("the controller could not start")
            await asyncio.sleep(AGAIN_S)
            os._exit(1)  # Ray restarts the process, which may then reach the store
        self._ready.set_result(controller)
        pushing = self._push(controller).run(asyncio.Event())
        beside = [asyncio.create_task(pushing), asyncio.create_task(self._lag.measure())]
        await controller.run()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        if controller.replaced:
            os._exit(0)  # the actor itself continues in another process
        # The instance has shut down, so Ray must not restart the controller.
        await asyncio.to_thread(ray.kill, ray.get_runtime_context().current_actor, no_restart=True)

    def _push(self, controller: Controller) -> MetricsPush:
        use = ProcessUse("controller", "", "controller", lambda: self._lag.longest(time.monotonic()))
        snapshots = Snapshots(
            "controller", "", [controller.samples], [use.samples], state=controller.metrics_state, heartbeat_s=PUSH_S
        )

        async def push(process: str, snapshot: bytes) -> bool:
            name, _ = controller.admin()
            if name is None:
                return False
            try:
                admin: Any = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
                taken: bool = await admin.push_metrics.remote(process, snapshot)
            except (RayError, ValueError):  # the admin process ends
                return False
            return taken

        return MetricsPush("controller", snapshots, push)

    async def execute(self, command: Command[R]) -> R:
        """Perform a command of a client (see `client/commands.py`), and return its result."""
        ready = self._ready
        try:
            controller = await ready
        except CorruptValue:
            if not (isinstance(command, Shutdown) and command.discard):
                raise
            if self._ready is ready:
                self._life.cancel()  # otherwise it would end this process
                self._begin(discard=True)
            controller = await self._ready
        return await command.perform(controller)

    async def here(self) -> int:
        """Return the process ID of the controller."""
        return os.getpid()

    async def watch(
        self, caller: str, seen: Mapping[str, Version], prefix: str | tuple[str, ...] = ""
    ) -> Mapping[str, Snapshot]:
        news: Mapping[str, Snapshot] = await (await self._ready).watch(caller, seen, prefix=prefix)
        return news

    async def report(self, caller: str, loads: Loads, compared: Compared, lost: Lost) -> bool:
        return (await self._ready).report(caller, loads, compared, lost)

    async def admin(self) -> tuple[ReplicaId | None, float]:
        """Return the admin process, and the seconds after which a process asks again if there is none."""
        return (await self._ready).admin()


ControllerActor: Any = remote(num_cpus=0, max_restarts=-1, max_concurrency=10_000)(_Controller)
