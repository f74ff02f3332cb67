"""Which replicas callers are told of, and which of those that are told no more everybody has let go of."""

from collections.abc import Collection, Mapping

from app_toolkit.controller.board import Board
from app_toolkit.core import groups, posted
from app_toolkit.core.groups import Group
from app_toolkit.core.reconcile import are_proxies, group_of
from app_toolkit.core.replica_state import Phase
from app_toolkit.interfaces import REPLICAS, Version
from app_toolkit.types import ReplicaId


class Publication:
    """Posts the replica set of each group that is called, and waits until nobody goes by an older one."""

    def __init__(self, board: Board, recover_until: float) -> None:
        self._board = board
        self._recover_until: float | None = recover_until
        """Until then at most replicas that were found may say what they are; None: that is over."""
        self._unrouting: dict[ReplicaId, Version] = {}
        """Replicas on their way out, by the first snapshot without them."""
        self._unknown: set[str] = set()
        """Applications of which nobody knows whom callers are to be told of."""

    @property
    def due(self) -> float | None:
        """When somebody may be let go of, or the recovery ends, if nothing happens before."""
        expiry = self._board.next_expiry() if self._unrouting else None
        return min((at for at in (expiry, self._recover_until) if at is not None), default=None)

    @property
    def is_awaited(self) -> bool:
        """Somebody is on the way out who stays until callers have let go."""
        return bool(self._unrouting)

    def publish(self, name: str, group: Group, now: float) -> bool:
        """Post what has changed of a group; whether that put anybody on the way out."""
        if are_proxies(name):
            return False
        replicas = group.record.replicas
        if self._recover_until is not None and groups.recovering({name: group}):
            return False  # a smaller set than the last one published is worse than that one
        key = _key(name)
        value = posted.replica_set(group.spec, replicas, now, group.record.failures, group.record.last_error)
        if value is not None:
            self._board.post(key, value)
        version = self._board.version(key) or Version(self._board.epoch, 0)
        leaving = [replica.id for replica in posted.on_the_way_out(replicas) if replica.id not in self._unrouting]
        self._unrouting.update(dict.fromkeys(leaving, version))
        return bool(leaving)

    def remove(self, name: str) -> None:
        """A group is gone."""
        self._board.remove(_key(name))

    def let_go(self, known: Mapping[str, Group]) -> list[ReplicaId]:
        """Those on the way out that no caller has in its view any more; each is given once."""
        gone = []
        for id, version in list(self._unrouting.items()):
            name = group_of(id)
            record = known[name].record.replica(id) if name in known else None
            drains = record is not None and record.phase is Phase.DRAINING
            if drains and not self._board.acknowledged(_key(name), version):
                continue
            del self._unrouting[id]
            if drains:
                gone.append(id)
        return gone

    def end_recovery(self, known: Mapping[str, Group], now: float, unreadable: Collection[str] = ()) -> bool:
        """Once everyone has said what it is, or has had its time: whether that is just now.

        From then on what is not on the board does not exist, and every group is to be published; but of applications
        that are `unreadable` callers keep what they know, until they are no more.
        """
        if self._recover_until is not None and now < self._recover_until and groups.recovering(known):
            return False
        ends, self._recover_until = self._recover_until is not None, None
        if ends or self._unknown != set(unreadable):
            self._unknown = set(unreadable)
            self._board.settle(tuple(_key(f"{name}/") for name in unreadable))
        return ends


def _key(group: str) -> str:
    return f"{REPLICAS}{group}"
