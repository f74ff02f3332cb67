"""The process of the controller: the controller with its store and launcher, the admin server, and the metrics.

An engine constructs one `ControllerHost`, and delivers the calls of the other processes to it.
"""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from typing import TypeVar

from app_toolkit.clock import SystemClock
from app_toolkit.contract.loads import Compared, Loads, Lost
from app_toolkit.control.command import Command
from app_toolkit.control.controller import Controller
from app_toolkit.control.queries import Shutdown
from app_toolkit.errors import CorruptValue
from app_toolkit.host.launcher import Processes, ProcessLauncher
from app_toolkit.host.logs import begin_logs, process_context
from app_toolkit.host.services import CONTROLLER, Services
from app_toolkit.host.store import create_secret, is_left_over
from app_toolkit.interfaces import Snapshot, Version
from app_toolkit.observability.loop_lag import LoopLag
from app_toolkit.observability.process_use import ProcessUse
from app_toolkit.observability.pushing import MetricsPush
from app_toolkit.observability.snapshots import PUSH_S, Snapshots
from app_toolkit.operate.admin_host import AdminHost
from app_toolkit.operate.client import Client

R = TypeVar("R")

logger = logging.getLogger("app_toolkit.host")

AGAIN_S = 5.0
"""Seconds for which a controller that could not start answers calls with its error, before its process ends."""


class ControllerHost:
    """Runs the controller from now on. Call every method on the event loop that it was constructed on."""

    def __init__(self, services: Services, processes: Processes, client: Client, *, lasting: bool = False) -> None:
        """Begin to start the controller.

        Parameters:
            services: The services of this process.
            processes: The processes of the instance.
            client: Sends the commands of the admin API.
            lasting: Whether the instance stays until `shutdown`, also if the last lease ends and it is empty.
        """
        begin_logs(services.log_folder, process_context(CONTROLLER), f"{CONTROLLER}-{os.getpid()}")
        self._store = services.store
        self._processes = processes
        self._lasting = lasting
        self._admin = AdminHost(client)
        self._lag = LoopLag()
        self._begin()

    def _begin(self, *, discard: bool = False) -> None:
        self._ready: asyncio.Future[Controller] = asyncio.get_running_loop().create_future()
        self._life = asyncio.get_running_loop().create_task(self._live(discard=discard))

    async def run(self) -> bool:
        """Wait until the controller has ended. Return whether the instance has shut down.

        False: the controller could not start, or another one has replaced it. This process must then end, and the
        engine starts the next controller.
        """
        while True:
            life = self._life
            await asyncio.wait([life])
            if life is self._life:
                return life.result()

    async def _live(self, *, discard: bool) -> bool:
        """Start the controller, and then the admin server and the metrics, which end after it."""
        try:
            discard = discard or await is_left_over(self._store)
            launcher = ProcessLauncher(self._processes, await create_secret(self._store, discard=discard))
            controller = Controller(self._store, launcher, SystemClock(), lasting=self._lasting)
            await controller.start(discard=discard)
        except Exception as error:
            self._ready.set_exception(error)  # for calls until the process ends
            logger.exception("the controller could not start")
            await asyncio.sleep(AGAIN_S)
            return False
        self._ready.set_result(controller)
        work = self._admin.run(controller), self._metrics(controller).run(asyncio.Event()), self._lag.measure()
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        try:
            await controller.run()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return not controller.replaced

    def _metrics(self, controller: Controller) -> MetricsPush:
        use = ProcessUse(CONTROLLER, "", CONTROLLER, lambda: self._lag.longest(time.monotonic()))
        snapshots = Snapshots(
            CONTROLLER, "", [controller.samples], [use.samples], state=controller.metrics_state, heartbeat_s=PUSH_S
        )

        async def push(process: str, snapshot: bytes) -> bool:
            return (await self._admin.push(process, snapshot))[0]

        return MetricsPush(CONTROLLER, snapshots, push)

    # Calls of other processes

    async def execute(self, command: Command[R]) -> R:
        """Perform a command of a client, and return its result."""
        ready = self._ready
        try:
            controller = await asyncio.shield(ready)
        except CorruptValue:
            if not (isinstance(command, Shutdown) and command.discard):
                raise
            if self._ready is ready:
                self._life.cancel()  # otherwise this process would end
                self._begin(discard=True)
            controller = await asyncio.shield(self._ready)
        return await command.perform(controller)

    async def watch(
        self, name: str, seen: Mapping[str, Version], prefix: str | tuple[str, ...]
    ) -> Mapping[str, Snapshot]:
        """Call `Controller.watch`."""
        return await (await asyncio.shield(self._ready)).watch(name, seen, prefix=prefix)

    async def report(self, name: str, loads: Loads, compared: Compared, lost: Lost) -> bool:
        """Call `Controller.report`."""
        return (await asyncio.shield(self._ready)).report(name, loads, compared, lost)

    async def push_metrics(self, process: str, snapshot: bytes) -> tuple[bool, float]:
        """Call `AdminHost.push`."""
        return await self._admin.push(process, snapshot)
