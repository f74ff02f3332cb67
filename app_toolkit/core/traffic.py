"""The shares of the live revisions of an application and of the members of a split, their mirrors, and each change."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isfinite
from typing import TypeVar

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.core.canary import CanaryPlan, CanaryRelease, Decision, Requests, next_step
from app_toolkit.core.identity import AnySetKey, ApplicationKey, ReplicaSetKey
from app_toolkit.core.publication import LiveRevision
from app_toolkit.core.reports import NONE, Loads
from app_toolkit.core.rollout import Candidate, Rollout, applied, rest_of
from app_toolkit.errors import ConfigError

K = TypeVar("K", int, str)

_TAG = re.compile(r"[A-Za-z0-9._-]{1,64}")


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


def mirror_shares(
    mirrors: Mapping[str, float], before: Mapping[str, float], members: Sequence[str], split: str
) -> dict[str, float]:
    """Return the share of the calls that each mirror of a split gets copies of, above 0 and at most 1.

    Parameters:
        mirrors: The new shares, by member. 0 ends the mirroring. The share of a member that is missing stays.
        before: The present shares.
        members: The names of the members.
        split: Its name, for messages.

    Raises:
        ConfigError: There is no such member, or a share is not between 0 and 1.
    """
    for name, share in mirrors.items():
        if name not in members:
            raise ConfigError(f"split {split!r} has no member {name}; it has {', '.join(members)}")
        if not 0 <= share <= 1:
            percent = f"{100 * share:g} %"
            raise ConfigError(
                f"the mirror of member {name} of split {split!r} is {percent}; it should be between 0 and 100 %"
            )
    return {name: share for name, share in {**before, **mirrors}.items() if share}


def _shares(weights: Mapping[K, float], known: Sequence[K], whole: str, part: str) -> dict[K, float]:
    names = ", ".join(map(str, known))
    for name, weight in weights.items():
        if name not in known:
            shown = repr(name) if str(name) in map(str, known) else name  # "12" is not 12
            raise ConfigError(f"{whole} has no {part} {shown}; it has {names}")
        is_number = isinstance(weight, int | float)
        if not (is_number and isfinite(weight) and weight >= 0):
            given = f"{weight:g}" if is_number else repr(weight)
            raise ConfigError(f"the weight of {part} {name} is {given}; it should be a number from 0")
    most = max(weights.values(), default=0.0)
    if not most:
        raise ConfigError(f"the weights of {whole} are all 0; one of {names} must have a weight")
    unit = most if most > 1e300 else 1.0  # a sum of huge weights overflows
    scaled = {name: weights.get(name, 0.0) / unit for name in known}
    total = fsum(scaled.values())
    return {name: weight / total for name, weight in scaled.items()}


# Mirrors

MOST_DIFFERENCES = 20
"""The number of differences that the counts of a mirror keep, the newest ones."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A mirrored request whose response was not that of the primary. It has no bodies, no queries and no fields."""

    request_id: str
    request: str
    """The method and the path of a request, or the method of a call."""
    primary_status: str
    mirror_status: str
    primary_bytes: int
    mirror_bytes: int
    primary_s: float
    mirror_s: float


@dataclass(frozen=True, slots=True)
class MirrorCounts:
    """What became of the requests and calls that were sampled for one mirror.

    Each one that has ended is counted in one of the first four fields. Those of both sides that ended with a complete
    response are also compared.
    """

    completed: int = 0
    """Their response began."""
    failed: int = 0
    """They were sent and got no response: the replica was lost, was not reached, or did not respond in time."""
    dropped: int = 0
    """They were not sent, because this process or the replicas of the mirror had no room for them."""
    too_large: int = 0
    """They were not sent, because their body is too large."""
    same: int = 0
    """The statuses are equal, and the bodies, too, if these could be compared."""
    different_status: int = 0
    different_body: int = 0
    """The statuses are equal, and the bodies are not."""
    primary_s: float = 0.0
    """The sum of the seconds that the primary took for the requests that were compared."""
    mirror_s: float = 0.0
    """The sum of the seconds that the mirror took for them."""
    differences: tuple[Difference, ...] = ()
    """The last `MOST_DIFFERENCES` of the requests whose responses are different."""

    @property
    def different(self) -> int:
        return self.different_status + self.different_body

    @property
    def compared(self) -> int:
        return self.same + self.different

    def __add__(self, other: "MirrorCounts") -> "MirrorCounts":
        """Return the counts of two processes together."""
        return MirrorCounts(
            self.completed + other.completed,
            self.failed + other.failed,
            self.dropped + other.dropped,
            self.too_large + other.too_large,
            self.same + other.same,
            self.different_status + other.different_status,
            self.different_body + other.different_body,
            self.primary_s + other.primary_s,
            self.mirror_s + other.mirror_s,
            (*self.differences, *other.differences)[-MOST_DIFFERENCES:],
        )

    def with_pair(self, pair: Difference, *, same_body: bool) -> "MirrorCounts":
        """Return the counts with two complete responses. `same_body`: the bodies are equal, or were not compared."""
        same_status = pair.primary_status == pair.mirror_status
        same = same_status and same_body
        return replace(
            self,
            same=self.same + same,
            different_status=self.different_status + (not same_status),
            different_body=self.different_body + (same_status and not same_body),
            primary_s=self.primary_s + pair.primary_s,
            mirror_s=self.mirror_s + pair.mirror_s,
            differences=self.differences if same else (*self.differences, pair)[-MOST_DIFFERENCES:],
        )


