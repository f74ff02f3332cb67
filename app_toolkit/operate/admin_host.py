"""The admin server of an instance, on a thread of the controller's process, and the metrics that it exposes."""

import asyncio

from fastapi import FastAPI

from app_toolkit.config.models import AdminOptions
from app_toolkit.control.controller import Controller
from app_toolkit.errors import ToolkitError
from app_toolkit.operate.admin.security import read_token
from app_toolkit.operate.admin.server import AdminServer
from app_toolkit.operate.aggregate import MetricsAggregate
from app_toolkit.operate.client import Client
from app_toolkit.types import Address

CHECK_S = 5.0
"""Seconds between two checks whether the server runs. It is started again if it does not."""

STOP_S = 2.0
"""Seconds that the server may take to stop."""

DOWN_S = 5.0
"""Seconds after which a process pushes its metrics again if the server does not run."""

OFF_S = 60.0
"""The same if the server is switched off."""


class AdminHost:
    """Serves the admin routes as the controller desires. Its methods belong to the event loop of the controller."""

    def __init__(self, client: Client) -> None:
        """`client`: sends the commands of the admin API, from the threads of the server."""
        self._client = client
        self._aggregate: MetricsAggregate | None = None
        """Begins with the first server, and stays; None: none has started."""
        self._server: AdminServer | None = None
        self._is_off = False

    async def run(self, controller: Controller) -> None:
        """Start, restart and stop the server as the controller desires, until this is cancelled."""
        served: AdminOptions | None = None
        try:
            while True:
                desired = await controller.admin_after(served, CHECK_S)
                self._is_off = controller.desired.admin.is_off
                if desired == served and self._is_serving == (served is not None):
                    continue
                await self._stop()
                served = desired
                if desired is None:
                    controller.admin_serves(None)
                else:
                    await self._start(controller, desired)
        finally:
            await self._stop()

    async def _start(self, controller: Controller, options: AdminOptions) -> None:
        port = controller.desired.admin.preferred_port
        starting = asyncio.ensure_future(asyncio.to_thread(self._serve, options, port))
        try:
            address = await asyncio.shield(starting)
        except (ToolkitError, OSError) as error:
            controller.admin_serves(None, str(error))
        except Exception as error:  # for example, there is no thread
            controller.admin_serves(None, f"{type(error).__name__}: {error}")
        else:
            controller.admin_serves(address)
        finally:
            await asyncio.wait([starting])  # also if this is cancelled, so that `run` then stops the server

    def _serve(self, options: AdminOptions, preferred_port: int) -> Address:
        metrics = self._aggregate = self._aggregate or MetricsAggregate()

        def create() -> FastAPI:
            from app_toolkit.operate.admin.app import create_app  # here, because many instances never serve a page

            return create_app(self._client, metrics, options, token)

        token = read_token()
        self._server = AdminServer(create, options, preferred_port)
        return self._server.start()

    @property
    def _is_serving(self) -> bool:
        return self._server is not None and self._server.is_running

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.stop, STOP_S)

    async def push(self, process: str, snapshot: bytes) -> tuple[bool, float]:
        """Take the metrics of a process (`observability/snapshots.py`).

        Return whether they were taken, and otherwise the seconds after which the process may push again.
        """
        if self._aggregate is None or not self._is_serving:
            return False, OFF_S if self._is_off else DOWN_S
        return await asyncio.to_thread(self._aggregate.push, process, snapshot), 0.0
