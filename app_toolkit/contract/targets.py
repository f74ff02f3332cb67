"""Chooses one of the targets of a request or call: the live revisions of an application, or the members of a split.

Each target has a weight. A request with a key goes to the same one in every process, and when weights change, only the
keys move whose share moved: weighted rendezvous hashing. No process has a table of keys.

Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM Transactions on Networking 6(1),
1998. The weights follow Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", SPAA 2005.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from math import log
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator

from app_toolkit.contract.identity import LiveRevisionKey, ReplicaSetKey

SHARD_KEY = b"x-serve-shard-key"
"""The field name in lowercase. Requests with the same value get the same live revision and members of splits."""

LONGEST_SHARD_KEY = 512
"""The maximum number of bytes of the field that count."""


@dataclass(frozen=True, slots=True)
class Target:
    """One of the replica sets that may serve a request or call."""

    name: str
    """The name that a key is hashed with: that of the live revision, or of the member of the split."""
    replica_set: Annotated[ReplicaSetKey, PlainValidator(ReplicaSetKey.parse), PlainSerializer(str)]
    """Published by its name."""
    weight: float = 1.0
    """The share of the requests or calls that it gets, between 0 and 1."""
    tag: str | None = None
    """The tag by which clients select it. None: it has no tag."""
    mirror: float = 0.0
    """The share of the requests or calls of the other targets that it gets copies of, between 0 and 1."""

    def at(self, ingress: str) -> "Target":
        """Return the target for another ingress of the same live revision."""
        return replace(self, replica_set=self.replica_set.live_revision.replica_set(ingress))


def shard_key(value: bytes) -> str | None:
    """Return the shard key of a request from the value of the field; None: the value is empty."""
    return value.strip(b" \t")[:LONGEST_SHARD_KEY].decode("utf-8", "surrogateescape") or None


def members(
    live: LiveRevisionKey, shares: Mapping[str, float], mirrors: Mapping[str, float] | None = None
) -> tuple[Target, ...]:
    """Return the members of a split as targets.

    Parameters:
        live: The live revision that has the split.
        shares: The share of the calls that each member gets, by its name.
        mirrors: The share of the calls of other members that a member gets copies of, by its name. None: no mirrors.
    """
    mirrors = mirrors or {}
    return tuple(
        Target(name, live.replica_set(name), share, mirror=mirrors.get(name, 0.0)) for name, share in shares.items()
    )


def callable_members(code: Sequence[Target], published: Sequence[Target]) -> Sequence[Target]:
    """Return the members of a split in one process.

    During an update, the code of a process may have other members than the revision whose members are published. It
    calls none that it does not have.

    Parameters:
        code: The members in the code of the process.
        published: The members that are published. Empty: there are none any more.
    """
    by_name = {target.name: target for target in published}
    if by_name.keys() == {target.name for target in code}:
        return published
    both = [by_name.get(target.name, replace(target, weight=0.0)) for target in code]
    if any(target.weight for target in both):
        return both
    return [replace(target, weight=before.weight) for target, before in zip(both, code, strict=True)]


def choose(targets: Sequence[Target], key: str | None, draw: Callable[[], float]) -> Target:
    """Return the target that gets a request. One with the weight 0 gets none, unless all have it.

    Parameters:
        targets: At least one target.
        key: Requests with the same key get the same target, as long as the weights stay. None: there is no key.
        draw: Returns a random number, at least 0 and below 1. It is called for a request without a key.
    """
    able = [target for target in targets if target.weight > 0]
    if not able:
        return targets[0]
    if key is not None:
        return able[_position_of_key(tuple([(target.name, target.weight) for target in able]), key)]
    drawn = draw() * sum([target.weight for target in able])
    for target in able:
        drawn -= target.weight
        if drawn < 0:
            return target
    return able[-1]


@lru_cache(4_096)  # a client sends several requests with its key
def _position_of_key(able: tuple[tuple[str, float], ...], key: str) -> int:
    costs = [_cost(name, weight, key) for name, weight in able]
    return costs.index(min(costs))


def _cost(name: str, weight: float, key: str) -> float:
    """Return an exponentially distributed number with the rate `weight`, which depends on the name and the key."""
    digest = blake2b(f"{name}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 0.5) / 2**64
    return -log(uniform) / weight
