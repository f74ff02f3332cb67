"""Least loaded: a request without a preference gets the less loaded of two replicas.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001; Mitzenmacher, Prabhakar
and Shah, "Load Balancing with Memory", FOCS 2002.
"""

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import TypeVar

from app_toolkit.exchange.permits import Load, ReplicaPermits
from app_toolkit.exchange.placement.choice import Choice
from app_toolkit.exchange.placement.interface import Replicas
from app_toolkit.exchange.preference import Preference
from app_toolkit.types import ReplicaId

T = TypeVar("T")

RUN = 16
"""Consecutive permits at the same replica as long as it is not more loaded than another one. The requests then find
caches and connections warm. A much larger number would gain little. It would also send more requests to a replica that
responds fast because all of its responses are errors."""

SPARE_REQUESTS = 4
SPARE_OPEN = 10
"""A client keeps its replica if that has at most this many more requests, or open streams and WebSockets, than another
replica. For example, ten clients at two replicas all keep their replicas, and so does a client with an open stream at
a replica that has a few more."""

SPARE_SHARE = 8
"""The divisor for an additional difference, an eighth of the number at the other replica: large numbers vary more."""


class LeastLoaded:
    """Compares the replica that was picked last with a random one."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self.forget()

    def forget(self) -> None:
        """Forget which replica was picked last, because the replica set has changed."""
        self._last: ReplicaPermits | None = None
        #: The number of times in a row that it was picked.
        self._run = 0

    def rank(
        self,
        preference: Preference,
        avoid: Collection[ReplicaId],
        free: Sequence[ReplicaPermits] | None = None,
        since: float | None = None,
    ) -> Choice | None:
        replicas = self._replicas
        if free is None and not avoid:
            last = self._last
            moves = preference.stays or self._run >= RUN
            replica = pick(replicas.all, ReplicaPermits.load, replicas.rng, last, moves=moves)
            self._run = self._run + 1 if replica is last else 1
            self._last = replica
            if replica is not None and replica.has_room:
                return replicas.choices[replica]
        replica = pick(replicas.usable(avoid, free), ReplicaPermits.load, replicas.rng)
        return None if replica is None else replicas.choices[replica]


def pick(
    candidates: Sequence[T], load: Callable[[T], Load], rng: Random, last: T | None = None, *, moves: bool = False
) -> T | None:
    """Return the less loaded of two candidates; None: there are no candidates.

    `last`: one of the two, usually the candidate that was picked before; None: both are random. `last` is returned if
    both have the same load, because consecutive requests are faster at a replica with warm caches. `moves`: return the
    other candidate in this case.
    """
    count = len(candidates)
    if count < 2:
        return candidates[0] if candidates else None
    first = candidates[int(rng.random() * count)] if last is None else last
    other = another(candidates, first, rng)
    of_first, of_other = load(first), load(other)
    return first if of_first < of_other or (of_first == of_other and not moves) else other


def another(candidates: Sequence[T], first: T, rng: Random) -> T:
    """Return a random candidate other than `first`. There must be at least two candidates."""
    other = candidates[int(rng.random() * (len(candidates) - 1))]
    return candidates[-1] if other is first else other


def is_clearly_less(other: Load, current: Load, *, streamed: bool = False) -> bool:
    """Return whether a client moves to another replica, because the load of its own replica is clearly higher.

    `streamed`: the previous response on the connection was a stream. The next response probably is one, too, so open
    streams count like requests.
    """
    if streamed:
        return _clearly(sum(other), sum(current), SPARE_REQUESTS)
    if _clearly(other[0], current[0], SPARE_REQUESTS):
        return True
    return other[0] <= current[0] and _clearly(other[1], current[1], SPARE_OPEN)


def _clearly(less: int, more: int, spare: int) -> bool:
    return more - less > spare + less // SPARE_SHARE
