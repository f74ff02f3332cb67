"""The live revisions of an application, and how each moves from one revision to the next, and back if that fails.

A *revision* is an application as it was applied. It is *available* once every deployment has reached its target, these
replicas are ready, and callers send requests to no replica of another revision. A revision that has been available is
*stable*: a rollback can return to it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import fsum
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from app_toolkit.config.models import ApplicationSpec, Model
from app_toolkit.contract.identity import FIRST, AnySetKey, LiveRevisionKey, ReplicaSetKey
from app_toolkit.control import backoff
from app_toolkit.control.application_specs import Revision, replica_set_keys
from app_toolkit.control.canary_analysis import CanaryRelease
from app_toolkit.control.facts import Facts
from app_toolkit.control.history import earlier_after, since_after, unscaled
from app_toolkit.control.publication import unrouting
from app_toolkit.control.replica_set import ReplicaSet
from app_toolkit.control.replica_state import Phase, ReplicaRecord


@dataclass(frozen=True, slots=True)
class Reverted:
    """The result of a rollback."""

    application: str
    left: int
    """The number of the revision that ran before the rollback."""
    to: int
    """The number of the earlier revision that runs after the rollback."""
    revision: int
    """The new number of the earlier revision."""

    def __str__(self) -> str:
        return (
            f"application {self.application} goes back from revision {self.left} to revision {self.to}, "
            f"which is revision {self.revision} now"
        )


@dataclass(frozen=True, slots=True)
class PerformedRollback:
    """A rollback by hand, so that it is answered again if a client repeats it."""

    to: int | None
    """The number of the earlier revision that the client has named; None: it named none."""
    result: Reverted


class LiveRevision(Model):
    """A revision that has replicas, and the progress of its update in place."""

    created: Annotated[int, Field(ge=1, description="the number with which its replica sets were created")]
    desired: Annotated[Revision, Field(description="what was applied last")]
    stable: Annotated[Revision | None, Field(description="what was available last; None: nothing was yet")] = None
    published: Annotated[Revision, Field(description="the revision whose route table is published to callers")]
    outgoing: Annotated[
        Revision | None,
        Field(
            description="the revision that is being replaced; a deployment that only this one has stays as long as "
            "replicas whose code may call it are sent requests",
        ),
    ] = None
    failure: Annotated[
        str | None, Field(description="why `desired` failed and `stable` runs instead, with the last traceback")
    ] = None
    share: Annotated[
        float, Field(ge=0, le=1, description="the share of the requests that a candidate gets; the main one the rest")
    ] = 0.0
    tag: Annotated[str | None, Field(description="selects it, whatever its share; None: it has no tag")] = None
    mirror: Annotated[
        float, Field(ge=0, le=1, description="the share of the requests of other revisions that it gets copies of")
    ] = 0.0

    @classmethod
    def begun(cls, number: int, spec: ApplicationSpec) -> Self:
        """Return a revision that starts. It is published at once, so that requests wait for its replicas."""
        revision = Revision(number, spec)
        return cls(created=number, desired=revision, published=revision)

    @property
    def key(self) -> LiveRevisionKey:
        return LiveRevisionKey(self.desired.spec.name, self.created)

    @property
    def current(self) -> Revision:
        """The revision that should run."""
        return self.stable if self.failure is not None and self.stable is not None else self.desired

    @property
    def spec(self) -> ApplicationSpec:
        """The spec of the revision that should run."""
        return self.current.spec

    @property
    def number(self) -> int:
        """The number of the revision that should run."""
        return self.current.number

    @property
    def is_ready(self) -> bool:
        """Whether it was available."""
        return self.stable is not None

    @property
    def active(self) -> tuple[Revision, ...]:
        """The revisions that may have replicas. If several have the same deployment, the last one defines its spec."""
        in_progress = () if self.outgoing is None else (*_known(self.stable), self.outgoing, self.published)
        return (*in_progress, self.current)

    @property
    def specs(self) -> tuple[ApplicationSpec, ...]:
        """The specs of all revisions that may have to be started again."""
        return tuple(spec for _, spec in (*_known(self.stable, self.outgoing), self.published, self.desired))

    @property
    def is_settled(self) -> bool:
        """Whether the update has ended, so that nothing changes until another revision is applied."""
        return self.outgoing is None and (self.failure is not None or self.stable == self.desired)

    def replica_set_keys(self) -> list[ReplicaSetKey]:
        """Return the keys of the replica sets of the revision that should run."""
        return replica_set_keys(self.key, self.spec)

    def but(self, **facts: Any) -> Self:
        """Return a copy with other values."""
        return self.model_copy(update=facts)


class Application(Model):
    """An application: its live revisions, which divide its requests, and its history. The state store keeps it."""

    schema_version: Literal[1] = 1
    main: Annotated[
        LiveRevision,
        Field(description="the revision that callers of other applications call, and that updates replace"),
    ]
    candidates: Annotated[tuple[LiveRevision, ...], Field(description="the other live revisions")] = ()
    removed: Annotated[
        tuple[LiveRevision, ...],
        Field(description="those that get no more requests, and are deleted when none waits for them"),
    ] = ()
    last_number: Annotated[int, Field(ge=1, description="the last number that a revision got")] = FIRST
    number_before: Annotated[
        int,
        Field(
            description="the number of the main revision before the last one was applied in its place; 0: there was "
            "none; that of the main revision: it was promoted"
        ),
    ] = 0
    rollback: Annotated[
        PerformedRollback | None, Field(description="the last rollback by hand; None: there was none")
    ] = None
    canary: Annotated[
        CanaryRelease | None,
        Field(description="the last canary release, also after its end until another revision follows; None: none"),
    ] = None
    facts: Annotated[Facts, Field(description="what operations have noted, which revisions do not change")] = Facts()
    history: Annotated[
        tuple[Revision, ...],
        Field(description="earlier main revisions that were stable, the newest last; they have no replicas"),
    ] = ()
    since: dict[int, float] = Field(
        default_factory=dict,
        description="when each of these and of the live revisions was applied or became the main revision, by number, "
        "in seconds of the Unix time",
    )

    @property
    def name(self) -> str:
        return self.main.desired.spec.name

    @property
    def revision(self) -> int:
        """The number of the main revision that was applied last."""
        return self.main.desired.number

    @property
    def next_number(self) -> int:
        """The number of the next revision."""
        return self.last_number + 1

    @property
    def share(self) -> float:
        """The share of the requests that the main revision gets."""
        return rest_of(candidate.share for candidate in self.candidates)

    @property
    def live(self) -> tuple[LiveRevision, ...]:
        """The revisions that may get requests, the main one first."""
        return (self.main, *self.candidates)

    @property
    def with_replicas(self) -> tuple[LiveRevision, ...]:
        """The live revisions and those that were removed."""
        return (*self.live, *self.removed)

    @property
    def release(self) -> CanaryRelease | None:
        """The canary release that goes on; None: there is none."""
        return self.canary if self.canary is not None and self.canary.goes_on else None

    @property
    def refusal(self) -> str | None:
        """Why a freeze refuses most operations, as a sentence; None: the application is not frozen."""
        frozen = self.facts.frozen
        return None if frozen is None else f"application {self.name!r} is frozen: {frozen.reason}"

    @property
    def specs(self) -> tuple[ApplicationSpec, ...]:
        """The specs of all revisions that may have to be started again."""
        earlier = tuple(revision.spec for revision in self.history)
        return (*earlier, *(spec for revision in self.with_replicas for spec in revision.specs))

    def candidate(self, number: int | None) -> LiveRevision | None:
        """Return the candidate with this number; None: there is none."""
        return next((candidate for candidate in self.candidates if candidate.number == number), None)

    def with_key(self, key: LiveRevisionKey) -> LiveRevision | None:
        """Return the revision with these replica sets; None: there is none."""
        return next((revision for revision in self.with_replicas if revision.key == key), None)

    def replaced(self, revision: LiveRevision) -> Self:
        """Return it with another state of the revision that has the same replica sets."""

        def new(revisions: Iterable[LiveRevision]) -> tuple[LiveRevision, ...]:
            return tuple(revision if other.created == revision.created else other for other in revisions)

        return self.but(main=new([self.main])[0], candidates=new(self.candidates), removed=new(self.removed))

    def without_ended_release(self) -> Self:
        """Return it without a canary release that has ended, which the status shows until another revision follows."""
        return self.but(canary=self.release)

    def but(self, **facts: Any) -> Self:
        """Return a copy with other values."""
        return self.model_copy(update=facts)


def rest_of(shares: Iterable[float]) -> float:
    """Return what these shares leave of 1. A rounding error is 0."""
    rest = 1.0 - fsum(shares)
    return rest if rest > 1e-9 else 0.0


def _known(*revisions: Revision | None) -> tuple[Revision, ...]:
    return tuple(revision for revision in revisions if revision is not None)


# Changes of the main revision


def applied(application: Application | None, spec: ApplicationSpec) -> Application:
    """Return the application after a spec was applied to its main revision, which keeps its replica sets.

    `application`: None: there is none of this name.
    """
    if application is None:
        return Application(main=LiveRevision.begun(FIRST, spec))
    number = application.next_number
    return application.but(
        main=updated(application.main, Revision(number, spec)),
        last_number=number,
        number_before=application.revision,
    )


def updated(live: LiveRevision, revision: Revision) -> LiveRevision:
    """Return a live revision after another one was applied in its place."""
    states = (live.stable, live.published)
    if live.outgoing is None and all(state is not None and state.spec == revision.spec for state in states):
        return live.but(desired=revision, stable=revision, published=revision, failure=None)
    return live.but(desired=revision, outgoing=live.current, failure=None)


def after_step(
    application: Application, key: LiveRevisionKey, replica_sets: Mapping[AnySetKey, ReplicaSet]
) -> Application:
    """Return the application after the next step of one revision; the same object if nothing changes.

    `key`: that of the revision.
    """
    before = application.with_key(key)
    after = None if before is None else step(before, replica_sets)
    return application if after is None or after is before else application.replaced(after)


def recorded(before: Application | None, after: Application, now: float) -> Application:
    """Return an application after a change, with the history that follows from the change.

    The stable main revision becomes an earlier one when its update becomes available, or another revision is promoted.
    A revision that is stable as soon as it is applied adds no earlier one.

    Parameters:
        before: The application before the change; None: there was none.
        after: The application after the change, with the history from before. It is the result if nothing follows.
        now: The present Unix time in seconds.
    """
    was = None if before is None else before.main
    promoted = was is not None and was.created != after.main.created
    replaced = was if was is not None and (promoted or was.desired == after.main.desired) else None
    history = earlier_after(after.history, None if replaced is None else replaced.stable, after.main.stable)
    revisions = (*history, *(revision for live in after.live for revision in (live.desired, *_known(live.stable))))
    numbers = {revision.number for revision in revisions}
    since = since_after(after.since, numbers, after.main.desired.number if promoted else None, now)
    return after if (history, since) == (after.history, after.since) else after.but(history=history, since=since)


def rollback_target(application: Application) -> Revision | None:
    """Return the last stable revision that differs in more than its numbers of replicas; None: there is none."""
    stable, current = (*application.history, *_known(application.main.stable)), unscaled(application.main.spec)
    return next((revision for revision in reversed(stable) if unscaled(revision.spec) != current), None)


# The progress of one live revision


def step(live: LiveRevision, replica_sets: Mapping[AnySetKey, ReplicaSet]) -> LiveRevision:
    """Return a live revision after its next step; the same object if its replica sets need none."""
    if live.is_settled:
        return live
    failure = failure_of(live, replica_sets)
    if failure is not None:
        return live.but(failure=failure, outgoing=live.desired)
    current, keys = live.current, live.replica_set_keys()
    if any(key not in replica_sets or replica_sets[key].spec is None for key in keys):
        return live
    before = _known(live.outgoing, live.stable)
    changed = {key for revision in before for key in _changed(live.key, current.spec, revision.spec)}
    if all(_is_available(replica_sets[key], ready=key in changed) for key in keys):
        return live.but(published=current, outgoing=None, stable=current if live.failure is None else live.stable)
    if live.published != current and (
        _same_table(live.published.spec, current.spec) or _has_ready_ingresses(live.key, current.spec, replica_sets)
    ):
        return live.but(published=current)
    # Deployments that only the outgoing revision has may stop now: they are not published, and no replica can call
    # them. The replicas of the current revision may need their resources.
    if live.outgoing is not None and live.published == current and not any(_others(replica_sets[key]) for key in keys):
        return live.but(outgoing=None)
    return live


def failure_of(live: LiveRevision, replica_sets: Mapping[AnySetKey, ReplicaSet]) -> str | None:
    """Return why the desired revision is about to be rolled back.

    None: it has not failed, was rolled back before, or there is no stable revision to return to.
    """
    desired = live.desired.spec
    if live.failure is not None or live.stable is None or live.stable.spec == desired:
        return None
    for key in _changed(live.key, desired, live.stable.spec):
        record = replica_sets[key].record if key in replica_sets else None
        if record is not None and backoff.has_failed(record.failures, desired.template_hash(key.deployment)):
            return f"{key.main}: {record.last_error}"
    return None


def _changed(live: LiveRevisionKey, spec: ApplicationSpec, other: ApplicationSpec) -> Iterator[ReplicaSetKey]:
    """Yield the replica sets whose replicas must become ready, because they are replaced or reload options."""
    before = {deployment.config.name: deployment for deployment in other.deployments}
    for key, deployment in zip(replica_set_keys(live, spec), spec.deployments, strict=True):
        old = before.get(key.deployment)
        same = old is not None and old.config.reloadable_options == deployment.config.reloadable_options
        if not same or other.template_hash(key.deployment) != spec.template_hash(key.deployment):
            yield key


def _is_available(replica_set: ReplicaSet, *, ready: bool) -> bool:
    """Return whether enough replicas run, and no requests go to other revisions. `ready`: they must also be ready."""
    spec, replicas = replica_set.spec, replica_set.record.replicas
    assert spec is not None
    matching = [
        replica
        for replica in replicas
        if replica.phase is Phase.RUNNING
        and replica.template_hash == spec.template_hash
        and replica.reloadable == spec.reloadable
        and (not ready or (replica.ready and not replica.failed_probes))
    ]
    return len(matching) >= spec.target and not _others(replica_set)


def _others(replica_set: ReplicaSet) -> list[ReplicaRecord]:
    """Return the replicas of other revisions that callers may still send requests to."""
    assert replica_set.spec is not None
    replicas = replica_set.record.replicas
    asked = [r for r in replicas if r.phase in (Phase.RUNNING, Phase.RECOVERING)] + unrouting(replicas)
    return [replica for replica in asked if replica.template_hash != replica_set.spec.template_hash]


def _same_table(one: ApplicationSpec, other: ApplicationSpec) -> bool:
    fields = "route_prefix", "root_path", "cors", "default", "routes"
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def _has_ready_ingresses(
    live: LiveRevisionKey, spec: ApplicationSpec, replica_sets: Mapping[AnySetKey, ReplicaSet]
) -> bool:
    """Return whether each ingress of this revision has a ready replica or a target of 0."""
    return all(_serves(replica_sets[live.replica_set(name)]) for name in spec.ingresses)


def _serves(replica_set: ReplicaSet) -> bool:
    spec = replica_set.spec
    assert spec is not None
    return spec.target == 0 or any(
        replica.phase is Phase.RUNNING and replica.template_hash == spec.template_hash and replica.ready
        for replica in replica_set.record.replicas
    )


def active_specs(applications: Iterable[Application]) -> list[tuple[LiveRevisionKey, ApplicationSpec]]:
    """Return the specs of all applications that may have replicas, with the keys of their live revisions.

    If several have one key and deployment, the last one counts.
    """
    return [
        (live.key, revision.spec)
        for application in applications
        for live in application.with_replicas
        for revision in live.active
    ]
