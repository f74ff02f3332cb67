"""Chooses the replicas that a key prefers, by rendezvous hashing: all callers agree without asking each other.

Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM Transactions on Networking 6(1),
1998.
"""

from collections.abc import Iterable
from hashlib import blake2b
from heapq import nlargest

from app_toolkit.types import ReplicaId


def preferred(key: str, replicas: Iterable[ReplicaId], count: int) -> list[ReplicaId]:
    """Return the `count` replicas that a key prefers most, or all if there are fewer.

    If a replica is added or removed, only the keys that prefer this replica move.
    """

    def weight(replica: ReplicaId) -> bytes:
        return blake2b(f"{replica}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()

    return nlargest(count, replicas, weight)
