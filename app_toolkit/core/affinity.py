"""Chooses the replicas for a request with an affinity key: those that hold the key, or else those that it prefers.

A request with a `Pinned` key has a session that only one replica knows (`core.sessions`). It waits for this replica as
long as the replica exists.

A routing policy of a class is asked only for calls without a key. The built-in one finds the replica that has served
the longest known prefix of a conversation (`Prefixes`), as SGLang's router does with a radix tree. A table of digests
needs less memory, which is bounded.

A replica *holds* a key if it has what requests with this key need, such as a model that it has loaded. Replicas report
the keys that they hold. Without a report, a key prefers replicas by rendezvous hashing: all callers agree without
asking each other.

Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM Transactions on Networking 6(1),
1998. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from heapq import nlargest
from itertools import islice
from math import inf
from typing import Any, Literal

from app_toolkit.core.balance import is_clearly_less
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

MOST_PREFIXES = 10_000
"""The maximum number of prefixes that one caller knows, about 2 MB. A turn of a chat adds two."""

LONGEST_CHAIN = 128
"""The number of messages or pieces of one conversation that are distinguished. A longer conversation is known by the
first ones."""

PIECE = 512
"""The number of characters of a piece of a text: about 128 tokens. Engines cache whole blocks of 16 to 64 tokens."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """The key of a session that only one replica knows."""

    replica: str
    """The digest of the replica (`core.sessions.digest`)."""
    id: str
    """The key that applies once the replica is gone. Empty: there is none, as for a request without a key."""


Key = str | Pinned
"""An affinity key."""


def hashed(key: "Preference | None") -> str | None:
    """Return the part of a key that is hashed. None: there is none."""
    if isinstance(key, Pinned):
        key = key.id
    return key if isinstance(key, str) and key else None


Outcome = Literal["kept", "spilled", "gone"]
"""What became of the key of an attempt, or of the preference that a routing policy had for it.

* kept: its session is at the replica, the replica holds the key, or the key or the policy prefers the replica.
* spilled: another replica got the request, because that one had no room, or clearly more load than others.
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


# Routing policies


@dataclass(frozen=True, slots=True)
class RoutedCall:
    """A call whose replica is chosen by a routing policy."""

    method: str
    args: tuple[Any, ...]
    """The positional arguments. The result of another call that was passed on without being read is None."""
    kwargs: Mapping[str, Any]
    """The keyword arguments, likewise."""


@dataclass(frozen=True, slots=True)
class RoutedReplica:
    """A replica as a routing policy sees it. The numbers are those of this caller; other processes call, too."""

    id: str
    ongoing_requests: int
    """The calls of this caller that run at the replica."""
    open_streams: int
    """The open streams of this caller at the replica, which hold no slots."""
    has_room: bool
    """Whether the call can go to this replica now."""


class Routed(ABC):
    """What a routing policy knows about one call."""

    @abstractmethod
    def rank(self, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
        """Return the ids of the replicas that the call prefers, the most preferred first. Empty: it prefers none."""

    @abstractmethod
    def granted(self, replica: ReplicaId) -> Outcome | None:
        """Note that the call goes to this replica. Return what became of its preference; None: it had none."""


Preference = Key | Routed
"""What decides which replicas a request or call prefers."""


def prefixes(value: object) -> tuple[bytes, ...]:
    """Return a digest for each prefix of a conversation or text, the shortest first. Empty: the value is neither.

    A conversation is a list of messages, an object with `messages` such as a `ChatRequest`, or a dict with them. Each
    message has a `role`, as an attribute or a key. There is a digest for each message, except for system messages at
    the beginning, which many conversations share. A text has a digest for each `PIECE` characters.
    """
    chain, digests = blake2b(digest_size=16), []
    for piece, counts in islice(_pieces(value), LONGEST_CHAIN):
        data = piece.encode("utf-8", "surrogatepass")
        chain.update(b"%d:%b" % (len(data), data))
        if counts:
            digests.append(chain.digest())
    return tuple(digests)


def _pieces(value: object) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a value, and whether a prefix may end with each."""
    if isinstance(value, str):
        yield from ((value[at : at + PIECE], True) for at in range(0, len(value) - PIECE + 1, PIECE))
        return
    messages = value.get("messages") if isinstance(value, Mapping) else getattr(value, "messages", value)
    if not isinstance(messages, list | tuple):
        return
    begun = False
    for message in messages:
        role = _field(message, "role")
        if not isinstance(role, str):
            return
        begun = begun or role not in ("system", "developer")
        # Without reasoning, because clients do not send it back.
        said = [_field(message, name) for name in ("text", "content", "tool_calls", "tool_call_id", "attachments")]
        texts = [each if isinstance(each, str) else repr(each) for each in said if each]
        yield "\0".join((role, *texts)), begun


def _field(message: object, name: str) -> object:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


class Prefixes:
    """The replicas that have last served the prefixes that one caller knows, at most `most`.

    A prefix is forgotten if it has not been the longest known prefix of a call for the longest time.
    """

    def __init__(self, most: int = MOST_PREFIXES) -> None:
        self._most = most
        self._replicas: OrderedDict[bytes, ReplicaId] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def longest(self, digests: Sequence[bytes], replicas: Collection[str]) -> ReplicaId | None:
        """Return which of these replicas has last served the longest known prefix of a conversation; None: no one."""
        for digest in reversed(digests):
            replica = self._replicas.get(digest)
            if replica is not None and replica in replicas:
                return replica
        return None

    def note(self, digests: Sequence[bytes], replica: ReplicaId) -> None:
        """Note that a replica serves a conversation with these prefixes from now on."""
        known = [digest for digest in digests if digest in self._replicas]
        if known:
            self._replicas.move_to_end(known[-1])
        for digest in digests:
            self._replicas[digest] = replica
        while len(self._replicas) > self._most:
            self._replicas.popitem(last=False)


def keeps_prefix(home: str, replicas: Sequence[RoutedReplica]) -> bool:
    """Return whether a conversation stays at its replica: no other one with room has clearly less load."""
    loads = {each.id: (each.ongoing_requests, each.open_streams) for each in replicas}
    others = [loads[each.id] for each in replicas if each.has_room and each.id != home]
    return not any(is_clearly_less(other, loads[home], streamed=True) for other in others)
