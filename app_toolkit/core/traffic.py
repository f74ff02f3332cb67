"""Distributes the requests of an application over its live revisions, and the calls of a split over its members.

Each live revision or member has a weight. A request with a key goes to the same one in every process, and when weights
change, only the keys move whose share moved: weighted rendezvous hashing. No process has a table of keys.

Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM Transactions on Networking 6(1),
1998. The weights follow Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", SPAA 2005.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from math import fsum, inf, isfinite, log
from typing import TypeVar

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.core.identity import application_of, candidate_name, candidate_of, main_replica_set
from app_toolkit.core.publication import LiveRevision
from app_toolkit.core.reports import NONE, Loads
from app_toolkit.core.rollout import Candidate, Rollout, applied, rest_of
from app_toolkit.errors import ConfigError

K = TypeVar("K", int, str)

SHARD_KEY = b"x-serve-shard-key"
"""The field name in lowercase. Requests with the same value get the same live revision and members of splits."""

LONGEST_SHARD_KEY = 512
"""The maximum number of bytes of the field that count."""

_TAG = re.compile(r"[A-Za-z0-9._-]{1,64}")


def shard_key(value: bytes) -> str | None:
    """Return the shard key of a request from the value of the field; None: the value is empty."""
    return value.strip(b" \t")[:LONGEST_SHARD_KEY].decode("utf-8", "surrogateescape") or None


def shares(weights: Mapping[int, float], live: Sequence[int], application: str) -> dict[int, float]:
    """Return the share of each live revision, between 0 and 1. The sum is 1.

    Parameters:
        weights: Positive numbers of any sum, by revision. A revision that is missing has the weight 0.
        live: The live revisions.
        application: Its name, for messages.

    Raises:
        ConfigError: A revision is not live, a weight is negative or not finite, or all are 0.
    """
    return _shares(weights, live, f"application {application!r}", "live revision")


def member_shares(weights: Mapping[str, float], members: Sequence[str], split: str) -> dict[str, float]:
    """Return the share of each member of a split, between 0 and 1. The sum is 1.

    Parameters:
        weights: Positive numbers of any sum, by member. A member that is missing has the weight 0.
        members: The names of the members.
        split: Its name, for messages.

    Raises:
        ConfigError: There is no such member, a weight is negative or not finite, or all are 0.
    """
    return _shares(weights, members, f"split {split!r}", "member")


def known_shares(own: Mapping[str, float], published: Mapping[str, float]) -> Mapping[str, float]:
    """Return the shares of the members of a split in one process.

    During an update, the code of a process may have other members than the revision whose shares are published. It
    calls none that it does not have.

    Parameters:
        own: The shares in the code of the process.
        published: The shares that are published. Empty: there are none any more.
    """
    if own.keys() == published.keys():
        return published
    known = {member: published.get(member, 0.0) for member in own}
    return known if any(known.values()) else own


def _shares(weights: Mapping[K, float], known: Sequence[K], whole: str, part: str) -> dict[K, float]:
    names = ", ".join(map(str, known))
    for name, weight in weights.items():
        if name not in known:
            raise ConfigError(f"{whole} has no {part} {name}; it has {names}")
        if not isfinite(weight) or weight < 0:
            raise ConfigError(f"the weight of {part} {name} is {weight:g}; it should be a number from 0")
    most = max(weights.values(), default=0.0)
    if not most:
        raise ConfigError(f"the weights of {whole} are all 0; one of {names} must have a weight")
    unit = most if most > 1e300 else 1.0  # a sum of huge weights overflows
    scaled = {name: weights.get(name, 0.0) / unit for name in known}
    total = fsum(scaled.values())
    return {name: weight / total for name, weight in scaled.items()}


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
        return min(able, key=lambda each: _cost(each[0], each[1], key))[0]
    sums = list(accumulate(weight for _, weight in able))
    drawn = draw * sums[-1]
    return next((name for (name, _), above in zip(able, sums, strict=True) if drawn < above), able[-1][0])


def _cost(name: str, weight: float, key: str) -> float:
    """Return an exponentially distributed number with the rate `weight`, which depends on the name and the key."""
    digest = blake2b(f"{name}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 0.5) / 2**64
    return -log(uniform) / weight if weight > 0 else inf


# The splits of one application


def with_split(spec: ApplicationSpec, split: str, weights: Mapping[str, float]) -> ApplicationSpec:
    """Return the application with other weights of a split.

    Raises `ConfigError` if there is no such split, or the weights are invalid (see `member_shares`).
    """
    before = spec.split(split)
    after = before.model_copy(update={"shares": member_shares(weights, tuple(before.shares), split)})
    return spec.model_copy(update={"splits": tuple(after if each is before else each for each in spec.splits)})


# The live revisions of one application


def with_candidate(rollout: Rollout, share: float, tag: str | None) -> Rollout:
    """Return the rollout with a new candidate, which gets this share of the requests. The others share the rest.

    Raises `ConfigError` if the share is not between 0 and 1, or a live revision has the tag.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"the traffic of a new revision is {100 * share:g} %; it should be between 0 and 100 %")
    if tag is not None and not _TAG.fullmatch(tag):
        raise ConfigError(f"the tag {tag!r} should have 1 to 64 letters, digits, dots, hyphens and underscores")
    _check_open(rollout)
    if tag is not None and (other := next((each for each in rollout.live if each.tag == tag), None)):
        raise ConfigError(f"revision {other.revision} of application {rollout.name!r} has the tag {tag!r}")
    number = rollout.next_number
    others = [_with_share(each, each.share * (1 - share)) for each in rollout.candidates]
    return rollout.but(candidates=(*others, Candidate(revision=number, share=share, tag=tag)), last_number=number)


