"""A process outside of an instance whose handles call what runs there: a script, a notebook, a test."""

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
from app_toolkit.router.remote import Callers, RemoteCaller


class Driver:
    """An instance, and the data plane of the handles of this process, on a loop and a thread of its own.

    From its beginning to its end every handle here calls through it. Safe from any thread.
    """

    def __init__(self, client: RayClient) -> None:
        self.client = client
        #: As a caller of the board.
        self._name = f"driver-{secrets.token_hex(6)}"
        #: The applications that were deployed from here, by what is deployed.
        self._applications: dict[Deployable, str] = {}
        self._own = OwnLoop("app-toolkit calls")
        try:
            self._callers, self._following = asyncio.run_coroutine_threadsafe(self._begin(), self._own.loop).result()
        except BaseException:
            self._own.close()
            raise
        handle.use(self)

    async def _begin(self) -> tuple[Callers, "asyncio.Task[None]"]:
        secret = await RayStore().get(SECRET)
        if secret is None:
            raise InstanceEnded("the instance was shut down")
        callers = Callers(secret, node=node())
        life = callers.run(partial(watch, self._name), Reporting(self._name))
        return callers, asyncio.get_running_loop().create_task(life)

    def serve(self, application: str, deployments: Iterable[Deployable]) -> None:
        """From now on the handles of these call this application."""
        self._applications.update((each, application) for each in deployments)

    def caller(self, deployment: Deployable) -> RemoteCaller:
        """Its calls wait while it has no replicas. Raises `ConfigError` for what this process has not deployed."""
        application = deployment.application or self._applications.get(deployment)
        if application is None:
            raise ConfigError(f"{deployment.name!r} is not deployed from this process: run() it, or what depends on it")
        return self._callers.caller_of(application, deployment.name)

    def close(self) -> None:
        """End the plane, and what is under way on it; then take back what was deployed from here, and wait for it."""
        handle.use(None)
        self._own.close(self._end())
        with suppress(InstanceEnded, RayError):
            self.client.execute(Forget(self._name))
        self.client.leave()

    async def _end(self) -> None:
        self._following.cancel()
        with suppress(asyncio.CancelledError):
            await self._following
        await self._callers.aclose()
