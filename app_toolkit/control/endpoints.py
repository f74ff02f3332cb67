"""Publishes the endpoints of each deployment, and waits until callers have acknowledged the removal of a replica."""

from collections.abc import Mapping

from app_toolkit.contract import snapshots
from app_toolkit.contract.identity import AnySetKey, ReplicaSetKey, replica_set_of
from app_toolkit.control import publication
from app_toolkit.control.publisher import Publisher
from app_toolkit.control.replica_set import ReplicaSet, recovering
from app_toolkit.control.replica_state import Phase
from app_toolkit.interfaces import REPLICAS, Version
from app_toolkit.types import ReplicaId


class EndpointPublisher:
    """Publishes the endpoints of each replica set that has callers, and tracks replicas until no caller uses them."""

    def __init__(self, publisher: Publisher, recover_until: float) -> None:
        self._publisher = publisher
        self._recover_until: float | None = recover_until
        """When the recovery ends, in which found replicas report their state; None: it has ended."""
        self._unrouting: dict[ReplicaId, Version] = {}
        """The replicas that are no longer published, with the version of the first snapshot without them."""

    @property
    def due(self) -> float | None:
        """When a replica may be released or the recovery ends, if nothing happens before; None: never."""
        expiry = self._publisher.next_expiry() if self._unrouting else None
        return min((at for at in (expiry, self._recover_until) if at is not None), default=None)

    @property
    def is_awaited(self) -> bool:
        """Whether any removed replica waits for acknowledgements of callers."""
        return bool(self._unrouting)

    def publish(self, key: AnySetKey, replica_set: ReplicaSet, now: float) -> bool:
        """Publish the endpoints of a replica set if they have changed. Return whether any replica was removed."""
        if not isinstance(key, ReplicaSetKey):
            return False
        replicas = replica_set.record.replicas
        if self._recover_until is not None and recovering({key: replica_set}):
            return False  # the snapshot would have fewer endpoints than the last published one, which callers still use
        published_as = _published_as(key)
        snapshot = publication.replica_set_snapshot(
            replica_set.spec, replicas, now, replica_set.record.failures, replica_set.record.last_error
        )
        if snapshot is not None:
            self._publisher.publish(published_as, snapshots.encode(snapshot))
        version = self._publisher.version(published_as) or Version(self._publisher.epoch, 0)
        leaving = [replica.id for replica in publication.unrouting(replicas) if replica.id not in self._unrouting]
        self._unrouting.update(dict.fromkeys(leaving, version))
        return bool(leaving)

    def remove(self, key: AnySetKey) -> None:
        """Remove a replica set."""
        self._publisher.remove(_published_as(key))

    def released(self, by_key: Mapping[AnySetKey, ReplicaSet]) -> list[ReplicaId]:
        """Return the removed replicas that no caller uses any more. Each is returned once."""
        gone = []
        for id, version in list(self._unrouting.items()):
            key = replica_set_of(id)
            record = by_key[key].record.replica(id) if key in by_key else None
            drains = record is not None and record.phase is Phase.DRAINING
            if drains and not self._publisher.acknowledged(_published_as(key), version):
                continue
            del self._unrouting[id]
            if drains:
                gone.append(id)
        return gone

    def end_recovery(self, by_key: Mapping[AnySetKey, ReplicaSet], now: float) -> bool:
        """End the recovery once all replicas have reported their state or the time is over.

        From then on, every replica set is published, and callers are notified of the removal of all other keys. Returns
        whether the recovery has ended in this call.
        """
        if self._recover_until is not None and now < self._recover_until and recovering(by_key):
            return False
        ends, self._recover_until = self._recover_until is not None, None
        if ends:
            self._publisher.settle()
        return ends


def _published_as(replica_set: AnySetKey) -> str:
    return f"{REPLICAS}{replica_set}"
