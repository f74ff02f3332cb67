"""Chooses the replicas for a request with an affinity key: those that hold the key, or else those that it prefers.

A request with a `Pinned` key has a session that only one replica knows (`core.sessions`). It waits for this replica as
long as the replica exists.

A replica *holds* a key if it has what requests with this key need, such as a model that it has loaded. Replicas report
the keys that they hold. Without a report, a key prefers replicas by rendezvous hashing: all callers agree without
asking each other.

Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM Transactions on Networking 6(1),
1998.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from heapq import nlargest
from math import inf
from typing import Literal

from app_toolkit.types import ReplicaId

PREFERENCE_S = 1.0
"""Seconds that a request waits for a replica that holds its key, or for one that may displace a key, while another
replica has room. Long enough for a few short requests to end. Then the request goes to any replica."""

DISPLACEMENT_S = 1.0
"""Seconds between two displacements at one replica. If several keys share one place, each has it for at least so long,
except for requests that have waited for `PREFERENCE_S`."""

HOLDER_WAIT_S = 10.0
"""Seconds after which a request no longer gives way to others although replicas hold its key: these may be stuck."""

MOST_KEYS = 128
"""The maximum number of keys in one report. The others count as keys that the replica does not hold."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """The key of a session that only one replica knows."""

    replica: str
    """The digest of the replica (`core.sessions.digest`)."""
    id: str
    """The key that applies once the replica is gone. Empty: there is none, as for a request without a key."""


Key = str | Pinned
"""An affinity key."""


def hashed(key: Key | None) -> str | None:
    """Return the part of a key that is hashed. None: there is none."""
    return (key.id if isinstance(key, Pinned) else key) or None


Outcome = Literal["kept", "spilled", "gone"]
"""What became of the key of an attempt.

* kept: its session is at the replica, the replica holds the key, or the key prefers the replica.
* spilled: that replica had no room, so another one got the request.
* gone: the replica of the session does not exist any more.
"""


@dataclass(frozen=True, slots=True)
class Holdings:
    """The keys of one replica, as it reports them."""

    version: int
    """Increases with each change. A report with a lower version than a previous one is out of date."""
    held: tuple[str, ...]
    """The most recently used key first. The last one is given up first."""
    free: int
    """The number of keys that the replica can hold in addition, without giving up another one."""

    def with_key(self, key: str) -> "Holdings":
        """Return what the replica will report when a request with this key has arrived."""
        others = self.held if key in self.held or self.free > 0 else self.held[:-1]
        held = (key, *(each for each in others if each != key))
        return Holdings(self.version, held, self.free - (len(held) - len(self.held)))


@dataclass(frozen=True, slots=True)
class Placement:
    """The replicas among which a request with a key is assigned."""

    replicas: list[ReplicaId]
    """Those with room, the most preferred first."""
    held: bool
    """Whether these replicas hold the key."""
    spilled: bool = False
    """Whether a replica that the key prefers to these had no room."""
    displaces: bool = False
    """Whether these replicas must give up another key for this one."""
    gives_way: bool = False
    """Whether requests that displace nothing go first: other replicas hold the key, or these gave up a key less than
    `DISPLACEMENT_S` ago."""


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


def place(
    key: str,
    reports: Mapping[ReplicaId, Holdings | None],
    with_room: Collection[ReplicaId],
    *,
    displaced_s: Mapping[ReplicaId, float],
    waited_s: float,
) -> Placement | None:
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
    holders = {replica for replica, report in reports.items() if report is not None and key in report.held}
    if at_home := holders.intersection(with_room):
        return Placement(_ordered(key, at_home), held=True)
    vacant = [id for id in with_room if (report := reports.get(id)) is not None and report.free > 0]
    if holders and not vacant and waited_s < PREFERENCE_S:
        return None
    unknown = [id for id in with_room if reports.get(id) is None]
    others = vacant if holders and vacant else [*vacant, *unknown]
    if others:
        ordered = _ordered(key, others)
        known = [*others, *(id for id, report in reports.items() if report is None and id not in with_room)]
        return Placement(ordered, held=False, spilled=not vacant and most_preferred(key, tuple(known)) != ordered[0])
    calm = [id for id in with_room if displaced_s.get(id, inf) >= DISPLACEMENT_S]
    if calm and (not holders or waited_s >= HOLDER_WAIT_S):
        return Placement(_ordered(key, calm), held=False, displaces=True)
    if not with_room or waited_s < PREFERENCE_S:
        return None
    return Placement(_ordered(key, with_room), held=False, displaces=True, gives_way=True)


def _ordered(key: str, replicas: Collection[ReplicaId]) -> list[ReplicaId]:
    return list(replicas) if len(replicas) == 1 else preferred(key, replicas, len(replicas))
