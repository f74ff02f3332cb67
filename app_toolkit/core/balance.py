"""Which replica a request goes to: the one that serves its client, or else the one with less to do of two.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001; Mitzenmacher, Prabhakar
and Shah, "Load Balancing with Memory", FOCS 2002.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

Load = tuple[int, int]
"""Of one replica: its ongoing requests, and its open streams and WebSockets. The first decides, unless it is equal."""

SPARE_REQUESTS = 4
SPARE_OPEN = 10
"""A client keeps its replica as long as that has at most so many more requests, or open streams, than another one. Ten
clients at two replicas all keep theirs, and so does a client with an open stream among a few others."""

SPARE_SHARE = 8
"""The same, in addition, for an eighth of what the other one has: what is many also varies."""


def pick(
    candidates: Sequence[T], load: Callable[[T], Load], rng: Random, last: T | None = None, *, moves: bool = False
) -> T | None:
    """One of the candidates, None when there are none.

    `last`, a candidate, is one of the two that are compared, and of equals it is taken: requests that come one after
    another go where everything is still at hand. `moves`: of equals, the other is. None: the two are strangers.
    """
    count = len(candidates)
    if count < 2:
        return candidates[0] if candidates else None
    first = candidates[int(rng.random() * count)] if last is None else last
    other = another(candidates, first, rng)
    of_first, of_other = load(first), load(other)
    return first if of_first < of_other or (of_first == of_other and not moves) else other


def another(candidates: Sequence[T], first: T, rng: Random) -> T:
    """Any of two or more candidates but this one."""
    other = candidates[int(rng.random() * (len(candidates) - 1))]
    return candidates[-1] if other is first else other


def is_clearly_less(other: Load, own: Load, *, streamed: bool = False) -> bool:
    """Whether a client moves to another replica, because its own one has clearly more to do.

    `streamed`: the connection's previous response was a stream. Its next one probably is, too, so open streams count
    like requests.
    """
    if streamed:
        return _clearly(sum(other), sum(own), SPARE_REQUESTS)
    if _clearly(other[0], own[0], SPARE_REQUESTS):
        return True
    return other[0] <= own[0] and _clearly(other[1], own[1], SPARE_OPEN)


def _clearly(less: int, more: int, spare: int) -> bool:
    return more - less > spare + less // SPARE_SHARE
