"""The connection to an instance on this machine, for processes outside of it: the command line, scripts, tests."""

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from app_toolkit.config import settings
from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.command import Command
from app_toolkit.control.operations import Deploy
from app_toolkit.edge.server import bind
from app_toolkit.engines.driver import LoopDriver
from app_toolkit.engines.processes.output import RecordFollower
from app_toolkit.engines.processes.services import (
    ALIVE_S,
    HOME,
    RELEASED,
    STARTED,
    SUPERVISOR,
    ProcessServices,
    is_alive,
)
from app_toolkit.engines.processes.sessions import is_at
from app_toolkit.engines.processes.wire import PeerGone, call, call_all
from app_toolkit.errors import ConfigError, InstanceEnded
from app_toolkit.host.orders import Order
from app_toolkit.host.services import CONTROLLER
from app_toolkit.operate.remote import ControllerUnavailable, RemoteClient

R = TypeVar("R")

ENDED_POLL_S = 0.05
"""Seconds between two checks whether an instance has ended."""


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
        """Wait until the instance has ended: it does so by itself."""
        while is_alive(self.services.path_of(SUPERVISOR)):
            time.sleep(ENDED_POLL_S)

    @property
    def shows_records(self) -> bool:
        """Whether this process writes the log records of the instance."""
        return self._output is not None

    def release(self) -> None:
        """Let an instance that this process has started go on after the end of this process."""
        if self._supervisor is not None:
            self._supervisor.release()
            self._supervisor = None

    def close(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.close()
        output, self._output = self._output, None
        if output is not None:
            output.close()


class OwnSupervisor:
    """A supervisor in a child of this process. It ends when this process does, or closes this object."""

    def __init__(self, http: HTTPOptions | None = None, *, in_background: bool = False) -> None:
        """Start it, and wait until the other processes can be asked.

        Parameters:
            http: The address at which clients connect, which this process binds. None: the first proxy binds it.
            in_background: Whether the processes of the instance print to `ProcessServices.output` and read nothing.
                Otherwise they use the input and the output of this process.

        Raises `ConfigError` if it does not start, and `StartupError` if the address cannot be bound.
        """
        self._connection, theirs = socket.socketpair()
        with theirs, nullcontext() if http is None else bind(http) as clients:
            passed = [theirs.fileno(), *([] if clients is None else [clients.fileno()])]
            command = [
                sys.executable,
                "-P",
                "-m",
                __package__,
                "background" if in_background else "foreground",
                *map(str, passed),
                *([] if http is None else [http.host]),
            ]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if in_background else None,
                pass_fds=passed,
                start_new_session=True,  # a Ctrl-C in the terminal reaches only this process
            )
        with self._connection.makefile("rb") as answers:
            session = answers.readline().decode().rstrip("\n")
            if answers.read(len(STARTED)) != STARTED:
                self.close()
                raise ConfigError(f"the supervisor of the instance did not start: exit code {self._process.returncode}")
        self.services = ProcessServices(session)

    def release(self) -> None:
        """Let the instance go on after the end of this process."""
        self._connection.sendall(RELEASED)
        self._connection.close()
        self._process.returncode = 0  # this process does not wait for its end

    def close(self) -> None:
        """End all processes of the instance, and wait for that. Do nothing if it was released."""
        self._connection.close()
        self._process.wait()


class ProcessClient(RemoteClient):
    """A connection to the instance of one session.

    An instance that this process has started ends with the connection.
    """

    engine = "processes"

    def __init__(
        self, services: ProcessServices, supervisor: OwnSupervisor | None = None, *, is_local: bool = False
    ) -> None:
        """`is_local`: the instance ends with this client, which also shows its output."""
        output = RecordFollower(services.log_folder) if is_local and settings.start_options().log_file == "-" else None
        self._control = ProcessControl(services, supervisor, output)
        super().__init__(self._control, is_local=is_local)
        self.services = services

    def execute(self, command: Command[R]) -> R:
        """As of `RemoteClient`. Raises `ConfigError` if the command would deploy to an instance that starts."""
        if isinstance(command, Deploy) and not self.is_local:
            with suppress(PeerGone, TimeoutError):  # it has ended, as the command itself finds out, or is very busy
                if call(self.services.path_of(SUPERVISOR), "is_starting", timeout_s=ALIVE_S):
                    raise ConfigError(
                        f"the instance {self.services.session} is starting, and ends if its own app does not start: "
                        "deploy again once that app serves"
                    )
        return super().execute(command)

    def check_address(self, address: str) -> None:
        if not is_at(self.services.session, address):
            raise ConfigError(
                f"this process uses the instance {self.services.session}, and cannot use one at {address}"
            )

    def report_ready(self) -> None:
        call(self.services.path_of(SUPERVISOR), "ready", timeout_s=ALIVE_S)

    def hand_over(self) -> bool:
        if not self.is_local or self._control.shows_records:
            return False
        try:  # without a limit of time: the supervisor would go on alone after this process has given up
            return bool(call(self.services.path_of(SUPERVISOR), "hand_over"))
        except PeerGone:  # the instance has been shut down meanwhile
            return False

    def detach(self) -> str:
        self._control.release()
        self.is_local = False
        return f"Its processes print to {self.services.output}."


class ProcessDriver(LoopDriver):
    def __init__(self, client: ProcessClient) -> None:
        self._connections = client.services
        super().__init__(client, client.services)

    async def _end(self) -> None:
        await super()._end()
        await self._connections.aclose()
