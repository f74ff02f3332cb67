"""The desired state of the proxies: their nodes, their number and their port."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from app_toolkit.config.models import ApplicationSpec, HTTPOptions, ProxyOptions
from app_toolkit.contract.identity import AnySetKey, ProxySetKey
from app_toolkit.contract.replica_spec import ProxySpec
from app_toolkit.control.application_specs import options_hash
from app_toolkit.control.reconcile import ReplicaSetSpec
from app_toolkit.types import Address, NodeId, ReplicaId


def are_needed(edge: str, applications: Iterable[ApplicationSpec]) -> bool:
    """Return whether an instance needs proxies.

    It needs none if the replicas of ingresses accept clients, and each ingress always has one. A request to an ingress
    without replicas would otherwise reach no process.
    """
    ingresses = [
        deployment.config for spec in applications for deployment in spec.deployments if deployment.kind == "ingress"
    ]
    return edge == "proxy" or not ingresses or any(config.least_replicas == 0 for config in ingresses)


EMPTY_S = 30.0
"""Seconds for which a node without replicas keeps its proxies, because a crashed replica may start there again."""


class Proxies:
    """The desired state of the proxies, which run on the node of the controller and on each node with replicas.

    * The node of the controller has proxies from the first application until the shutdown. Requests wait there for the
      first replica, get 404 after the last application was deleted, and the address of the instance does not change.
    * Another node has proxies while a replica runs there, and for `EMPTY_S` seconds after that. A proxy that dies in
      these seconds is not replaced, so no process is started on a node that has left the cluster.
    * All proxies of an instance listen on the same port. If any free port may be used, the first proxy chooses it.
    """

    def __init__(self, home: NodeId) -> None:
        self.home = home
        self.http = HTTPOptions()
        self.port = 0
        """The port that the first proxy has chosen; 0: not known yet."""
        self._until: dict[NodeId, float | None] = {}
        """The other nodes that have proxies, and until when; None: as long as a replica runs there."""
        self._active: dict[NodeId, int] = {}

    def move(self, http: HTTPOptions) -> None:
        """Set the options. If those of the proxies have changed and allow any free port, the port changes, too."""
        if _own(http) != _own(self.http):
            self.port = 0
        self.http = http

    def learn(self, address: Address) -> None:
        """Store the port of a proxy that has started at this address."""
        self.port = int(address.rpartition(":")[2])

    def add_recovered(self, node: NodeId, until: float) -> None:
        """Add the node of proxies that were found after a restart. Its proxies stay until `until` plus `EMPTY_S`, even
        if no replica runs there."""
        if node != self.home:
            self._until[node] = until + EMPTY_S

    def follow(self, occupied: Collection[NodeId], active: Mapping[NodeId, int], now: float) -> None:
        """Choose the nodes that have proxies. `occupied`: the nodes with replicas. `active`: proxies by node."""
        for node in occupied:
            if node != self.home:
                self._until[node] = None
        for node, until in list(self._until.items()):
            if node in occupied:
                continue
            if until is None:
                until = self._until[node] = now + EMPTY_S
            if until <= now or not active.get(node):
                del self._until[node]
        self._active = dict(active)

    @property
    def due(self) -> float | None:
        """When the next node loses its proxies, if nothing happens before; None: none does."""
        return min((until for until in self._until.values() if until is not None), default=None)

    @property
    def spread(self) -> bool:
        """Whether proxies are on several nodes."""
        return bool(self._until)

    @property
    def edge(self) -> Mapping[str, Any] | None:
        """The options with which the replicas of ingresses accept clients; None: only proxies accept them."""
        return _own(self.http) if self.http.edge == "replica" else None

    def specs(self) -> dict[AnySetKey, ReplicaSetSpec]:
        """Return the specs of the replica sets by key. The node of the controller is first."""
        port = self.http.port or self.port
        replica_sets: dict[AnySetKey, ReplicaSetSpec] = {
            ProxySetKey(self.home): self._spec(self.home, self.http.proxies_per_node if port else 1)
        }
        for node, until in self._until.items():
            if port:
                target = self.http.proxies_per_node if until is None else self._active.get(node, 0)
                replica_sets[ProxySetKey(node)] = self._spec(node, min(target, self.http.proxies_per_node))
        return replica_sets

    def _spec(self, node: NodeId, target: int) -> ReplicaSetSpec:
        options = _own(self.http)
        return ReplicaSetSpec(
            key=ProxySetKey(node),
            template_hash=options_hash(options),
            target=target,
            template=ProxySpec(ReplicaId(""), {**options, "port": self.http.port or self.port}, node),
            apart=True,  # old and new proxies use the same port, and may have different options for sharing it
            routed=False,  # clients do not watch snapshots, so a proxy drains at once
        )


def _own(http: HTTPOptions) -> dict[str, Any]:
    return http.model_dump(include=set(ProxyOptions.model_fields))