def with_weights(rollout: Rollout, weights: Mapping[int, float]) -> Rollout:
    """Return the rollout with other shares. A candidate without a weight and without a tag is removed.

    Raises `ConfigError` if the weights are invalid (see `shares`).
    """
    _check_open(rollout)
    main = rollout.current_revision or rollout.revision
    found = shares(weights, [main, *(each.revision for each in rollout.live)], rollout.name)
    return rollout.but(
        candidates=tuple(_with_share(each, found.get(each.revision, 0.0)) for each in rollout.candidates)
    )


def promoted(rollout: Rollout, revision: int | None) -> Rollout:
    """Return the rollout in which a candidate gets all requests until the main revision has its spec.

    It is the same object if the candidate is being promoted. `revision`: the candidate; None: the only one. Raises
    `ConfigError` if there is no such candidate.
    """
    if rollout.promoted is not None and revision in (None, rollout.promoted):
        return rollout
    _check_open(rollout)
    number = _one_candidate(rollout, revision)
    candidates = [each.model_copy(update={"share": float(each.revision == number)}) for each in rollout.candidates]
    return rollout.but(candidates=tuple(candidates), promoted=number)


def aborted(rollout: Rollout) -> Rollout:
    """Return the rollout in which the main revision gets all requests, and the candidates are removed.

    A promotion is undone: the main revision returns to its stable revision.
    """
    ended = _without_candidates(rollout)
    return ended if rollout.promoted is None or rollout.stable is None else applied(ended, rollout.stable)


def after(rollout: Rollout) -> Rollout:
    """Return the rollout after a promotion has ended; the same object if none has.

    If the main revision could not start with the new spec, the candidate keeps all requests.
    """
    if rollout.promoted is None or not rollout.is_settled:
        return rollout
    if rollout.failure is None:
        return _without_candidates(rollout)
    return rollout.but(promoted=None, candidates=tuple(_with_share(each, each.share) for each in rollout.candidates))


def removed_one(rollout: Rollout, revision: int) -> Rollout:
    """Return the rollout in which a candidate is removed. The other revisions share its requests.

    Raises `ConfigError` if a candidate is being promoted.
    """
    _check_open(rollout)
    rest = rest_of(each.share for each in rollout.candidates if each.revision == revision)
    return rollout.but(
        candidates=tuple(
            each.model_copy(update={"share": 0.0, "removed": True})
            if each.revision == revision
            else each.model_copy(update={"share": each.share / rest if rest > 0 else each.share})
            for each in rollout.candidates
        )
    )


def without(rollout: Rollout, revision: int) -> Rollout:
    """Return the rollout without a candidate that is gone."""
    return rollout.but(candidates=tuple(each for each in rollout.candidates if each.revision != revision))


