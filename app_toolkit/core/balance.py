"""Power of two choices, with memory: of the one that was taken last and another, take the one with less to do.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001; Mitzenmacher, Prabhakar
and Shah, "Load Balancing with Memory", FOCS 2002.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


def pick(
    candidates: Sequence[T], load: Callable[[T], int], rng: Random, last: T | None = None, *, moves: bool = False
) -> T | None:
    """One of the candidates, None when there are none.

    `last`, a candidate, is one of the two that are compared, and of equals it is taken: requests that come one after
    another go where everything is still at hand. `moves`: of equals, the other is. None: the two are strangers.
    """
    count = len(candidates)
    if count < 2:
        return candidates[0] if candidates else None
    first = candidates[int(rng.random() * count)] if last is None else last
    other = candidates[int(rng.random() * (count - 1))]
    if other is first:
        other = candidates[-1]
    more = load(first) - load(other)
    return first if more < 0 or (more == 0 and not moves) else other
