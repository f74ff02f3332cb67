"""Sticky: a client keeps the replica that serves it, unless that has no room or clearly more load than another one."""

from collections.abc import Collection, Sequence

from app_toolkit.exchange.permits import ReplicaPermits
from app_toolkit.exchange.placement.choice import Choice
from app_toolkit.exchange.placement.interface import Placement, Replicas
from app_toolkit.exchange.placement.least_loaded import another, is_clearly_less
from app_toolkit.exchange.preference import Preference
from app_toolkit.types import ReplicaId


class Sticky:
    """Prefers the replica of the client. A request that has waited takes any replica."""

    def __init__(self, replicas: Replicas, otherwise: Placement) -> None:
        """`otherwise`: places the requests of clients whose replica has no room."""
        self._replicas = replicas
        self._otherwise = otherwise

    def rank(
        self,
        preference: Preference,
        avoid: Collection[ReplicaId],
        free: Sequence[ReplicaPermits] | None = None,
        since: float | None = None,
    ) -> Choice | None:
        if free is None and not avoid and preference.replica is not None:
            current = self._replicas.by_id.get(preference.replica)
            if current is not None and current.has_room:
                return self._replicas.choices[self._kept(current, preference.streamed)]
        return self._otherwise.rank(preference, avoid, free, since)

    def _kept(self, current: ReplicaPermits, streamed: bool) -> ReplicaPermits:
        """Return the replica of a client, or another replica that has room and clearly less load."""
        replicas = self._replicas.all
        if len(replicas) < 2:
            return current
        other = another(replicas, current, self._replicas.rng)
        moves = is_clearly_less(other.load(), current.load(), streamed=streamed) and other.has_room
        return other if moves else current
