"""Decides when a replica has served long enough, so that a new one takes its place."""

from collections.abc import Iterator
from hashlib import sha256

from app_toolkit.config.models import RecyclingConfig
from app_toolkit.control.replica_state import ReplicaRecord
from app_toolkit.types import RecyclingLimit

LEAST_S = 10.0
"""Seconds that each replica serves at least, so that a limit that is too low does not replace replicas all the time."""


def reached(config: RecyclingConfig, replica: ReplicaRecord) -> Iterator[tuple[float, RecyclingLimit, str]]:
    """Yield the limits that a running replica has reached, and the one that it will reach if nothing happens.

    Each has the time at which the replica is replaced, and a sentence that says why.
    """
    assert replica.serving_since is not None, "the replica runs"
    earliest = replica.serving_since + LEAST_S
    share = 1 - config.jitter * _fraction(replica.id)
    if config.max_requests is not None and replica.requests >= config.max_requests * share:
        why = f"it has received {replica.requests} requests, and max_requests is {config.max_requests}"
        yield earliest, "max_requests", why
    if config.max_memory is not None and replica.memory > config.max_memory:
        why = f"it uses {replica.memory} bytes of memory, and max_memory is {config.max_memory}"
        yield earliest, "max_memory", why
    if config.max_age_s is not None:
        age_s = max(config.max_age_s * share, LEAST_S)
        why = f"it has served for {age_s:.0f} s, and max_age_s is {config.max_age_s:g}"
        yield replica.serving_since + age_s, "max_age_s", why


def _fraction(id: str) -> float:
    """Return a number from 0 up to 1 that every controller derives from the id of a replica."""
    return int.from_bytes(sha256(id.encode()).digest()[:4]) / 2**32
