"""The actor of the controller."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any, TypeVar

import ray

from app_toolkit.contract.loads import Compared, Loads, Lost
from app_toolkit.control.command import Command
from app_toolkit.engines.ray.actors import RayServices, remote
from app_toolkit.engines.ray.client import RayClient
from app_toolkit.engines.ray.launcher import RayProcesses
from app_toolkit.host.services import CONTROLLER
from app_toolkit.interfaces import Snapshot, Version
from app_toolkit.operate.controller_host import ControllerHost

R = TypeVar("R")


class _Controller:
    """The actor of the controller. Its name is unique in the cluster.

    Ray restarts it when it dies. It then takes over the replicas and proxies that run.
    """

    def __init__(self, *, lasting: bool = False) -> None:
        """`lasting`: as of `Controller`. Ray passes it again after each restart."""
        self._actor = ray.get_runtime_context().current_actor
        client = RayClient(self._actor)
        self._host = ControllerHost(RayServices(), RayProcesses(), client, lasting=lasting)
        # Runs on the actor's own loop. Ray also calls this after each restart, without any other call.
        self._life = asyncio.get_running_loop().create_task(self._live())

    def __repr__(self) -> str:
        """Return the name that precedes each line of output of this process."""
        return CONTROLLER

    async def _live(self) -> None:
        if not await self._host.run():
            os._exit(1)  # Ray restarts the process, unless the actor continues in another one
        # The instance has shut down, so Ray must not restart the controller.
        await asyncio.to_thread(ray.kill, self._actor, no_restart=True)

    async def here(self) -> int:
        """Return the process ID of the controller."""
        return os.getpid()

    # As of `ControllerHost`

    async def execute(self, command: Command[R]) -> R:
        return await self._host.execute(command)

    async def watch(
        self, name: str, seen: Mapping[str, Version], prefix: str | tuple[str, ...] = ""
    ) -> Mapping[str, Snapshot]:
        return await self._host.watch(name, seen, prefix)

    async def report(self, name: str, loads: Loads, compared: Compared, lost: Lost) -> bool:
        return await self._host.report(name, loads, compared, lost)

    async def push_metrics(self, process: str, snapshot: bytes) -> tuple[bool, float]:
        return await self._host.push_metrics(process, snapshot)


ControllerActor: Any = remote(num_cpus=0, max_restarts=-1, max_concurrency=10_000)(_Controller)
