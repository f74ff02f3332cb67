"""How everything is put away: in which steps, what is still wanted in each, and how long it may take."""

from collections.abc import Mapping
from enum import Enum, auto

from app_toolkit.core.groups import Group
from app_toolkit.core.reconcile import ANSWER_S, KILL_AGAIN_S, STOP_S, UNROUTE_S, GroupSpec, are_proxies, unwanted
from app_toolkit.core.replica_state import Phase


class Farewell(Enum):
    """The steps, in their order."""

    REQUESTS = auto()
    """The proxies take nothing new and finish what they have, with every replica behind them."""
    REPLICAS = auto()
    """The replicas end, and tell the WebSockets that still pass through the proxies why."""
    PROXIES = auto()


def step(groups: Mapping[str, Group]) -> Farewell:
    """The one that is to be taken: each begins when the one before is done."""
    proxies = [replica for name, group in groups.items() if are_proxies(name) for replica in group.record.replicas]
    if any(proxy.phase is not Phase.STOPPING for proxy in proxies):
        return Farewell.REQUESTS
    return Farewell.PROXIES if all(map(are_proxies, groups)) else Farewell.REPLICAS


def wanted(
    step: Farewell | None, deployments: Mapping[str, GroupSpec], proxies: Mapping[str, GroupSpec]
) -> dict[str, GroupSpec]:
    """The groups that are still wanted in a step; None: nothing is put away, and all of them are."""
    if step is None:
        return {**deployments, **proxies}
    return dict(deployments) if step is Farewell.REQUESTS else {}


def proxies_linger(step: Farewell | None) -> bool:
    """Whether proxies that have drained stay, because something may still pass through them."""
    return step in (Farewell.REQUESTS, Farewell.REPLICAS)


def longest(groups: Mapping[str, Group]) -> float:
    """Seconds within which everything has ended or was to be killed: proxies first, then all others at once."""
    proxies, others = 0.0, 0.0
    for name, group in groups.items():
        if not group.record.replicas:
            continue
        spec = group.spec or unwanted(group.record)
        graceful = spec.graceful_shutdown_timeout_s
        lasts = graceful + max(graceful, STOP_S) + 3 * ANSWER_S + KILL_AGAIN_S
        if any(replica.phase is Phase.RECOVERING for replica in group.record.replicas):
            lasts += spec.startup_timeout_s
        if are_proxies(name):
            proxies = max(proxies, lasts)
        else:
            others = max(others, UNROUTE_S + lasts)
    return proxies + others