def published(rollouts: Mapping[str, Rollout]) -> list[LiveRevision]:
    """Return the revisions whose routes are published, with the shares of those that share a route prefix.

    A candidate is published once it was available. Until then the main revision gets its requests.
    """
    found = []
    for rollout in rollouts.values():
        if candidate_of(rollout.name) is not None:
            continue
        ready = [
            LiveRevision(own.published, each.share, each.tag)
            for each in rollout.live
            if (each.share or each.tag)
            and (own := rollouts.get(candidate_name(rollout.name, each.revision))) is not None
            if own.stable is not None
        ]
        found += [LiveRevision(rollout.published, rest_of(each.share for each in ready)), *ready]
    return found


def with_promoted(loads: Loads, rollouts: Mapping[str, Rollout]) -> Loads:
    """Return the loads that a caller reported. A main revision also has the load of the candidate whose spec it gets.

    So an autoscaled main revision has enough replicas when it takes over.
    """
    found = dict(loads)
    for name, rollout in rollouts.items():
        if rollout.promoted is None:
            continue
        for replica_set, load in loads.items():
            if application_of(replica_set) == candidate_name(name, rollout.promoted):
                main = main_replica_set(replica_set)
                own = loads.get(main, NONE)
                found[main] = own[0] + load[0], own[1] + load[1], own[2] + load[2], own[3] + load[3]
    return found


def removed(rollouts: Mapping[str, Rollout]) -> set[str]:
    """Return the names of the candidates that were removed, and of those that no application has.

    The controller may have died after it stored a candidate, and before it stored the application.
    """
    known = {candidate_name(each.name, one.revision): one for each in rollouts.values() for one in each.candidates}
    unknown = {name for name in rollouts if candidate_of(name) is not None and name not in known}
    return unknown | {name for name, one in known.items() if one.removed}


def longest_wait_s(rollout: Rollout | None) -> float:
    """Return the longest time in seconds for which a request of a candidate may wait in a queue."""
    deployments = () if rollout is None else rollout.current.deployments
    return max((each.config.max_queue_wait_s for each in deployments), default=0.0)


def without_ingresses(spec: ApplicationSpec) -> ApplicationSpec | None:
    """Return an application without its ingresses. None: it has none, or nothing else."""
    rest = tuple(each for each in spec.deployments if each.kind == "class")
    if not rest or len(rest) == len(spec.deployments):
        return None
    return spec.model_copy(update={"deployments": rest, "default": None, "routes": ()})


def longest_drain_s(rollout: Rollout) -> float:
    """Return the longest time in seconds for which an ingress of a candidate may drain."""
    ingresses = [each.config for each in rollout.current.deployments if each.kind == "ingress"]
    return max((each.graceful_shutdown_timeout_s for each in ingresses), default=0.0)


def summary(rollout: Rollout) -> str:
    """Return the shares of all live revisions as text, such as `90 % revision 12, 10 % revision 13`."""
    main = rollout.current_revision or rollout.revision
    live = [(main, rollout.share), *((each.revision, each.share) for each in rollout.live)]
    return ", ".join(f"{100 * share:.4g} % revision {revision}" for revision, share in live)


def _without_candidates(rollout: Rollout) -> Rollout:
    removed = [each.model_copy(update={"share": 0.0, "removed": True}) for each in rollout.candidates]
    return rollout.but(candidates=tuple(removed), promoted=None)


def _with_share(candidate: Candidate, share: float) -> Candidate:
    removed = candidate.removed or (not share and candidate.tag is None)
    return candidate.model_copy(update={"share": share, "removed": removed})


def _one_candidate(rollout: Rollout, revision: int | None) -> int:
    numbers = [each.revision for each in rollout.live]
    if not numbers:
        raise ConfigError(f"application {rollout.name!r} has no live revision beside its main revision")
    if revision is None and len(numbers) == 1:
        return numbers[0]
    if revision not in numbers:
        known = ", ".join(map(str, numbers))
        which = "name one of them" if revision is None else f"{revision} is none of them"
        raise ConfigError(f"application {rollout.name!r} has the live revisions {known}; {which}")
    return revision


def _check_open(rollout: Rollout) -> None:
    if rollout.promoted is not None:
        raise ConfigError(
            f"revision {rollout.promoted} of application {rollout.name!r} is being promoted; wait until it is available"
        )
