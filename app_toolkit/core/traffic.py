"""Distributes the requests of an application over its live revisions.

Each live revision has a weight. A request with a key goes to the same revision at every proxy, and when weights change,
only the keys move whose share moved: weighted rendezvous hashing. No process has a table of keys.

Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM Transactions on Networking 6(1),
1998. The weights follow Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", SPAA 2005.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from math import fsum, inf, isfinite, log

from app_toolkit.errors import ConfigError


def shares(weights: Mapping[int, float], live: Sequence[int], application: str) -> dict[int, float]:
    """Return the share of each live revision, between 0 and 1. The sum is 1.

    Parameters:
        weights: Positive numbers of any sum, by revision. A revision that is missing has the weight 0.
        live: The live revisions.
        application: Its name, for messages.

    Raises:
        ConfigError: A revision is not live, a weight is negative or not finite, or all are 0.
    """
    known = ", ".join(map(str, live))
    for revision, weight in weights.items():
        if revision not in live:
            raise ConfigError(f"application {application!r} has no live revision {revision}; it has {known}")
        if not isfinite(weight) or weight < 0:
            raise ConfigError(f"the weight of revision {revision} is {weight:g}; it should be a number from 0")
    most = max(weights.values(), default=0.0)
    if not most:
        raise ConfigError(f"the weights of application {application!r} are all 0; one of {known} must get requests")
    scaled = {revision: weights.get(revision, 0.0) / most for revision in live}  # a sum of huge weights overflows
    total = fsum(scaled.values())
    return {revision: weight / total for revision, weight in scaled.items()}


def choose(weights: Mapping[str, float], key: str | None, draw: float) -> str:
    """Return the member that gets a request. One with the weight 0 gets none, unless all have it.

    Parameters:
        weights: The weight of each member by its name; at least one member.
        key: Requests with the same key get the same member, as long as the weights stay. None: there is no key.
        draw: A random number, at least 0 and below 1, for a request without a key.
    """
    able = [(name, weight) for name, weight in weights.items() if weight > 0]
    if not able:
        return next(iter(weights))
    if key is not None:
        return min(able, key=lambda each: _cost(*each, key))[0]
    sums = list(accumulate(weight for _, weight in able))
    drawn = draw * sums[-1]
    return next((name for (name, _), above in zip(able, sums, strict=True) if drawn < above), able[-1][0])


def _cost(name: str, weight: float, key: str) -> float:
    """Return an exponentially distributed number with the rate `weight`, which depends on the name and the key."""
    digest = blake2b(f"{name}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 0.5) / 2**64
    return -log(uniform) / weight if weight > 0 else inf
