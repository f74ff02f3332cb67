"""The desired and the known state of a replica set, and what follows from the states of all.

`control.replica_sets` keeps them and plans their actions.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from app_toolkit.contract.identity import AnySetKey, ReplicaSetKey, are_proxies
from app_toolkit.control.backoff import failed_starts
from app_toolkit.control.reconcile import ReplicaSetRecord, ReplicaSetSpec
from app_toolkit.control.replica_state import Phase
from app_toolkit.types import NodeId

SERVING = (Phase.STARTING, Phase.RECOVERING, Phase.RUNNING)
"""The phases in which a proxy serves or may serve clients."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    record: ReplicaSetRecord
    spec: ReplicaSetSpec | None = None
    """The desired state; None: the replica set was found after a restart and has not been desired since."""
    desired: bool = False
    quarantine: str | None = None
    """Why the replica set is quarantined, which means that no actions are planned for it; None: it is not."""

    @property
    def gone(self) -> bool:
        """Whether the replica set is not desired and has no replicas."""
        return not self.desired and not self.record.replicas


def specified(
    replica_sets: Mapping[AnySetKey, ReplicaSet],
    desired: Mapping[AnySetKey, ReplicaSetSpec],
    *,
    starts: int,
    proxies_linger: bool = False,
) -> dict[AnySetKey, ReplicaSet]:
    """Return the replica sets after exactly those in `desired` have become desired.

    New replica sets have no replicas yet. Replica sets that are not in `desired` are orphaned, and their replicas
    retire. If a spec has not changed, the same object is returned.

    Parameters:
        replica_sets: The present replica sets by key.
        desired: The desired specs by key.
        starts: The highest number of starts of any replica set in this epoch. A new replica set continues from this
            number, so that ids stay unique if its key was used before.
        proxies_linger: Whether orphaned proxies keep running after they have drained.
    """
    all_sets = {
        key: replica_sets.get(key) or ReplicaSet(ReplicaSetRecord(key, starts=starts))
        for key in (*replica_sets, *desired)
    }
    return {
        key: _desired(replica_set, desired[key])
        if key in desired
        else _orphaned(replica_set, lingers=proxies_linger and are_proxies(key))
        for key, replica_set in all_sets.items()
    }


def _desired(replica_set: ReplicaSet, spec: ReplicaSetSpec) -> ReplicaSet:
    if replica_set.desired and replica_set.spec == spec:
        return replica_set
    record = replica_set.record
    if not failed_starts(record.failures, spec.template_hash):
        # The last error was before this change, so it is not why the replica set is not up yet.
        record = replace(record, last_error=None)
    return replace(replica_set, spec=spec, record=record, desired=True)


def _orphaned(replica_set: ReplicaSet, *, lingers: bool) -> ReplicaSet:
    spec = replica_set.spec and replace(replica_set.spec, target=0, lingers=lingers)
    if not replica_set.desired and replica_set.spec == spec:
        return replica_set
    return replace(
        replica_set, spec=spec, desired=False, quarantine=None if replica_set.desired else replica_set.quarantine
    )


def lifted(replica_set: ReplicaSet) -> ReplicaSet:
    """Return the replica set without its quarantine, and without failures that delay its starts."""
    return replace(replica_set, quarantine=None, record=replace(replica_set.record, failures=()))


def recovering(replica_sets: Mapping[AnySetKey, ReplicaSet]) -> bool:
    """Return whether any replica that was found after a restart has not reported its state yet."""
    return any(
        replica.phase is Phase.RECOVERING
        for replica_set in replica_sets.values()
        for replica in replica_set.record.replicas
    )


def occupied(replica_sets: Mapping[AnySetKey, ReplicaSet]) -> set[NodeId]:
    """Return the nodes with replicas that serve requests."""
    return {
        replica.location.node
        for key, replica_set in replica_sets.items()
        if isinstance(key, ReplicaSetKey)
        for replica in replica_set.record.replicas
        if replica.location is not None and replica.phase in (Phase.RUNNING, Phase.DRAINING)
    }


def active_proxies(replica_sets: Mapping[AnySetKey, ReplicaSet]) -> Counter[NodeId]:
    """Return the number of proxies by node that serve or may serve clients."""
    return Counter(
        key.node
        for key, replica_set in replica_sets.items()
        if are_proxies(key)
        for replica in replica_set.record.replicas
        if replica.phase in SERVING
    )
