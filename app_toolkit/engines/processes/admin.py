"""The admin server, on threads of the process of the controller."""

import asyncio
from typing import Any, TypeVar

from app_toolkit.engines.processes.client import ProcessClient
from app_toolkit.engines.processes.services import ProcessServices
from app_toolkit.host.launcher import Ending
from app_toolkit.host.orders import Order, serve
from app_toolkit.host.process import AdminProcess
from app_toolkit.interfaces import AdminSpec, Location
from app_toolkit.observability.snapshots import Snapshots
from app_toolkit.types import ReplicaId

R = TypeVar("R")


class AdminThreads:
    """Obeys the orders to an admin process, for the launcher. It ends with this process."""

    is_running = True

    def __init__(self, name: ReplicaId, services: ProcessServices) -> None:
        self.process = _Admin(name, services, ProcessClient(services))
        self._ended = asyncio.Event()

    async def running(self) -> None:
        """Return at once: this process runs."""

    async def order(self, order: Order[Any, R]) -> R:
        return await asyncio.to_thread(serve, self.process, order)

    async def ended(self) -> Ending:
        await self._ended.wait()
        return Ending(None)

    async def kill(self) -> None:
        if self.process.location.done() and self.process.location.exception() is None:
            await asyncio.to_thread(self.process.server.stop, 0.0)
        self._ended.set()


class _Admin(AdminProcess):
    def serve(self, spec: AdminSpec, secret: bytes) -> Location:
        return self.listen(spec)  # the log of this process is that of the controller

    def snapshots(self) -> Snapshots:
        return Snapshots("admin", "", [], [])  # the controller reports what this process uses
