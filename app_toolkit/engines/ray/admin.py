"""The actor of the admin process."""

from typing import Any

import ray

from app_toolkit.engines.ray.actors import CONTROL, CONTROLLER, GROUPS, NAMESPACE, Actor, RayServices, on, remote
from app_toolkit.engines.ray.client import RayClient
from app_toolkit.host.process import AdminProcess
from app_toolkit.types import ReplicaId

PUSHES = 2
"""Threads that take the metrics of processes. They are separate from the control threads, so that many processes do not
delay a probe."""


class _Admin(Actor):
    def __init__(self, name: ReplicaId) -> None:
        controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
        self._admin = AdminProcess(name, RayServices(), RayClient(controller, joined=False))
        super().__init__(self._admin)

    def __repr__(self) -> str:
        """Return a short name for the output: that of the actor contains the whole ID of its node."""
        return "admin"

    @on("metrics")
    def push_metrics(self, process: str, snapshot: bytes) -> bool:
        return self._admin.push_metrics(process, snapshot)


AdminActor: Any = remote(
    max_restarts=0, num_cpus=0, max_concurrency=CONTROL, concurrency_groups={**GROUPS, "metrics": PUSHES}
)(_Admin)
