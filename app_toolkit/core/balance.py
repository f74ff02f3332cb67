"""Chooses the replica for a request: the replica that already serves the client, or else the less loaded of two.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001; Mitzenmacher, Prabhakar
and Shah, "Load Balancing with Memory", FOCS 2002.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

Load = tuple[int, int]
"""The load of one replica: its ongoing requests, and its open streams and WebSockets, which are compared only if the
ongoing requests are equal."""

SPARE_REQUESTS = 4
SPARE_OPEN = 10
"""A client keeps its replica if that has at most this many more requests, or open streams and WebSockets, than another
replica. For example, ten clients at two replicas all keep their replicas, and so does a client with an open stream at
a replica that has a few more."""

SPARE_SHARE = 8
"""The divisor for an additional difference, an eighth of the number at the other replica: large numbers vary more."""


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


def is_clearly_less(other: Load, own: Load, *, streamed: bool = False) -> bool:
    """Return whether a client moves to another replica, because the load of its own replica is clearly higher.

    `streamed`: the previous response on the connection was a stream. The next response probably is one, too, so open
    streams count like requests.
    """
    if streamed:
        return _clearly(sum(other), sum(own), SPARE_REQUESTS)
    if _clearly(other[0], own[0], SPARE_REQUESTS):
        return True
    return other[0] <= own[0] and _clearly(other[1], own[1], SPARE_OPEN)


def _clearly(less: int, more: int, spare: int) -> bool:
    return more - less > spare + less // SPARE_SHARE
