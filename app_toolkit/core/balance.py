"""Power of two choices: look at two replicas, take the one with less to do.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10), 2001.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


def pick(candidates: Sequence[T], load: Callable[[T], int], rng: Random) -> T | None:
    """One of the candidates, None when there are none; of two equals the first sampled."""
    count = len(candidates)
    if count < 2:
        return candidates[0] if candidates else None
    i = int(rng.random() * count)
    j = int(rng.random() * (count - 1))
    if j >= i:
        j += 1
    first, second = candidates[i], candidates[j]
    return first if load(first) <= load(second) else second
