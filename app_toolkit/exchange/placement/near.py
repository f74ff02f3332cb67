"""Near: a request without a key stays in the process that accepted its client, if a replica there has room."""

from collections.abc import Collection, Sequence

from app_toolkit.exchange.permits import ReplicaPermits
from app_toolkit.exchange.placement.choice import Choice
from app_toolkit.exchange.placement.interface import Placement, Replicas
from app_toolkit.exchange.preference import Preference
from app_toolkit.types import ReplicaId


class Near:
    """Prefers the replica of this process, whatever its load is. A request that has waited takes any replica.

    A router knows only the requests of its process, so it cannot tell which replica has less load.
    """

    def __init__(self, replicas: Replicas, near: ReplicaId, otherwise: Placement) -> None:
        """`near`: the replica of this process. `otherwise`: places the requests for which it has no room."""
        self._replicas = replicas
        self._near = near
        self._otherwise = otherwise

    def rank(
        self,
        preference: Preference,
        avoid: Collection[ReplicaId],
        free: Sequence[ReplicaPermits] | None = None,
        since: float | None = None,
    ) -> Choice | None:
        if free is None and not avoid:
            replica = self._replicas.by_id.get(self._near)
            if replica is not None and replica.has_room:
                return self._replicas.choices[replica]
        return self._otherwise.rank(preference, avoid, free, since)
