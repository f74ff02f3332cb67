"""Model holders: a request goes to a replica that holds its key, such as one that has loaded its model.

Replicas report the keys that they hold. A request that is on its way to a replica is assumed to have arrived.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from app_toolkit.contract.holdings import Holdings
from app_toolkit.exchange.permits import ReplicaPermits
from app_toolkit.exchange.placement.choice import Choice
from app_toolkit.exchange.placement.hashed import most_preferred, preferred
from app_toolkit.exchange.placement.interface import Replicas
from app_toolkit.exchange.placement.least_loaded import is_clearly_less
from app_toolkit.exchange.preference import Outcome, Preference
from app_toolkit.types import ReplicaId
from app_toolkit.wire import hop

PREFERENCE_S = 1.0
"""Seconds that a request waits for a replica that holds its key, or for one that may displace a key, while another
replica has room. Long enough for a few short requests to end. Then the request goes to any replica."""

DISPLACEMENT_S = 1.0
"""Seconds between two displacements at one replica. If several keys share one place, each has it for at least so long,
except for requests that have waited for `PREFERENCE_S`."""

HOLDER_WAIT_S = 10.0
"""Seconds after which a request no longer gives way to others although replicas hold its key: these may be stuck."""


class Holders:
    """Prefers the replicas that hold a key, as `place` decides. Of two that do, the second one may have less load."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def rank(
        self,
        preference: Preference,
        avoid: Collection[ReplicaId],
        free: Sequence[ReplicaPermits] | None = None,
        since: float | None = None,
    ) -> Choice | None:
        replicas, key = self._replicas, preference.key
        usable = replicas.usable(avoid, free)
        if not usable:
            return None
        now = asyncio.get_running_loop().time()
        ranking = place(
            key,
            {replica.endpoint.id: replica.holdings for replica in replicas.reachable(avoid)},
            [replica.endpoint.id for replica in usable],
            displaced_s={replica.endpoint.id: now - replica.displaced_at for replica in usable},
            waited_s=0.0 if since is None else now - since,
        )
        if ranking is None:
            return None
        replica, *others = (replicas.by_id[id] for id in ranking.replicas[:2])
        if others and replica.holdings is not None and is_clearly_less(others[0].load(), replica.load()):
            replica = others[0]
        arrives = None if ranking.holds_key else partial(_arrives, replica, key, displaces=ranking.displaces)
        outcome: Outcome = "spilled" if ranking.spilled else "kept"
        return Choice(replica, outcome, ranking.holds_key, ranking.gives_way, arrives)

    def report(self, replica: ReplicaPermits, report: bytes, *, moved: bool) -> bool:
        """Note which keys a replica holds, as it has reported in the field `hop.HOLDINGS`. Return whether that is new.

        `moved`: the replica has refused the request because of its key. Otherwise, a report that was received before
        changes nothing.
        """
        if report == replica.reported and not moved:
            return False
        now = hop.decode_holdings(report)
        if replica.holdings is not None and now.version < replica.holdings.version:
            return False
        replica.holdings, replica.reported = now, report
        self._replicas.reporting = True
        return True


def _arrives(replica: ReplicaPermits, key: str, *, displaces: bool) -> None:
    """Note that a request gets a permit at a replica that does not hold its key."""
    if displaces:
        replica.displaced_at = asyncio.get_running_loop().time()
    if replica.holdings is not None:
        replica.holdings = replica.holdings.with_key(key)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The replicas among which a request with a key is assigned."""

    replicas: list[ReplicaId]
    """Those with room, the most preferred first."""
    holds_key: bool
    """Whether these replicas hold the key."""
    spilled: bool = False
    """Whether a replica that the key prefers to these had no room."""
    displaces: bool = False
    """Whether these replicas must give up another key for this one."""
    gives_way: bool = False
    """Whether requests that displace nothing go first: other replicas hold the key, or these gave up a key less than
    `DISPLACEMENT_S` ago."""


def place(
    key: str,
    reports: Mapping[ReplicaId, Holdings | None],
    with_room: Collection[ReplicaId],
    *,
    displaced_s: Mapping[ReplicaId, float],
    waited_s: float,
) -> Ranking | None:
    """Return the replicas for a request with a key. None: the request waits.

    If replicas hold the key, the request goes to one of these, or to one with a place for another key. If none of them
    has room, it waits for at most `PREFERENCE_S`, and then takes what no other request wants.

    If no replica holds the key, the request goes to a replica with a place for it or without a report. If there is none
    with room, it displaces another key, where none was displaced in the last `DISPLACEMENT_S`, or anywhere after it has
    waited for `PREFERENCE_S`.

    Parameters:
        key: The affinity key.
        reports: The last report of each replica that the request may use; None: the replica has not reported.
        with_room: The replicas that have room for the request now.
        displaced_s: How long ago this caller has displaced a key at each replica, in seconds. It may lack replicas.
        waited_s: How long the request has waited, in seconds.
    """
    holders = {replica for replica, report in reports.items() if report is not None and key in report.keys}
    if at_home := holders.intersection(with_room):
        return Ranking(_ordered(key, at_home), holds_key=True)
    vacant = [id for id in with_room if (report := reports.get(id)) is not None and report.free > 0]
    if holders and not vacant and waited_s < PREFERENCE_S:
        return None
    unknown = [id for id in with_room if reports.get(id) is None]
    others = vacant if holders and vacant else [*vacant, *unknown]
    if others:
        ordered = _ordered(key, others)
        all_ids = [*others, *(id for id, report in reports.items() if report is None and id not in with_room)]
        return Ranking(
            ordered, holds_key=False, spilled=not vacant and most_preferred(key, tuple(all_ids)) != ordered[0]
        )
    calm = [id for id in with_room if displaced_s.get(id, inf) >= DISPLACEMENT_S]
    if calm and (not holders or waited_s >= HOLDER_WAIT_S):
        return Ranking(_ordered(key, calm), holds_key=False, displaces=True)
    if not with_room or waited_s < PREFERENCE_S:
        return None
    return Ranking(_ordered(key, with_room), holds_key=False, displaces=True, gives_way=True)


def _ordered(key: str, replicas: Collection[ReplicaId]) -> list[ReplicaId]:
    return list(replicas) if len(replicas) == 1 else preferred(key, replicas, len(replicas))
