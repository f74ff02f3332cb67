"""Each change of the traffic of an application: the shares, tags and mirrors of its live revisions and splits."""

import re
from collections.abc import Iterable, Mapping, Sequence

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.contract.compared import Requests
from app_toolkit.contract.identity import FIRST, LiveRevisionKey
from app_toolkit.contract.loads import NONE, Loads
from app_toolkit.contract.shares import member_shares, mirror_shares, revision_shares
from app_toolkit.control.application import Application, LiveRevision, rest_of, updated
from app_toolkit.control.canary_analysis import CanaryPlan, CanaryRelease, Decision, next_step
from app_toolkit.control.publication import PublishedRevision
from app_toolkit.errors import ConfigError

_TAG = re.compile(r"[A-Za-z0-9._-]{1,64}")


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
    return spec.model_copy(update={"splits": tuple(after if other is before else other for other in spec.splits)})


# The live revisions of one application


def equal_candidate(application: Application, spec: ApplicationSpec) -> int | None:
    """Return the newest candidate that was deployed from this spec; None: there is none."""
    equal = (candidate for candidate in reversed(application.candidates) if candidate.desired.spec == spec)
    return next((candidate.number for candidate in equal), None)


def with_candidate(
    application: Application,
    spec: ApplicationSpec,
    share: float,
    tag: str | None = None,
    mirror: float = 0.0,
    revision: int | None = None,
) -> Application:
    """Return the application with a candidate, which becomes the main revision as by `completed`.

    Parameters:
        application: The application.
        spec: That of a new candidate.
        share: The share of the requests that it gets, between 0 and 1. The other revisions share the rest.
        tag: Selects it, whatever its share. None: it has no tag.
        mirror: The share of the requests of the others that it gets copies of, between 0 and 1.
        revision: The number of a candidate whose traffic changes; None: a new candidate starts.

    Raises:
        ConfigError: A share is not between 0 and 1, another live revision has the tag, or a canary release sets the
            shares.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"the traffic of a new revision is {100 * share:g} %; it should be between 0 and 100 %")
    if tag is not None and not _TAG.fullmatch(tag):
        raise ConfigError(f"the tag {tag!r} should have 1 to 64 letters, digits, dots, hyphens and underscores")
    number = application.next_number if revision is None else revision
    before = application.candidate(number) or LiveRevision.begun(number, spec)
    _check_mirror(number, mirror)
    if share != before.share:
        _check_no_release(application)
    others = [candidate for candidate in application.candidates if candidate.number != number]
    if tag is not None and (tagged := next((candidate for candidate in others if candidate.tag == tag), None)):
        raise ConfigError(
            f"revision {tagged.number} of application {application.name!r} has the tag {tag!r}; choose another one, or "
            f"run `app-toolkit delete {application.name} --revision {tagged.number}` before"
        )
    application = application.without_ended_release().but(last_number=max(number, application.last_number))
    # If this one had all requests, the main revision gets the rest.
    rest = 1.0 if share == before.share else (1 - share) / (1 - before.share or 1)
    changed = [
        _with_share(candidate, candidate.share * rest, candidate.mirror) if candidate.share else candidate
        for candidate in others
    ]
    candidate = before.but(share=share, tag=tag, mirror=mirror)
    return completed(_with_candidates(application, [*filter(None, changed), candidate]))


def with_weights(
    application: Application, weights: Mapping[int, float], mirrors: Mapping[int, float] | None = None
) -> Application:
    """Return the application with other shares. A candidate without a weight, a tag and a mirror is removed.

    A candidate that gets all requests becomes the main revision as by `completed`.

    Parameters:
        application: The application.
        weights: Positive numbers of any sum, by revision. A revision that is missing has the weight 0. Empty: the
            shares stay, if there are mirrors.
        mirrors: By candidate, the share of the requests of other revisions that it gets copies of. The share of a
            candidate that is missing stays. None: all stay.

    Raises:
        ConfigError: The weights are invalid (see `shares`), or a mirror is no candidate or not between 0 and 1.
    """
    mirrors = mirrors or {}
    for number, mirror in mirrors.items():
        _one_candidate(application, number)
        _check_mirror(number, mirror)
    if not weights and mirrors:
        changed = [
            _with_share(candidate, candidate.share, mirrors[candidate.number])
            if candidate.number in mirrors
            else candidate
            for candidate in application.candidates
        ]
        return _with_candidates(application, list(filter(None, changed)))
    _check_no_release(application)
    removed = {revision.number for revision in application.removed}
    weights = {number: weight for number, weight in weights.items() if weight or number not in removed}
    shares = revision_shares(weights, [revision.number for revision in application.live], application.name)
    changed = [
        _with_share(candidate, shares[candidate.number], mirrors.get(candidate.number, candidate.mirror))
        for candidate in application.candidates
    ]
    return completed(_with_candidates(application, list(filter(None, changed))))


def completed(application: Application) -> Application:
    """Return the application in which a candidate that gets all requests is the main revision.

    It is the same object if no candidate gets all requests, that one was not available yet, or a canary release goes
    on. Other candidates, which have a tag or a mirror, stay.
    """
    whole = (
        candidate for candidate in application.candidates if rest_of([candidate.share]) == 0 and candidate.is_ready
    )
    candidate = next(whole, None)
    if candidate is None or application.release is not None:
        return application
    return _with_main(application.without_ended_release(), candidate)


def promoted(application: Application, revision: int | None) -> Application:
    """Return the application in which a candidate is the main revision, and gets all requests. The others are removed.

    It is the same object if `revision` was promoted before. Its replica sets stay: nothing starts. A canary release
    ends.

    `revision`: the number of the candidate; None: the only one. Raises `ConfigError` if there is no such candidate, or
    it was not available yet.
    """
    if _is_promoted(application, revision):
        return application  # the client repeats a request that was performed before
    candidate = _one_candidate(application, revision)
    if not candidate.is_ready:
        raise ConfigError(f"revision {candidate.number} of application {application.name!r} is not available yet")
    after = _with_candidates(application.without_ended_release(), [candidate])
    return _with_main(_ended(after, "promoted", f"revision {candidate.number} is promoted"), candidate)


def aborted(application: Application) -> Application:
    """Return the application whose main revision gets all requests, and whose candidates are removed."""
    return _ended(_with_candidates(application, ()), "aborted", "it was aborted")


def removed_one(application: Application, revision: int) -> Application:
    """Return the application in which a candidate is removed. The other revisions share its requests.

    Raises `ConfigError` if there is no such candidate.
    """
    candidate = _one_candidate(application, revision)
    if application.release is not None and application.release.revision == revision:
        application = _ended(application, "aborted", f"revision {revision} was deleted")
    rest = rest_of([candidate.share])
    return _with_candidates(
        application,
        [
            other.but(share=min(other.share / rest, 1.0) if rest > 0 else other.share)
            for other in application.candidates
            if other is not candidate
        ],
    )


def with_release(application: Application, revision: int | None, plan: CanaryPlan) -> Application:
    """Return the application in which a canary release of a candidate begins.

    It is the same object if this release goes on. `revision`: the candidate; None: the only one. Raises `ConfigError`
    if there is no such candidate, another one gets requests, or another release goes on.
    """
    release = plan.begin(_one_candidate(application, revision).number)
    going_on = application.release
    if going_on is not None and going_on.but(step=0, paused=False, measured=None) == release:
        return application
    _check_no_release(application)
    others = [other for other in application.candidates if other.share and other.number != release.revision]
    if others:
        raise ConfigError(
            f"revision {others[0].number} of application {application.name!r} gets requests, too; a canary release "
            "compares only one revision with the main revision"
        )
    return _with_step(application, release)


def with_paused(application: Application, *, paused: bool) -> Application:
    """Return the application whose canary release is paused, or goes on.

    Raises `ConfigError` if there is no release.
    """
    if application.release is None:
        raise ConfigError(f"application {application.name!r} has no canary release that goes on")
    release = application.release.but(paused=paused)
    return application if release == application.release else application.but(canary=release)


def after_decision(
    application: Application, release: CanaryRelease, decision: Decision, baseline: Requests
) -> Application:
    """Return the application after a decision about its canary release; the same object if that is another one now.

    A release that finishes is promoted by `promoted`. `baseline`: the main revision's requests in the present step.
    """
    if application.canary != release:
        return application
    if decision.action == "advance":
        return _with_step(application, next_step(release, baseline))
    if decision.action == "return":
        return removed_one(application.but(canary=release.ended("returned", decision.why)), release.revision)
    return application


def without(application: Application, key: LiveRevisionKey) -> Application:
    """Return the application without a removed revision that is gone."""
    return application.but(removed=tuple(revision for revision in application.removed if revision.key != key))


def published(applications: Iterable[Application]) -> list[PublishedRevision]:
    """Return the revisions whose routes are published, with the shares of those that share a route prefix.

    A candidate is published once it was available. Until then the main revision gets its requests.
    """
    revisions = []
    for application in applications:
        main, release = application.main, application.release
        ready = [
            PublishedRevision(
                candidate.key,
                candidate.published.spec,
                candidate.share,
                candidate.tag,
                candidate.mirror,
                compared=release is not None and release.revision == candidate.number,
                is_main=False,
            )
            for candidate in application.candidates
            if candidate.is_ready and (candidate.share or candidate.tag or candidate.mirror)
        ]
        rest = rest_of(revision.share for revision in ready)
        revisions += [PublishedRevision(main.key, main.published.spec, rest, compared=release is not None), *ready]
    return revisions


def with_candidates(loads: Loads, applications: Iterable[Application]) -> Loads:
    """Return the loads that a caller reported. Main revisions also have the load of a candidate in a canary release.

    So an autoscaled main revision has enough replicas when the release returns.
    """
    total = dict(loads)
    for application in applications:
        release = application.release
        candidate = None if release is None else application.candidate(release.revision)
        if candidate is None:
            continue
        for replica_set, load in loads.items():
            if replica_set.live_revision == candidate.key:
                main = application.main.key.replica_set(replica_set.deployment)
                before = total.get(main, NONE)
                total[main] = before[0] + load[0], before[1] + load[1], before[2] + load[2], before[3] + load[3]
    return total


def longest_wait_s(live: LiveRevision) -> float:
    """Return the longest time in seconds for which a request of a revision may wait in a queue."""
    return max((deployment.config.max_queue_wait_s for deployment in live.spec.deployments), default=0.0)


def without_ingresses(live: LiveRevision) -> LiveRevision | None:
    """Return a revision without its ingresses. None: it has none, or nothing else."""
    spec = live.spec
    rest = tuple(deployment for deployment in spec.deployments if deployment.kind == "class")
    if not rest or len(rest) == len(spec.deployments):
        return None
    spec = spec.model_copy(update={"deployments": rest, "default": None, "routes": ()})
    return updated(live, live.current._replace(spec=spec))


def longest_drain_s(live: LiveRevision) -> float:
    """Return the longest time in seconds for which an ingress of a revision may drain."""
    ingresses = [deployment.config for deployment in live.spec.deployments if deployment.kind == "ingress"]
    return max((config.graceful_shutdown_timeout_s for config in ingresses), default=0.0)


def summary(application: Application) -> str:
    """Return the shares of all live revisions as text, such as `90 % revision 12, 10 % revision 13`."""
    candidates = application.candidates
    shares = {application.main.number: application.share}
    shares |= {candidate.number: candidate.share for candidate in candidates}
    mirrors = {candidate.number: candidate.mirror for candidate in candidates if candidate.mirror}
    parts = [f"{100 * share:.4g} % revision {number}" for number, share in shares.items()]
    parts += [f"{100 * mirror:.4g} % mirrored to revision {number}" for number, mirror in mirrors.items()]
    return ", ".join(parts)


def _with_main(application: Application, candidate: LiveRevision) -> Application:
    """Return the application in which a candidate takes the place of the main revision, with its replica sets."""
    before = application.main
    others = tuple(other for other in application.candidates if other is not candidate)
    return application.but(
        main=candidate.but(share=0.0, tag=None, mirror=0.0),
        candidates=others,
        removed=(*application.removed, before),
        number_before=candidate.desired.number,
    )


def _is_promoted(application: Application, revision: int | None) -> bool:
    """Return whether the main revision is this one, and was a candidate.

    One that replaced a promoted revision in place has another number than its replica sets.
    """
    main = application.main
    return main.created == revision == main.desired.number != FIRST


def _with_candidates(application: Application, candidates: Sequence[LiveRevision]) -> Application:
    """Return the application with these candidates. The others are removed."""
    kept = {candidate.created for candidate in candidates}
    removed = [other.but(share=0.0, mirror=0.0) for other in application.candidates if other.created not in kept]
    return application.but(candidates=tuple(candidates), removed=(*application.removed, *removed))


def _with_step(application: Application, release: CanaryRelease) -> Application:
    """Return the application whose candidate has the share of the present step of this release."""
    candidates = [
        candidate.but(share=release.share) if candidate.number == release.revision else candidate
        for candidate in application.candidates
    ]
    return _with_candidates(application, candidates).but(canary=release)


def _ended(application: Application, outcome: str, why: str) -> Application:
    release = application.release
    return application if release is None else application.but(canary=release.ended(outcome, why))


def _with_share(candidate: LiveRevision, share: float, mirror: float) -> LiveRevision | None:
    """Return a candidate with another share and mirror; None: nothing keeps it live."""
    changed = candidate.but(share=share, mirror=mirror)
    return changed if changed.share or changed.tag or changed.mirror else None


def _one_candidate(application: Application, revision: int | None) -> LiveRevision:
    candidates = application.candidates
    if not candidates:
        raise ConfigError(f"application {application.name!r} has no live revision beside its main revision")
    if revision is None and len(candidates) == 1:
        return candidates[0]
    candidate = None if revision is None else application.candidate(revision)
    if candidate is None:
        numbers = ", ".join(str(candidate.number) for candidate in candidates)
        which = "name one of them" if revision is None else f"{revision} is none of them"
        raise ConfigError(f"application {application.name!r} has the live revisions {numbers}; {which}")
    return candidate


def _check_mirror(revision: int, mirror: float) -> None:
    if not 0 <= mirror <= 1:
        raise ConfigError(f"the mirror of revision {revision} is {100 * mirror:g} %; it should be between 0 and 100 %")


def _check_no_release(application: Application) -> None:
    if application.release is not None:
        raise ConfigError(
            f"revision {application.release.revision} of application {application.name!r} has a canary release, which "
            "sets the weights; abort it before you change them"
        )
