"""The process of the controller."""

import asyncio
import signal
import socket
from typing import Any

import uvloop

from app_toolkit.control.queries import Shutdown
from app_toolkit.engines.processes.client import ProcessClient
from app_toolkit.engines.processes.launcher import LocalProcesses
from app_toolkit.engines.processes.services import ProcessServices
from app_toolkit.engines.processes.wire import serve
from app_toolkit.errors import ControlError
from app_toolkit.operate.controller_host import ControllerHost


def run(services: ProcessServices, listener: socket.socket, ends: bool = False) -> None:
    """Run the controller until the instance has shut down.

    If it ends otherwise, the process has an exit code other than 0, and the supervisor starts another one.

    `ends`: shut the instance down at once, as after SIGTERM, because an earlier controller has not done so. If this
    controller cannot start, nothing is drained.
    """
    with services.store.kept_open(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if not runner.run(_run(services, listener, ends)):
            raise SystemExit(1)


async def _run(services: ProcessServices, listener: socket.socket, ends: bool) -> bool:
    """Run the controller, and answer the other processes. Return whether the instance has shut down, or must not run.

    `ends`: as of `run`.
    """
    host = ControllerHost(services, LocalProcesses(services), ProcessClient(services))
    methods = {method.__name__: method for method in (host.execute, host.watch, host.report, host.push_metrics)}
    ending: list[asyncio.Task[None]] = []

    async def answer(method: str, arguments: tuple[Any, ...]) -> Any:
        if method not in methods:
            raise ControlError(f"the controller has no method {method!r}")
        return await methods[method](*arguments)

    loop = asyncio.get_running_loop()

    def shut_down() -> None:
        ending.append(loop.create_task(host.execute(Shutdown())))

    loop.add_signal_handler(signal.SIGTERM, shut_down)
    if ends:
        shut_down()
    server = await serve(listener, answer)
    has_shut_down = await host.run()
    server.close()
    return has_shut_down or ends
