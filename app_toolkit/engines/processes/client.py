"""The connection to an instance on this machine, for processes outside of it: the command line, scripts, tests."""

import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from app_toolkit.client.commands import Command
from app_toolkit.client.remote import ControllerUnavailable, RemoteClient
from app_toolkit.config import settings
from app_toolkit.engines.driver import LoopDriver
from app_toolkit.engines.processes.output import RecordFollower
from app_toolkit.engines.processes.services import CONTROLLER, HOME, STARTED, SUPERVISOR, ProcessServices
from app_toolkit.engines.processes.wire import PeerGone, call, call_all
from app_toolkit.errors import ConfigError, InstanceEnded
from app_toolkit.host.orders import Order

R = TypeVar("R")

ALIVE_S = 5.0
"""Seconds that a supervisor has to answer."""


class ProcessControl:
    """Asks the processes of an instance."""

    def __init__(
        self,
        services: ProcessServices,
        supervisor: "OwnSupervisor | None" = None,
        output: RecordFollower | None = None,
    ) -> None:
        """Connect to an instance.

        Parameters:
            services: Those of the instance.
            supervisor: The one that this process has started, and that ends with the connection; None: it has not.
            output: Ends with the connection. None: this process does not write the records of the instance.
        """
        self.services = services
        self._supervisor = supervisor
        self._output = output

    def execute(self, command: Command[R], timeout_s: float | None = None) -> R:
        try:
            result: R = call(self.services.path_of(CONTROLLER), "execute", command, timeout_s=timeout_s)
            return result
        except (PeerGone, TimeoutError) as error:
            if not is_alive(self.services.path_of(SUPERVISOR)):
                raise InstanceEnded("the instance was shut down") from None
            raise ControllerUnavailable(str(error)) from error

    def ask(self, orders: Mapping[str, Order[Any, R]]) -> Mapping[str, R]:
        limits = [order.answer_s for order in orders.values() if order.answer_s is not None]
        calls = {process: (self.services.path_of(process), "serve", (order,)) for process, order in orders.items()}
        results: dict[str, R] = call_all(calls, max(limits, default=0.0))
        return {process: result for process, result in results.items() if result is not None}

    def addresses(self) -> Mapping[str, str]:
        return {HOME: self.services.address}

    def links(self) -> Mapping[str, str]:
        return {}

    def end_controller(self) -> None:
        """Do nothing: it ends by itself."""

    def close(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.close()
        output, self._output = self._output, None
        if output is not None:
            output.close()


class OwnSupervisor:
    """A supervisor in a child of this process. It ends when this process does, or closes this object."""

    def __init__(self, services: ProcessServices) -> None:
        """Start it, and wait until the other processes can be asked. Raises `ConfigError` if it does not start."""
        self._connection, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", __package__, services.session, str(theirs.fileno())]
            # A Ctrl-C in the terminal reaches only this process, which then shuts the instance down.
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        if self._connection.recv(len(STARTED)) != STARTED:
            self.close()
            raise ConfigError(f"the supervisor of the instance did not start: exit code {self._process.returncode}")

    def close(self) -> None:
        """End all processes of the instance, and wait for that."""
        self._connection.close()
        self._process.wait()


def is_alive(supervisor: str) -> bool:
    """Return whether the supervisor of an instance runs. `supervisor`: the path of its socket."""
    with suppress(PeerGone):
        with suppress(TimeoutError):  # it is very busy, or stopped
            call(supervisor, "running", timeout_s=ALIVE_S)
        return True
    return False


class ProcessClient(RemoteClient):
    """A connection to the instance of one session.

    An instance that this process has started ends with the connection.
    """

    def __init__(
        self, services: ProcessServices, supervisor: OwnSupervisor | None = None, *, is_local: bool = False
    ) -> None:
        """`is_local`: the instance ends with this client, which also shows its output."""
        output = RecordFollower(services.log_folder) if is_local and settings.logs_to_stdout() else None
        super().__init__(ProcessControl(services, supervisor, output), is_local=is_local)
        self.services = services


class ProcessDriver(LoopDriver):
    def __init__(self, client: ProcessClient) -> None:
        self._connections = client.services
        super().__init__(client, client.services)

    async def _end(self) -> None:
        await super()._end()
        await self._connections.aclose()
