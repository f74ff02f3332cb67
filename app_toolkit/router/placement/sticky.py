"""Sticky: a client keeps the replica that serves it, unless that has no room or clearly more load than another one."""

from collections.abc import Collection, Sequence

from app_toolkit.core.preference import Preference
from app_toolkit.router.permits import ReplicaPermits
from app_toolkit.router.placement.choice import Choice
from app_toolkit.router.placement.interface import Placement, Replicas
from app_toolkit.router.placement.least_loaded import another, is_clearly_less
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
            own = self._replicas.by_id.get(preference.replica)
            if own is not None and own.has_room:
                return self._replicas.choices[self._kept(own, preference.streamed)]
        return self._otherwise.rank(preference, avoid, free, since)

    def _kept(self, own: ReplicaPermits, streamed: bool) -> ReplicaPermits:
        """Return the replica of a client, or another replica that has room and clearly less load."""
        replicas = self._replicas.all
        if len(replicas) < 2:
            return own
        other = another(replicas, own, self._replicas.rng)
        moves = is_clearly_less(other.load(), own.load(), streamed=streamed) and other.has_room
        return other if moves else own
