"""A driver: a process outside an instance whose handles call deployments in it, such as a script or a notebook."""

import asyncio
import secrets
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from app_toolkit.calls import handle
from app_toolkit.calls.remote import RemoteDataPlane
from app_toolkit.control.queries import Forget
from app_toolkit.engines.one_process.calls import OwnLoop
from app_toolkit.errors import ConfigError, InstanceEnded, WaitTimeout
from app_toolkit.host.services import Services
from app_toolkit.host.store import SECRET
from app_toolkit.interfaces import Callee, DeploymentClient
from app_toolkit.operate.client import Client


class LoopDriver:
    """The client of an instance, and the data plane of the handles of this process, on an event loop in its own thread.

    Until `close`, every handle of this process calls through it. Its methods are safe in any thread.
    """

    def __init__(self, client: Client, services: Services) -> None:
        self.client = client
        self._services = services
        #: The name by which the controller identifies this caller.
        self._name = f"driver-{secrets.token_hex(6)}"
        #: The applications that this process has deployed, by deployment and split.
        self._applications: dict[Callee, str] = {}
        self._own = OwnLoop("app-toolkit calls")
        try:
            self._data_plane, self._following = asyncio.run_coroutine_threadsafe(self._begin(), self._own.loop).result()
        except BaseException:
            self._own.close()
            raise
        handle.use(self)

    async def _begin(self) -> tuple[RemoteDataPlane, "asyncio.Task[None]"]:
        services = self._services
        secret = await services.store.get(SECRET)
        if secret is None:
            raise InstanceEnded("the instance was shut down")
        data_plane = RemoteDataPlane(secret, node=services.node)
        life = data_plane.run(partial(services.watch, self._name), partial(services.report, self._name))
        return data_plane, asyncio.get_running_loop().create_task(life)

    def serve(self, application: str, callees: Iterable[Callee]) -> None:
        """Make the handles of these deployments and splits call this application from now on."""
        self._applications.update((callee, application) for callee in callees)

    def client_of(self, callee: Callee, shard_key: str | None = None) -> DeploymentClient:
        """Return the client for one call. It waits while the deployment has no replicas.

        Raises `ConfigError` if the deployment names no application and this process has not deployed it.
        """
        application = callee.application or self._applications.get(callee)
        if application is None:
            raise ConfigError(f"{callee.name!r} is not deployed from this process: run() it, or what depends on it")
        return self._data_plane.client_in_main(application, callee)

    def close(self) -> None:
        """Cancel the calls of the handles, delete the applications of this process, and wait for that."""
        handle.use(None)
        self._own.close(self._end())
        self._forget()
        self.client.leave()

    def _forget(self) -> None:
        with suppress(InstanceEnded, WaitTimeout):  # the controller ends
            self.client.execute(Forget(self._name))

    async def _end(self) -> None:
        self._following.cancel()
        with suppress(asyncio.CancelledError):
            await self._following
        await self._data_plane.aclose()
