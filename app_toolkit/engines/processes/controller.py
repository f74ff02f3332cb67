"""The process of the controller."""

import asyncio
import logging
import os
import signal
import socket
import time
from typing import Any

import uvloop

from app_toolkit.client.commands import Command, Shutdown
from app_toolkit.clock import SystemClock
from app_toolkit.controller.controller import Controller
from app_toolkit.engines.processes.launcher import LocalProcesses
from app_toolkit.engines.processes.services import CONTROLLER, ProcessServices
from app_toolkit.engines.processes.wire import serve
from app_toolkit.errors import ControlError, CorruptValue
from app_toolkit.host.launcher import ProcessLauncher
from app_toolkit.host.logs import begin_logs, process_context
from app_toolkit.host.store import create_secret
from app_toolkit.observability.loop_lag import LoopLag
from app_toolkit.observability.process import ProcessUse
from app_toolkit.observability.pushing import MetricsPush
from app_toolkit.observability.snapshots import PUSH_S, Snapshots

logger = logging.getLogger("app_toolkit.processes")

AGAIN_S = 5.0
"""Seconds for which a controller that could not start answers commands with its error, before it ends."""


def run(services: ProcessServices, listener: socket.socket, ends: bool = False) -> None:
    """Run the controller until the instance has shut down.

    If it ends otherwise, the process has an exit code other than 0, and the supervisor starts another one.

    `ends`: shut the instance down at once, as after SIGTERM, because an earlier controller has not done so. If this
    controller cannot start, nothing is drained.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ControllerProcess(services, ends=ends).run(listener))


class ControllerProcess:
    """Performs the commands of clients, and answers the other processes."""

    def __init__(self, services: ProcessServices, *, ends: bool) -> None:
        """`ends`: as of `run`."""
        self._services = services
        self._ends = ends

    async def run(self, listener: socket.socket) -> None:
        begin_logs(self._services.log_folder, process_context(CONTROLLER), f"{CONTROLLER}-{os.getpid()}")
        self._begin()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._shut_down)
        if self._ends:
            self._shut_down()
        server = await serve(listener, self._answer)
        while True:
            life = self._life
            await asyncio.wait([life])
            if life is self._life:
                break
        server.close()
        await life

    def _begin(self, *, discard: bool = False) -> None:
        self._ready: asyncio.Future[Controller] = asyncio.get_running_loop().create_future()
        self._life = asyncio.get_running_loop().create_task(self._live(discard=discard))

    async def _live(self, *, discard: bool) -> None:
        store = self._services.store
        try:
            self._processes = LocalProcesses(self._services)
            launcher = ProcessLauncher(self._processes, await create_secret(store, discard=discard))
            controller = Controller(store, launcher, SystemClock())
            await controller.start(discard=discard)
        except Exception as error:
            self._ready.set_exception(error)  # for commands until the process ends
            logger.exception("the controller could not start")
            if self._ends:
                return
            await asyncio.sleep(AGAIN_S)
            raise SystemExit(1) from None
        self._ready.set_result(controller)
        lag = LoopLag()
        pushing = self._pushes(controller, lag).run(asyncio.Event())
        beside = [asyncio.create_task(pushing), asyncio.create_task(lag.measure())]
        await controller.run()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        if controller.replaced:
            raise SystemExit(1)

    def _pushes(self, controller: Controller, lag: LoopLag) -> MetricsPush:
        use = ProcessUse("controller", "", "controller", lambda: lag.longest(time.monotonic()))
        snapshots = Snapshots(
            "controller", "", [controller.samples], [use.samples], state=controller.metrics_state, heartbeat_s=PUSH_S
        )

        async def push(process: str, snapshot: bytes) -> bool:
            return self._push(controller, process, snapshot)[0]

        return MetricsPush("controller", snapshots, push)

    def _push(self, controller: Controller, process: str, snapshot: bytes) -> tuple[bool, float]:
        """Push the metrics of a process to the admin server.

        Return whether it has taken them, and otherwise the seconds after which the process may push again.
        """
        name, again_s = controller.admin()
        if name is None or self._processes.admin is None:
            return False, again_s
        return self._processes.admin.process.push_metrics(process, snapshot), 0.0

    def _shut_down(self) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._execute(Shutdown()))

    # Calls of other processes

    async def _answer(self, method: str, args: tuple[Any, ...]) -> Any:
        match method:
            case "execute":
                return await self._execute(*args)
            case "watch":
                name, seen, prefix = args
                return await (await asyncio.shield(self._ready)).watch(name, seen, prefix=prefix)
            case "report":
                return (await asyncio.shield(self._ready)).report(*args)
            case "push_metrics":
                return self._push(await asyncio.shield(self._ready), *args)
            case _:
                raise ControlError(f"the controller has no method {method!r}")

    async def _execute(self, command: Command[Any]) -> Any:
        """Perform a command of a client, and return its result."""
        ready = self._ready
        try:
            controller = await asyncio.shield(ready)
        except CorruptValue:
            if not (isinstance(command, Shutdown) and command.discard):
                raise
            if self._ready is ready:
                self._life.cancel()  # otherwise it would end this process
                self._begin(discard=True)
            controller = await asyncio.shield(self._ready)
        return await command.perform(controller)
