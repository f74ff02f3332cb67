"""Hashed: a key prefers the same replica at all callers, without a table and without asking each other.

Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM Transactions on Networking 6(1),
1998.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from heapq import nlargest

from app_toolkit.exchange.permits import ReplicaPermits
from app_toolkit.exchange.placement.choice import Choice
from app_toolkit.exchange.placement.interface import Replicas
from app_toolkit.exchange.preference import Preference
from app_toolkit.types import ReplicaId


class Hashed:
    """Prefers replicas in the order of the hash. A key does not wait for a replica while another one has room."""

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
        if free is None and not avoid and replicas.ids:
            home = replicas.by_id[most_preferred(key, replicas.ids)]
            if home.has_room:
                return Choice(home, "kept")
        usable = [replica.endpoint.id for replica in replicas.usable(avoid, free)]
        if not usable:
            return None
        best = usable[0] if len(usable) == 1 else preferred(key, usable, 1)[0]
        reachable = [*usable, *(replica.endpoint.id for replica in replicas.reachable(avoid))]
        return Choice(replicas.by_id[best], "kept" if best == most_preferred(key, tuple(reachable)) else "spilled")


def preferred(key: str, replicas: Iterable[ReplicaId], count: int) -> list[ReplicaId]:
    """Return the `count` replicas that a key prefers most, or all if there are fewer.

    If a replica is added or removed, only the keys that prefer this replica move.
    """
    return nlargest(count, replicas, partial(_weight, key))


@lru_cache(4_096)  # a client sends several requests with its key
def most_preferred(key: str, replicas: tuple[ReplicaId, ...]) -> ReplicaId:
    """Return the replica that a key prefers most. There must be at least one."""
    return max(replicas, key=partial(_weight, key))


def _weight(key: str, replica: ReplicaId) -> bytes:
    return blake2b(f"{replica}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
