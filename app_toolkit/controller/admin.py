"""The desired state of the admin process: whether the instance has one, its node and its port."""

import hashlib
import json
from typing import Any

from app_toolkit.config.models import AdminOptions, HTTPOptions
from app_toolkit.core.identity import AnySetKey, ProcessSetKey
from app_toolkit.core.reconcile import ReplicaSetSpec
from app_toolkit.interfaces import AdminSpec
from app_toolkit.types import Address, NodeId, ReplicaId

PORT = 8_001
"""The port that the admin process prefers if no option names one."""

START_S = 10.0
"""Seconds after the first application was applied until the admin process starts, even if no application is up."""


class Admin:
    """The desired state of the admin process, of which an instance has one, on the node of the controller.

    It starts once an application and a proxy are up, so that it does not delay them, or `START_S` seconds after the
    first application was applied. From then on, it runs until the shutdown.
    """

    def __init__(self, home: NodeId) -> None:
        self.home = home
        self._options = AdminOptions()
        self._port = 0
        """The port that the last admin process has chosen; 0: none has."""
        self._starts_at: float | None = None
        self._is_desired = False

    def move(self, http: HTTPOptions) -> None:
        """Set the options. If those of the admin process have changed, it chooses its port anew."""
        options = AdminOptions(**http.model_dump(include=set(AdminOptions.model_fields)))
        if options != self._options:
            self._options, self._port = options, 0

    def learn(self, address: Address) -> None:
        """Store the port of an admin process that has started at this address. The next one prefers it."""
        self._port = int(address.rpartition(":")[2])

    def start_by(self, at: float) -> None:
        """Let the admin process start at this time, or earlier if it is to start earlier already."""
        self._starts_at = at if self._starts_at is None else min(self._starts_at, at)

    def is_newly_desired(self, now: float) -> bool:
        """Return whether the admin process has become desired since the last call."""
        if self.due is None or now < self.due:
            return False
        self._is_desired = True
        return True

    @property
    def due(self) -> float | None:
        """When the admin process becomes desired; None: it is, or the time is not known."""
        return None if self._is_desired else self._starts_at

    def specs(self) -> dict[AnySetKey, ReplicaSetSpec]:
        """Return the spec of the replica set by its key; empty: no admin process is desired."""
        if not (self._is_desired and self._options.admin):
            return {}
        key = ProcessSetKey("admin", self.home)
        options: dict[str, Any] = self._options.model_dump()
        preferred = self._port or (PORT if self._options.admin_port is None else self._options.admin_port)
        spec = ReplicaSetSpec(
            key=key,
            template_hash=hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12],
            target=1,
            template=AdminSpec(ReplicaId(""), options, self.home, preferred),
            apart=True,  # the old and the new process use the same port
            routed=False,  # clients do not watch snapshots, so the process drains at once
        )
        return {key: spec}
