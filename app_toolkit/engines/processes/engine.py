"""The engine on processes of this machine. Each method imports what it needs when it is called."""

import os
import secrets
from typing import TYPE_CHECKING

from app_toolkit.client.client import Client, Driver, Engine
from app_toolkit.config.models import HTTPOptions
from app_toolkit.errors import ConfigError

if TYPE_CHECKING:
    from app_toolkit.engines.processes.services import ProcessServices


class ProcessEngine(Engine):
    def __init__(self) -> None:
        self._services: ProcessServices | None = None
        """Those of the instance whose first process has started this one; None: there is none."""

    def check(self, address: str) -> None:
        from app_toolkit.engines.processes.sessions import session

        session(address)

    def preload(self) -> None:
        """Do nothing: `begin_instance` imports what a process needs."""

    def is_joined(self) -> bool:
        return self._services is not None

    def begin_instance(self, http: HTTPOptions) -> None:
        from app_toolkit.engines.processes.fork import fork_here
        from app_toolkit.engines.processes.services import PREFIX, ProcessServices
        from app_toolkit.engines.processes.supervisor import Supervisor
        from app_toolkit.proxy.server import bind

        services = ProcessServices(f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}")
        services.listener = bind(http)
        supervisor = Supervisor(services)
        command = fork_here("app-toolkit")
        if command:
            os._exit(supervisor.run(command))
        self._services = services

    def start(self, *, address: str | None, num_cpus: float | None = None, with_lease: bool = True) -> Client:
        from app_toolkit.engines.processes.client import ProcessClient

        if address is not None:
            client = self.connect(address)
        elif self._services is not None:
            client = ProcessClient(self._services, is_local=True)
        else:
            raise NotImplementedError
        if with_lease:
            client.acquire_lease()
        return client

    def find(self, address: str | None) -> Client | None:
        from app_toolkit.engines.processes.client import ProcessClient
        from app_toolkit.engines.processes.sessions import session, sessions

        if address in (None, "auto") and not sessions():
            return None
        return ProcessClient(session(address or "auto"))

    def connect(self, address: str | None) -> Client:
        client = self.find(address)
        if client is None:
            raise ConfigError("no app_toolkit instance runs on this machine")
        return client

    def drive(self, client: Client) -> Driver:
        from app_toolkit.engines.processes.client import ProcessClient, ProcessDriver

        assert isinstance(client, ProcessClient)
        return ProcessDriver(client)
