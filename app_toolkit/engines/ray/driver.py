"""A driver: a process outside an instance whose handles call deployments in it, such as a script or a notebook."""

import asyncio
import secrets
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from ray.exceptions import RayError

from app_toolkit.client.commands import Forget
from app_toolkit.engines.local import OwnLoop
from app_toolkit.engines.ray.actors import Reporting, node, watch
from app_toolkit.engines.ray.client import RayClient
from app_toolkit.engines.ray.controller import SECRET
from app_toolkit.engines.ray.store import RayStore
from app_toolkit.errors import ConfigError, InstanceEnded
from app_toolkit.interfaces import Deployable
from app_toolkit.router import handle
from app_toolkit.router.remote import RemoteDataPlane, RemoteDeploymentClient


class Driver:
    """The client of an instance, and the data plane of the handles of this process, on an event loop in its own thread.

    Until `close`, every handle of this process calls through it. Its methods are safe in any thread.
    """

    def __init__(self, client: RayClient) -> None:
        self.client = client
        #: The name by which the controller identifies this caller.
        self._name = f"driver-{secrets.token_hex(6)}"
        #: The applications that this process has deployed, by deployment.
        self._applications: dict[Deployable, str] = {}
        self._own = OwnLoop("app-toolkit calls")
        try:
            self._data_plane, self._following = asyncio.run_coroutine_threadsafe(self._begin(), self._own.loop).result()
        except BaseException:
            self._own.close()
            raise
        handle.use(self)

    async def _begin(self) -> tuple[RemoteDataPlane, "asyncio.Task[None]"]:
        secret = await RayStore().get(SECRET)
        if secret is None:
            raise InstanceEnded("the instance was shut down")
        data_plane = RemoteDataPlane(secret, node=node())
        life = data_plane.run(partial(watch, self._name), Reporting(self._name))
        return data_plane, asyncio.get_running_loop().create_task(life)

    def serve(self, application: str, deployments: Iterable[Deployable]) -> None:
        """Make the handles of these deployments call this application from now on."""
        self._applications.update((each, application) for each in deployments)

    def client_of(self, deployment: Deployable) -> RemoteDeploymentClient:
        """Return the caller of a deployment. Its calls wait while the deployment has no replicas.

        Raises `ConfigError` if the deployment names no application and this process has not deployed it.
        """
        application = deployment.application or self._applications.get(deployment)
        if application is None:
            raise ConfigError(f"{deployment.name!r} is not deployed from this process: run() it, or what depends on it")
        return self._data_plane.client_named(application, deployment.name)

    def close(self) -> None:
        """Cancel the calls of the handles, delete the applications of this process, and wait for that."""
        handle.use(None)
        self._own.close(self._end())
        with suppress(InstanceEnded, RayError):
            self.client.execute(Forget(self._name))
        self.client.leave()

    async def _end(self) -> None:
        self._following.cancel()
        with suppress(asyncio.CancelledError):
            await self._following
        await self._data_plane.aclose()
