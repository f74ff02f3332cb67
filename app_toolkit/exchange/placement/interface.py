"""The interface of all placements, and what they see of the replicas."""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Protocol

from app_toolkit.exchange.attempts import NO_OTHER
from app_toolkit.exchange.permits import ReplicaPermits
from app_toolkit.exchange.placement.choice import Choice
from app_toolkit.exchange.preference import Preference
from app_toolkit.exchange.session_pins import digest
from app_toolkit.types import ReplicaId


class Placement(Protocol):
    """Chooses the replica for requests with one kind of preference."""

    def rank(
        self,
        preference: Preference,
        avoid: Collection[ReplicaId],
        free: Sequence[ReplicaPermits] | None = None,
        since: float | None = None,
    ) -> Choice | None:
        """Return the most preferred replica with room. None: the request waits.

        Parameters:
            preference: That of the request.
            avoid: The replicas that have failed for this request, see `Replicas.usable`.
            free: The replicas with room, for a request that has waited. None: it has not waited. Nearly always, the
                replica is then found in constant time, whatever the number of replicas.
            since: When the request began to wait, on the clock of the event loop. None: it has not waited.
        """


class Replicas:
    """The replicas of one router."""

    __slots__ = ("_by_digest", "all", "by_id", "choices", "ids", "reporting", "rng")

    def __init__(self, rng: Random) -> None:
        """`rng`: the random numbers of all placements."""
        self.rng = rng
        self.update({})

    def update(self, by_id: Mapping[ReplicaId, ReplicaPermits]) -> None:
        self.by_id = by_id
        self.all = tuple(by_id.values())
        self.ids = tuple(by_id)
        #: The choice of each replica for requests without a key, made once, because most requests get one of these.
        self.choices = {replica: Choice(replica) for replica in self.all}
        #: Whether a replica has reported which keys it holds.
        self.reporting = any(replica.holdings is not None for replica in self.all)
        #: None: none has been needed since the last `update`.
        self._by_digest: dict[str, ReplicaPermits] | None = None

    def with_session(self, session: str) -> ReplicaPermits | None:
        """Return the replica with this digest. None: it is gone."""
        if self._by_digest is None:
            self._by_digest = {digest(replica.endpoint.id): replica for replica in self.all}
        return self._by_digest.get(session)

    def free(self) -> list[ReplicaPermits]:
        return [replica for replica in self.all if replica.has_room]

    def usable(
        self, avoid: Collection[ReplicaId], free: Sequence[ReplicaPermits] | None = None
    ) -> Sequence[ReplicaPermits]:
        """Return the replicas with room that a request may use.

        Replicas that have failed for the request are used only if there is no other replica. With `NO_OTHER` among
        them, they are not used, and the request waits. `free`: the replicas with room; None: all that have room.
        """
        if free is None:
            free = self.free()
        if not avoid or not free:
            return free
        others = [replica for replica in free if replica.endpoint.id not in avoid]
        if others or NO_OTHER in avoid:
            return others
        return free if all(id in avoid for id in self.ids) else others

    def reachable(self, avoid: Collection[ReplicaId]) -> list[ReplicaPermits]:
        """Return the replicas that a request may use, now or when they have room."""
        return [
            replica
            for replica in self.all
            if replica.rest is None and not replica.endpoint.unresponsive and replica.endpoint.id not in avoid
        ]
