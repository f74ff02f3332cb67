"""Which nodes have proxies, how many, and on which port."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from app_toolkit.config.models import HTTPOptions, RayActorOptions
from app_toolkit.core.reconcile import GroupSpec, proxies_of
from app_toolkit.interfaces import ProxySpec
from app_toolkit.types import Address, NodeId, ReplicaId

EMPTY_S = 30.0
"""How long a node without a replica keeps its proxies: a replica that crashed is back by then, perhaps there."""


class Proxies:
    """What is wanted of the proxies: they are where the replicas are, and at home.

    * The controller's own node has them as long as there is any application: requests wait there for the first
      replica, and the address that people were told stays.
    * Another node has them while a replica runs there, and `EMPTY_S` longer; what dies in that time is not brought
      back, so nothing is started on a node that is gone.
    * All of an instance listen on one port. Where that is any port, one proxy finds it, and the others follow.
    """

    def __init__(self, home: NodeId) -> None:
        self.home = home
        self.http = HTTPOptions()
        #: Where a proxy that was told to take any port came to listen; 0: none has said so yet.
        self.port = 0
        self._until: dict[NodeId, float | None] = {}
        """Nodes beside home that have proxies, and until when; None: as long as a replica runs there."""
        self._living: dict[NodeId, int] = {}

    def move(self, http: HTTPOptions, *, stay: bool = False) -> None:
        """From now on they are to listen like this; `stay`: on the port that they have, if any will do."""
        self.http, self.port = http, self.port if stay else 0

    def learn(self, address: Address) -> None:
        """One listens there."""
        self.port = int(address.rpartition(":")[2])

    def found(self, node: NodeId, until: float) -> None:
        """After a restart: some are there, and stay until then whether or not a replica is known to run there."""
        if node != self.home:
            self._until[node] = until + EMPTY_S

    def follow(self, occupied: Collection[NodeId], living: Mapping[NodeId, int], now: float) -> None:
        """Replicas run on the nodes that are `occupied`; `living` says how many proxies a node has."""
        for node in occupied:
            if node != self.home:
                self._until[node] = None
        for node, until in list(self._until.items()):
            if node in occupied:
                continue
            if until is None:
                until = self._until[node] = now + EMPTY_S
            if until <= now or not living.get(node):
                del self._until[node]
        self._living = dict(living)

    @property
    def due(self) -> float | None:
        """When a node loses its proxies, if nothing happens before."""
        return min((until for until in self._until.values() if until is not None), default=None)

    @property
    def any_living(self) -> bool:
        """Any of them serves, or may."""
        return bool(self._living)

    @property
    def spread(self) -> bool:
        """They are on several nodes."""
        return bool(self._until)

    def wanted(self) -> dict[str, GroupSpec]:
        """The groups by name, that of home first."""
        known = self.http.port or self.port
        groups = {proxies_of(self.home): self._spec(self.home, self.http.proxies_per_node if known else 1)}
        for node, until in self._until.items():
            if known:
                target = self.http.proxies_per_node if until is None else self._living.get(node, 0)
                groups[proxies_of(node)] = self._spec(node, min(target, self.http.proxies_per_node))
        return groups

    def _spec(self, node: NodeId, target: int) -> GroupSpec:
        options: dict[str, Any] = self.http.model_dump()
        return GroupSpec(
            group=proxies_of(node),
            revision=hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12],
            target=target,
            template=ProxySpec(ReplicaId(""), {**options, "port": self.http.port or self.port}, node),
            options=RayActorOptions(num_cpus=0),
            apart=True,  # the old and the new want the same port, and may not agree on whether it is shared
            routed=False,  # clients are nobody's callers: a proxy drains as soon as it is told
        )
