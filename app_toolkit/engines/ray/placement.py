"""Decides whether the cluster has room for a replica that has no process yet."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from app_toolkit.engines.amounts import Lack, format_amounts

ROUNDING = 0.0001
"""Ray counts resources in units of one ten-thousandth."""


@dataclass(frozen=True, slots=True)
class Node:
    total: Mapping[str, float]
    """The resources of the empty node, by name."""
    mine: int
    """The number of replicas of the same deployment and revision that are known to run there."""


def lack(
    asks: Mapping[str, float], free: Mapping[str, float], nodes: Collection[Node], max_per_node: int | None
) -> Lack | None:
    """Return the resources that a replica waits for; None: there is room.

    `free`: the free resources of all nodes together, because Ray documents no others. If some nodes already have
    `max_per_node` replicas, only resources that cannot be free on those nodes count. A replica that Ray has placed, but
    whose process has not started yet, may therefore still count as waiting: if it took the last free resources, or if
    other processes use most of the remaining nodes.
    """
    fitting = [node for node in nodes if _covers(node.total, asks)]
    open_ = [node for node in fitting if max_per_node is None or node.mine < max_per_node]
    closed = [node for node in nodes if node not in open_] if len(open_) < len(fitting) else []
    if open_ and all(
        free.get(name, 0.0) - sum(_most_free(node, name, amount) for node in closed) >= amount
        for name, amount in asks.items()
    ):
        return None
    asked = format_amounts(asks)
    available = {name: free.get(name, 0.0) for name in asks}
    if len(open_) < len(fitting):
        asked += f" on a node with fewer than {max_per_node} of its replicas ({len(open_)} of {len(fitting)} are such)"
    if not fitting:
        return Lack(asked, format_amounts(available), for_ever=True)
    totals = {name: sum(node.total.get(name, 0.0) for node in nodes) for name in asks}
    shown = ", ".join(f"{amount:g} of {totals[name]:g} {name}" for name, amount in available.items())
    return Lack(asked, shown or "nothing", for_ever=False)


def may_be_granted(
    asks: Mapping[str, float], free: Mapping[str, float], nodes: Collection[Node], reserved: Mapping[str, float]
) -> bool:
    """Return whether Ray may already have granted the resources of the replica, because no known replica holds them.

    Ray counts resources as used from the moment at which it grants them, and then starts the process. `held`: the
    resources of all replicas that are known to have a process.
    """
    in_use = {name: sum(node.total.get(name, 0.0) for node in nodes) - free.get(name, 0.0) for name in asks}
    return bool(asks) and all(
        in_use[name] - reserved.get(name, 0.0) >= amount - ROUNDING for name, amount in asks.items()
    )


def _most_free(node: Node, name: str, amount: float) -> float:
    """Return how much of a resource can be free on a node. `amount`: how much each replica on the node uses."""
    return max(0.0, node.total.get(name, 0.0) - node.mine * amount)


def _covers(amounts: Mapping[str, float], asks: Mapping[str, float]) -> bool:
    return all(amounts.get(name, 0.0) >= amount for name, amount in asks.items())
