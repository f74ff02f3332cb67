"""Whether the cluster has room for a replica that has no process yet."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    total: Mapping[str, float]
    """What it has when nothing runs on it, by resource."""
    mine: int
    """Replicas of the same deployment and revision that are known to run there."""


@dataclass(frozen=True, slots=True)
class Lack:
    asks: str
    free: str
    for_ever: bool
    """It fits on no node, even on an empty one."""


def lack(
    asks: Mapping[str, float], free: Mapping[str, float], nodes: Collection[Node], max_per_node: int | None
) -> Lack | None:
    """What it waits for; None: there is room.

    `free` is that of all nodes together, because Ray tells no more. So where some nodes have as many replicas as they
    may, whoever is not placed is said to wait: what is free may be free on those.
    """
    fitting = [node for node in nodes if _covers(node.total, asks)]
    open_ = [node for node in fitting if max_per_node is None or node.mine < max_per_node]
    if len(open_) == len(fitting) > 0 and _covers(free, asks):
        return None
    asked = _spoken(asks)
    if len(open_) < len(fitting):
        asked += f" on a node with fewer than {max_per_node} of its replicas ({len(open_)} of {len(fitting)} are such)"
    return Lack(asked, _spoken({name: free.get(name, 0.0) for name in asks}), for_ever=not fitting)


def _covers(amounts: Mapping[str, float], asks: Mapping[str, float]) -> bool:
    return all(amounts.get(name, 0.0) >= amount for name, amount in asks.items())


def _spoken(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items()) or "nothing"
