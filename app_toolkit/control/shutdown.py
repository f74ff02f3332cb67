"""The shutdown of an instance: its steps, the replica sets that are desired in each step, and its deadline."""

from collections.abc import Mapping
from enum import Enum, auto

from app_toolkit.contract.identity import AnySetKey, ReplicaSetKey, are_proxies
from app_toolkit.control.reconcile import (
    ANSWER_S,
    FOUND_S,
    KILL_RETRY_S,
    STOP_S,
    UNROUTE_S,
    ReplicaSetSpec,
    orphan_spec,
)
from app_toolkit.control.replica_set import ReplicaSet
from app_toolkit.control.replica_state import Phase


class ShutdownStep(Enum):
    """The steps in order."""

    REQUESTS = auto()
    """The proxies refuse new requests and finish the ongoing ones. All replicas still run."""
    EDGES = auto()
    """The replicas that accept clients end, as the proxies do in the step before. The others, which they call, run."""
    REPLICAS = auto()
    """The replicas end. They close the WebSockets that still pass through the proxies."""
    PROXIES = auto()
    """The proxies end."""


def step(replica_sets: Mapping[AnySetKey, ReplicaSet]) -> ShutdownStep:
    """Return the present step. Each step begins when the previous one is complete."""
    proxies = [
        replica
        for key, replica_set in replica_sets.items()
        if are_proxies(key)
        for replica in replica_set.record.replicas
    ]
    if any(proxy.phase is not Phase.STOPPING for proxy in proxies):
        return ShutdownStep.REQUESTS
    if any(
        replica.location is not None and replica.location.edge
        for replica_set in replica_sets.values()
        for replica in replica_set.record.replicas
    ):
        return ShutdownStep.EDGES
    has_replicas = any(isinstance(key, ReplicaSetKey) for key in replica_sets)
    return ShutdownStep.REPLICAS if has_replicas else ShutdownStep.PROXIES


def desired(
    step: ShutdownStep | None,
    deployments: Mapping[AnySetKey, ReplicaSetSpec],
    proxies: Mapping[AnySetKey, ReplicaSetSpec],
) -> dict[AnySetKey, ReplicaSetSpec]:
    """Return the replica sets that are desired in a step. None: there is no shutdown, and all of them are desired."""
    match step:
        case None:
            return {**deployments, **proxies}
        case ShutdownStep.REQUESTS:
            return dict(deployments)
        case ShutdownStep.EDGES:
            return {key: spec for key, spec in deployments.items() if not spec.edge}
        case ShutdownStep.REPLICAS | ShutdownStep.PROXIES:
            return {}


def proxies_linger(step: ShutdownStep | None) -> bool:
    """Return whether proxies keep running after they have drained, because WebSockets may still pass through them."""
    return step in (ShutdownStep.REQUESTS, ShutdownStep.EDGES, ShutdownStep.REPLICAS)


def longest(replica_sets: Mapping[AnySetKey, ReplicaSet]) -> float:
    """Return the seconds within which all processes have ended or were killed, in the order of the steps."""
    proxies, edges, others = 0.0, 0.0, 0.0
    for key, replica_set in replica_sets.items():
        if not replica_set.record.replicas:
            continue
        spec = replica_set.spec or orphan_spec(replica_set.record)
        graceful = spec.config.graceful_shutdown_timeout_s
        lasts = graceful + max(graceful, STOP_S) + 3 * ANSWER_S + KILL_RETRY_S
        if any(replica.phase is Phase.RECOVERING for replica in replica_set.record.replicas):
            lasts += FOUND_S
        if not isinstance(key, ReplicaSetKey):
            proxies = max(proxies, lasts)
        elif spec.edge:
            edges = max(edges, UNROUTE_S + lasts)
        else:
            others = max(others, UNROUTE_S + lasts)
    return proxies + edges + others
