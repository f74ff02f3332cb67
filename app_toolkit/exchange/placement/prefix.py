"""Prefix: a call prefers the replica that has served the longest known prefix of its conversation or text.

SGLang's router does so with a radix tree. A table of digests needs less memory, which is bounded.

Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import islice

from app_toolkit.exchange.permits import Load, ReplicaPermits
from app_toolkit.exchange.placement.alarm import PolicyAlarm
from app_toolkit.exchange.placement.choice import Choice
from app_toolkit.exchange.placement.hashed import most_preferred
from app_toolkit.exchange.placement.interface import Placement, Replicas
from app_toolkit.exchange.placement.least_loaded import is_clearly_less
from app_toolkit.exchange.preference import NO_PREFERENCE, Outcome, Preference
from app_toolkit.interfaces import Call
from app_toolkit.types import ReplicaId

MOST_PREFIXES = 10_000
"""The maximum number of prefixes that one caller knows, about 2 MB. A turn of a chat adds two."""

LONGEST_CHAIN = 128
"""The number of messages or pieces of one conversation that are distinguished. A longer conversation is known by the
first ones."""

PIECE = 512
"""The number of characters of a piece of a text: about 128 tokens. Engines cache whole blocks of 16 to 64 tokens."""


class Prefix:
    """Prefers the replica that has served the longest known prefix of the first argument, but does not wait for it.

    A conversation of which this caller knows no prefix prefers a replica by the hash of its first one. Other callers
    choose the same replica, and so does this one after a restart.
    """

    def __init__(self, replicas: Replicas, otherwise: Placement, alarm: PolicyAlarm) -> None:
        """`otherwise`: places the calls whose replica has no room or clearly more load than others."""
        self._replicas = replicas
        self._otherwise = otherwise
        self._alarm = alarm
        self._known = Prefixes()

    def preference(self, call: Call) -> Preference:
        """Return the preference of a call. It is computed once for all attempts."""
        first = next(iter(call.args or call.kwargs.values()), None)
        try:
            digests = prefixes(first)
        except Exception as error:  # of an attribute or a `repr` of the user's class
            self._alarm.warn(f"the messages of {call.method} cannot be read: {error!r}")
            return NO_PREFERENCE
        return Preference(prefixes=digests) if digests else NO_PREFERENCE

    def rank(
        self,
        preference: Preference,
        avoid: Collection[ReplicaId],
        free: Sequence[ReplicaPermits] | None = None,
        since: float | None = None,
    ) -> Choice | None:
        replicas, digests = self._replicas, preference.prefixes
        usable = replicas.usable(avoid, free)
        if not usable:
            return None
        served = self._known.longest(digests, replicas.by_id)
        home = replicas.by_id[served or most_preferred(digests[0].hex(), replicas.ids)]
        if home in usable and keeps_prefix(home.load(), (other.load() for other in usable if other is not home)):
            choice: Choice | None = Choice(home)
        else:
            choice = self._otherwise.rank(preference, avoid, usable, since)
        if choice is None:
            return None
        replica = choice.replica.endpoint.id
        outcome: Outcome | None = None if served is None else "kept" if replica == served else "spilled"
        return replace(choice, outcome=outcome, granted=partial(self._known.note, digests, replica))


def keeps_prefix(home: Load, others: Iterable[Load]) -> bool:
    """Return whether a conversation stays at its replica: no other one with room has clearly less load."""
    return not any(is_clearly_less(other, home, streamed=True) for other in others)


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
        texts = [part if isinstance(part, str) else repr(part) for part in said if part]
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
        served = [digest for digest in digests if digest in self._replicas]
        if served:
            self._replicas.move_to_end(served[-1])
        for digest in digests:
            self._replicas[digest] = replica
        while len(self._replicas) > self._most:
            self._replicas.popitem(last=False)
