"""The controller's actor, and what its process needs: the store, the launcher, the secret."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Any, TypeVar

import ray

from app_toolkit.client.commands import Command
from app_toolkit.clock import SystemClock
from app_toolkit.controller.controller import Controller
from app_toolkit.core.reports import Loads
from app_toolkit.engines.ray.actors import remote
from app_toolkit.engines.ray.launcher import RayLauncher, new_secret
from app_toolkit.engines.ray.store import RayStore
from app_toolkit.errors import Conflict
from app_toolkit.interfaces import Snapshot, Version

R = TypeVar("R")

log = logging.getLogger("app_toolkit.ray")

AGAIN_S = 1.0
"""How long one that could not begin is there for who asks why, before Ray brings it back."""

SECRET = "secret"
"""Its key in the store."""


class _Controller:
    """One per cluster, by name. Ray brings it back when it dies; it then adopts what it finds."""

    def __init__(self) -> None:
        # Runs on the actor's own loop, and again after each restart, whether anybody calls or not.
        self._ready: asyncio.Future[Controller] = asyncio.get_running_loop().create_future()
        self._life = asyncio.get_running_loop().create_task(self._live())

    def __repr__(self) -> str:
        """The name that precedes each line of its output."""
        return "controller"

    async def _live(self) -> None:
        try:
            store = RayStore()
            launcher = RayLauncher(await _secret(store))
            controller = Controller(store, launcher, SystemClock())
            await controller.start()
        except Exception as error:
            self._ready.set_exception(error)  # to who asks meanwhile
            log.exception("the controller could not begin")
            await asyncio.sleep(AGAIN_S)
            os._exit(1)  # Ray brings it back, and the store may be reached then
        self._ready.set_result(controller)
        await controller.run()
        if controller.replaced:
            os._exit(0)  # the actor itself lives on in another process
        # Everything is put away, and nobody needs a controller any more.
        await asyncio.to_thread(ray.kill, ray.get_runtime_context().current_actor, no_restart=True)

    async def execute(self, command: Command[R]) -> R:
        """Every operation of operators: see `client/commands.py`."""
        return await command.perform(await self._ready)

    async def here(self) -> int:
        """The process that decides just now."""
        return os.getpid()

    async def watch(
        self, caller: str, seen: Mapping[str, Version], prefix: str | tuple[str, ...] = ""
    ) -> Mapping[str, Snapshot]:
        news: Mapping[str, Snapshot] = await (await self._ready).watch(caller, seen, prefix=prefix)
        return news

    async def report(self, caller: str, loads: Loads) -> bool:
        return (await self._ready).report(caller, loads)


ControllerActor: Any = remote(num_cpus=0, max_restarts=-1, max_concurrency=10_000)(_Controller)


async def _secret(store: RayStore) -> bytes:
    """The cluster's secret: the first controller's choice, and every later one's."""
    known = await store.get(SECRET)
    if known is None:
        with contextlib.suppress(Conflict):  # another controller chose at the same time
            await store.compare_and_set(SECRET, None, new_secret())
        known = await store.get(SECRET)
    assert known is not None
    return known