# The splits of one application


def with_split(
    spec: ApplicationSpec, split: str, weights: Mapping[str, float], mirrors: Mapping[str, float] | None = None
) -> ApplicationSpec:
    """Return the application with other weights and mirrors of a split.

    Parameters:
        spec: The application.
        split: The name of the split.
        weights: Positive numbers of any sum, by member. Empty: the shares stay, if there are mirrors.
        mirrors: By member, the share of the calls of other members that it gets copies of. The share of a member that
            is missing stays. None: all stay.

    Raises:
        ConfigError: There is no such split, or the weights or mirrors are invalid (see `member_shares` and
            `mirror_shares`).
    """
    before = spec.split(split)
    members, mirrors = tuple(before.shares), mirrors or {}
    shares = member_shares(weights, members, split) if weights or not mirrors else before.shares
    mirrored = mirror_shares(mirrors, before.mirrors, members, split)
    after = before.model_copy(update={"shares": shares, "mirrors": mirrored})
    return spec.model_copy(update={"splits": tuple(after if each is before else each for each in spec.splits)})


# The live revisions of one application


def with_candidate(
    rollout: Rollout, share: float, tag: str | None, mirror: float = 0.0, revision: int | None = None
) -> Rollout:
    """Return the rollout with a candidate, which gets this share of the requests. The others share the rest.

    `mirror`: the share of their requests that it gets copies of. `revision`: the candidate, which is live; None: a new
    one. Raises `ConfigError` if a share is not between 0 and 1, or another live revision has the tag.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"the traffic of a new revision is {100 * share:g} %; it should be between 0 and 100 %")
    if tag is not None and not _TAG.fullmatch(tag):
        raise ConfigError(f"the tag {tag!r} should have 1 to 64 letters, digits, dots, hyphens and underscores")
    number = rollout.next_number if revision is None else revision
    before = next((each for each in rollout.live if each.revision == number), Candidate(revision=number, share=0.0))
    _check_mirror(number, mirror)
    _check_open(rollout)
    if share != before.share:
        _check_no_release(rollout)
    others = [each for each in rollout.candidates if each.revision != number]
    if tag is not None and (other := next((each for each in others if each.tag == tag and not each.removed), None)):
        raise ConfigError(
            f"revision {other.revision} of application {rollout.name!r} has the tag {tag!r}; choose another one, or "
            f"delete {rollout.key.candidate(other.revision)} before"
        )
    if share != before.share:  # if this one had all requests, the main revision gets the rest
        rest = (1 - share) / (1 - before.share or 1)
        others = [_with_share(each, each.share * rest) if each.share else each for each in others]
    changed = before.model_copy(update={"share": share, "tag": tag, "mirror": mirror})
    return rollout.without_ended_release().but(
        candidates=(*others, changed), last_number=max(number, rollout.last_number)
    )


def with_weights(rollout: Rollout, weights: Mapping[int, float], mirrors: Mapping[int, float] | None = None) -> Rollout:
    """Return the rollout with other shares. A candidate without a weight, a tag and a mirror is removed.

    Parameters:
        rollout: That of the application.
        weights: Positive numbers of any sum, by revision. A revision that is missing has the weight 0. Empty: the
            shares stay, if there are mirrors.
        mirrors: By candidate, the share of the requests of other revisions that it gets copies of. The share of a
            candidate that is missing stays. None: all stay.

    Raises:
        ConfigError: The weights are invalid (see `shares`), or a mirror is no candidate or not between 0 and 1.
    """
    _check_open(rollout)
    mirrors = mirrors or {}
    for revision, mirror in mirrors.items():
        _one_candidate(rollout, revision)
        _check_mirror(revision, mirror)
    found = {each.revision: each.share for each in rollout.live if each.revision in mirrors}
    if weights or not mirrors:
        _check_no_release(rollout)
        main = rollout.current_revision or rollout.revision
        found = shares(weights, [main, *(each.revision for each in rollout.live)], rollout.name)
    return rollout.but(
        candidates=tuple(
            _with_share(each, found[each.revision], mirrors.get(each.revision)) if each.revision in found else each
            for each in rollout.candidates
        )
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
    after = rollout.without_ended_release().but(candidates=tuple(candidates), promoted=number)
    return _ended(after, "promoted", f"revision {number} is promoted")


def aborted(rollout: Rollout) -> Rollout:
    """Return the rollout in which the main revision gets all requests, and the candidates are removed.

    A promotion is undone: the main revision returns to its stable revision.
    """
    undone = _promotion_undone(rollout, "its promotion was aborted")
    ended = _ended(_without_candidates(undone), "aborted", "it was aborted")
    return ended if rollout.promoted is None or rollout.stable is None else applied(ended, rollout.stable)


def after(rollout: Rollout) -> Rollout:
    """Return the rollout after a promotion has ended; the same object if none has.

    If the main revision could not start with the new spec, the candidate keeps all requests.
    """
    if rollout.promoted is None or not rollout.is_settled:
        return rollout
    if rollout.failure is None:
        return _without_candidates(rollout)
    why = f"the main revision cannot start with its code, so revision {rollout.promoted} keeps all requests"
    rollout = _promotion_undone(rollout, why)
    return rollout.but(promoted=None, candidates=tuple(_with_share(each, each.share) for each in rollout.candidates))


def removed_one(rollout: Rollout, revision: int) -> Rollout:
    """Return the rollout in which a candidate is removed. The other revisions share its requests.

    Raises `ConfigError` if a candidate is being promoted.
    """
    _check_open(rollout)
    if rollout.release is not None and rollout.release.revision == revision:
        rollout = _ended(rollout, "aborted", f"revision {revision} was deleted")
    rest = rest_of(each.share for each in rollout.candidates if each.revision == revision)
    return rollout.but(
        candidates=tuple(
            _removed(each)
            if each.revision == revision
            else each.model_copy(update={"share": each.share / rest if rest > 0 else each.share})
            for each in rollout.candidates
        )
    )


def with_release(rollout: Rollout, revision: int | None, plan: CanaryPlan) -> Rollout:
    """Return the rollout in which a canary release of a candidate begins.

    It is the same object if this release goes on. `revision`: the candidate; None: the only one. Raises `ConfigError`
    if there is no such candidate, another one gets requests, or another release goes on.
    """
    _check_open(rollout)
    release = plan.begin(_one_candidate(rollout, revision))
    there = rollout.release
    if there is not None and there.but(step=0, paused=False, measured=None) == release:
        return rollout
    _check_no_release(rollout)
    if other := next((each for each in rollout.live if each.share and each.revision != release.revision), None):
        raise ConfigError(
            f"revision {other.revision} of application {rollout.name!r} gets requests, too; a canary release compares "
            "only one revision with the main revision"
        )
    return _with_step(rollout, release)


def with_paused(rollout: Rollout, *, paused: bool) -> Rollout:
    """Return the rollout whose canary release is paused, or goes on. Raises `ConfigError` if there is no release."""
    if rollout.release is None:
        raise ConfigError(f"application {rollout.name!r} has no canary release that goes on")
    release = rollout.release.but(paused=paused)
    return rollout if release == rollout.release else rollout.but(canary=release)


def after_decision(rollout: Rollout, release: CanaryRelease, decision: Decision, baseline: Requests) -> Rollout:
    """Return the rollout after a decision about its canary release; the same object if that is another one now.

    A release that finishes is promoted by `promoted`. `baseline`: the main revision's requests in the present step.
    """
    if rollout.canary != release:
        return rollout
    if decision.action == "advance":
        return _with_step(rollout, next_step(release, baseline))
    if decision.action == "return":
        return removed_one(rollout.but(canary=release.ended("returned", decision.why)), release.revision)
    return rollout


def without(rollout: Rollout, revision: int) -> Rollout:
    """Return the rollout without a candidate that is gone."""
    return rollout.but(candidates=tuple(each for each in rollout.candidates if each.revision != revision))


def published(rollouts: Mapping[ApplicationKey, Rollout]) -> list[LiveRevision]:
    """Return the revisions whose routes are published, with the shares of those that share a route prefix.

    A candidate is published once it was available. Until then the main revision gets its requests.
    """
    found = []
    for rollout in rollouts.values():
        if rollout.key.is_candidate:
            continue
        ready = [
            LiveRevision(own.published, each.share, each.tag, each.mirror)
            for each in rollout.live
            if (each.share or each.tag or each.mirror)
            and (own := rollouts.get(rollout.key.candidate(each.revision))) is not None
            if own.stable is not None
        ]
        if (release := rollout.release) is not None:
            compared = rollout.key.candidate(release.revision).name
            ready = [each._replace(compared=each.spec.name == compared) for each in ready]
        rest = rest_of(each.share for each in ready)
        found += [LiveRevision(rollout.published, rest, compared=release is not None), *ready]
    return found


def with_candidates(loads: Loads, rollouts: Mapping[ApplicationKey, Rollout]) -> Loads:
    """Return the loads that a caller reported. Some main revisions also have the load of a candidate.

    These are the candidates that are promoted, and those of canary releases. So an autoscaled main revision has enough
    replicas when it takes over, or when the release returns.
    """
    found = dict(loads)
    for key, rollout in rollouts.items():
        candidate = rollout.promoted if rollout.release is None else rollout.release.revision
        if candidate is None:
            continue
        for replica_set, load in loads.items():
            if replica_set.application_key == key.candidate(candidate):
                main = replica_set.main
                own = loads.get(main, NONE)
                found[main] = own[0] + load[0], own[1] + load[1], own[2] + load[2], own[3] + load[3]
    return found


def promoted_sets(
    rollouts: Mapping[ApplicationKey, Rollout], replica_sets: Iterable[AnySetKey]
) -> dict[AnySetKey, AnySetKey]:
    """Return the replica sets of promoted candidates, by those of the main revisions that take over their requests."""
    promoted = {key.candidate(rollout.promoted) for key, rollout in rollouts.items() if rollout.promoted is not None}
    return {key.main: key for key in replica_sets if isinstance(key, ReplicaSetKey) and key.application_key in promoted}


def removed(rollouts: Mapping[ApplicationKey, Rollout]) -> set[ApplicationKey]:
    """Return the candidates that were removed, and of those that no application has.

    The controller may have died after it stored a candidate, and before it stored the application.
    """
    known = {each.key.candidate(one.revision): one for each in rollouts.values() for one in each.candidates}
    unknown = {key for key in rollouts if key.is_candidate and key not in known}
    return unknown | {key for key, one in known.items() if one.removed}


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
    mirrors = [
        f"{100 * each.mirror:.4g} % mirrored to revision {each.revision}" for each in rollout.live if each.mirror
    ]
    return ", ".join([*(f"{100 * share:.4g} % revision {revision}" for revision, share in live), *mirrors])


def _with_step(rollout: Rollout, release: CanaryRelease) -> Rollout:
    """Return the rollout whose candidate has the share of the present step of this release."""
    candidates = [
        _with_share(each, release.share) if each.revision == release.revision else each for each in rollout.candidates
    ]
    return rollout.but(candidates=tuple(candidates), canary=release)


def _ended(rollout: Rollout, outcome: str, why: str) -> Rollout:
    return rollout if rollout.release is None else rollout.but(canary=rollout.release.ended(outcome, why))


def _promotion_undone(rollout: Rollout, why: str) -> Rollout:
    """Return the rollout whose canary release is aborted, if its candidate is the one that is being promoted."""
    release = rollout.canary
    if release is None or release.outcome != "promoted" or release.revision != rollout.promoted:
        return rollout
    return rollout.but(canary=release.but(outcome="aborted", why=why))


def _without_candidates(rollout: Rollout) -> Rollout:
    removed = [_removed(each) for each in rollout.candidates]
    return rollout.but(candidates=tuple(removed), promoted=None)


def _with_share(candidate: Candidate, share: float, mirror: float | None = None) -> Candidate:
    """`mirror`: None: it stays."""
    changed = candidate.model_copy(update={"share": share, "mirror": candidate.mirror if mirror is None else mirror})
    return changed if changed.share or changed.tag or changed.mirror else _removed(changed)


def _removed(candidate: Candidate) -> Candidate:
    return candidate.model_copy(update={"share": 0.0, "mirror": 0.0, "removed": True})


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


def _check_mirror(revision: int, mirror: float) -> None:
    if not 0 <= mirror <= 1:
        raise ConfigError(f"the mirror of revision {revision} is {100 * mirror:g} %; it should be between 0 and 100 %")


def _check_open(rollout: Rollout) -> None:
    if rollout.promoted is not None:
        raise ConfigError(
            f"revision {rollout.promoted} of application {rollout.name!r} is being promoted; wait until it is available"
        )


def _check_no_release(rollout: Rollout) -> None:
    if rollout.release is not None:
        raise ConfigError(
            f"revision {rollout.release.revision} of application {rollout.name!r} has a canary release, which sets the "
            "weights; abort it before you change them"
        )
