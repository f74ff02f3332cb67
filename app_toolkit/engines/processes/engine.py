"""The engine on processes of this machine. Each method imports what it needs when it is called."""

import gc
import os
import sys
from typing import TYPE_CHECKING

from app_toolkit.config.models import HTTPOptions
from app_toolkit.engines.processes import systemd
from app_toolkit.engines.processes.sessions import PREFIX, new_session, running
from app_toolkit.errors import ConfigError
from app_toolkit.operate.client import Client, Driver, Engine, Plan, Planning

if TYPE_CHECKING:
    from app_toolkit.engines.processes.services import ProcessServices


class ProcessEngine(Engine):
    capabilities = frozenset({"processes", "resources", "limits", "edge"})
    runs_here = True

    def __init__(self) -> None:
        self._services: ProcessServices | None = None
        """Those of the instance whose first process has started this one; None: there is none."""

    def runs(self, address: str | None) -> bool:
        """Return whether an address is that of this engine. `auto` and None: whether an instance runs here."""
        if address not in (None, "auto"):
            return address.startswith(PREFIX)
        return bool(running("auto"))

    def check(self, address: str) -> None:
        self.connect(address).close()

    def preload(self) -> None:
        """Do nothing: `begin_instance` imports what a process needs."""

    def is_joined(self) -> bool:
        return self._services is not None

    def inherited_address(self) -> tuple[str, int] | None:
        passed = systemd.listener()
        if passed is None:
            return None
        with passed:
            host, port, *_ = passed.getsockname()
        return host, port

    def begin_instance(self, http: HTTPOptions, plan: Plan) -> bool:
        from app_toolkit.edge.server import bind
        from app_toolkit.engines.processes.fork import fork_here
        from app_toolkit.engines.processes.services import ProcessServices
        from app_toolkit.engines.processes.supervisor import Supervisor

        if not sys.flags.safe_path:
            del sys.path[0]  # the current folder, or that of the script: replicas must not import from there
        services = ProcessServices(new_session())
        passed, notify = systemd.take()
        services.clients, services.host = passed or bind(http), http.host
        supervisor = Supervisor(services, notify=notify, plan=plan)
        gc.freeze()  # otherwise the garbage collection of each process copies the pages that it shares with the others
        command = fork_here("app-toolkit")
        if command:
            os._exit(supervisor.run(command))
        self._services = services
        return True

    def planning(self, app: str) -> Planning:
        from app_toolkit.engines.processes.planning import TemplatePlanning

        assert self._services is not None, "an instance has begun"
        return TemplatePlanning(self._services, app)

    def check_background(self) -> None:
        if instances := running("auto"):
            names = ", ".join(services.session for services in instances)
            raise ConfigError(
                f"an instance runs already on this machine ({names}): `app-toolkit deploy` changes its applications, "
                "and `app-toolkit down` ends it"
            )

    def start_in_background(self, http: HTTPOptions) -> Client:
        from app_toolkit.engines.processes.client import OwnSupervisor, ProcessClient
        from app_toolkit.host.runtime_folder import locked

        with locked():  # otherwise two commands at the same time would both find no instance
            self.check_background()
            supervisor = OwnSupervisor(http, in_background=True)
        return ProcessClient(supervisor.services, supervisor, is_local=True)

    def start(
        self,
        *,
        address: str | None,
        num_cpus: float | None = None,
        with_lease: bool = True,
        http: HTTPOptions | None = None,
    ) -> Client:
        from app_toolkit.engines.processes.client import OwnSupervisor, ProcessClient

        if address is not None:
            client = self.connect(address)
        elif self._services is not None:
            # No lease: the instance ends with its first process, and the command may end before.
            return ProcessClient(self._services, is_local=True)
        else:
            supervisor = OwnSupervisor(http)
            client = ProcessClient(supervisor.services, supervisor, is_local=True)
        if with_lease:
            client.acquire_lease()
        return client

    def find(self, address: str | None) -> Client | None:
        from app_toolkit.engines.processes.client import ProcessClient

        instances = running(address or "auto")
        if len(instances) > 1:
            names = ", ".join(services.session for services in instances)
            raise ConfigError(f"{len(instances)} instances run on this machine, so name one with --address: {names}")
        return ProcessClient(instances[0]) if instances else None

    def connect(self, address: str | None) -> Client:
        client = self.find(address)
        if client is None:
            which = "" if address in (None, "auto") else f" with the address {address!r}"
            raise ConfigError(f"no instance runs on this machine{which}: start one with `app-toolkit up`")
        return client

    def drive(self, client: Client) -> Driver:
        from app_toolkit.engines.processes.client import ProcessClient, ProcessDriver

        assert isinstance(client, ProcessClient)
        return ProcessDriver(client)
