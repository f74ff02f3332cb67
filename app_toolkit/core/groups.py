"""All groups side by side: what is wanted of each, and what is known."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from app_toolkit.core.reconcile import GroupRecord, GroupSpec, are_proxies, node_of
from app_toolkit.core.replica_state import Phase
from app_toolkit.types import NodeId

SERVING = (Phase.STARTING, Phase.RECOVERING, Phase.RUNNING)
"""A proxy in one of these phases serves, or may."""


@dataclass(frozen=True, slots=True)
class Group:
    record: GroupRecord
    spec: GroupSpec | None = None
    """None: it was found after a restart, and nobody has wanted it since."""
    wanted: bool = False
    quarantine: str | None = None
    """Why it is not looked after any more."""

    @property
    def gone(self) -> bool:
        """Nobody wants it, and nothing is left of it."""
        return not self.wanted and not self.record.replicas


def specified(
    groups: Mapping[str, Group], wanted: Mapping[str, GroupSpec], *, starts: int, proxies_linger: bool = False
) -> dict[str, Group]:
    """The groups once exactly those in `wanted` are: what is new is there without replicas, what is left over retires,
    and of whose spec stays as it is the same object is given.

    `starts` is the highest that any group has counted to in this epoch: one that comes back under an old name counts
    on from there. `proxies_linger`: those that are left over stay once they have drained.
    """
    known = {name: groups.get(name) or Group(GroupRecord(name, starts=starts)) for name in (*groups, *wanted)}
    return {
        name: _wanted(group, wanted[name])
        if name in wanted
        else _left_over(group, lingers=proxies_linger and are_proxies(name))
        for name, group in known.items()
    }


def _wanted(group: Group, spec: GroupSpec) -> Group:
    return group if group.wanted and group.spec == spec else replace(group, spec=spec, wanted=True)


def _left_over(group: Group, *, lingers: bool) -> Group:
    spec = group.spec and replace(group.spec, target=0, lingers=lingers)
    if not group.wanted and group.spec == spec:
        return group
    return replace(group, spec=spec, wanted=False, quarantine=None if group.wanted else group.quarantine)


def lifted(group: Group) -> Group:
    """The group with nothing that holds it back: no quarantine, and no failures to wait after."""
    return replace(group, quarantine=None, record=replace(group.record, failures=()))


def recovering(groups: Mapping[str, Group]) -> bool:
    """Whether somebody who was found has not said what it is."""
    return any(replica.phase is Phase.RECOVERING for group in groups.values() for replica in group.record.replicas)


def occupied(groups: Mapping[str, Group]) -> set[NodeId]:
    """The nodes on which replicas serve."""
    return {
        replica.location.node
        for name, group in groups.items()
        if not are_proxies(name)
        for replica in group.record.replicas
        if replica.location is not None and replica.phase in (Phase.RUNNING, Phase.DRAINING)
    }


def living_proxies(groups: Mapping[str, Group]) -> Counter[NodeId]:
    """How many proxies each node has that serve, or may."""
    return Counter(
        node_of(name)
        for name, group in groups.items()
        if are_proxies(name)
        for replica in group.record.replicas
        if replica.phase in SERVING
    )
