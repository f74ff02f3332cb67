"""Moves an application from one revision to the next, and back if the next revision fails.

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
from app_toolkit.core import restarts
from app_toolkit.core.applications import replica_set_keys
from app_toolkit.core.canary import CanaryRelease
from app_toolkit.core.identity import AnySetKey, ApplicationKey, ReplicaSetKey
from app_toolkit.core.publication import unrouting
from app_toolkit.core.replica_sets import ReplicaSet
from app_toolkit.core.replica_state import Phase, ReplicaRecord


@dataclass(frozen=True, slots=True)
class Reverted:
    """The result of a rollback."""

    application: str
    left: int | None
    """The number of the revision that ran before the rollback; None: not known."""
    to: int | None
    """The number of the earlier revision that runs after the rollback; None: not known."""
    revision: int
    """The new number of the earlier revision."""

    def __str__(self) -> str:
        left = "the current revision" if self.left is None else f"revision {self.left}"
        to = "the stable revision before it" if self.to is None else f"revision {self.to}"
        return f"application {self.application} goes back from {left} to {to}, which is revision {self.revision} now"


class Candidate(Model):
    """A live revision of an application beside its main revision, with replicas of its own."""

    revision: int
    share: Annotated[float, Field(ge=0, le=1, description="the share of the requests that it gets")]
    tag: Annotated[str | None, Field(description="selects it, whatever its share; None: it has no tag")] = None
    mirror: Annotated[
        float, Field(ge=0, le=1, description="the share of the requests of other revisions that it gets copies of")
    ] = 0.0
    removed: Annotated[
        bool, Field(description="whether it gets no more requests, and is deleted when none waits for it")
    ] = False


class Rollout(Model):
    """The revisions of one application, and the progress of its rollout. Plain data, which the state store keeps."""

    schema_version: Literal[1] = 1
    revision: Annotated[int, Field(ge=1, description="counts what was applied under this name")]
    desired: Annotated[ApplicationSpec, Field(description="the revision that was applied last")]
    stable: Annotated[ApplicationSpec | None, Field(description="the last available revision; None: none was yet")] = (
        None
    )
    previous_stable: Annotated[ApplicationSpec | None, Field(description="the stable revision before that")] = None
    stable_revision: Annotated[int | None, Field(description="the number of `stable`")] = None
    previous_stable_revision: Annotated[int | None, Field(description="the number of `previous_stable`")] = None
    published: Annotated[ApplicationSpec, Field(description="the revision whose route table is published to callers")]
    outgoing: Annotated[
        ApplicationSpec | None,
        Field(
            description="the revision that is being replaced; a deployment that only this one has stays as long as "
            "replicas whose code may call it are sent requests",
        ),
    ] = None
    failure: Annotated[
        str | None, Field(description="why `desired` failed and `stable` runs instead, with the last traceback")
    ] = None
    candidates: Annotated[
        tuple[Candidate, ...], Field(description="the other live revisions; the main revision gets the rest")
    ] = ()
    number_before: Annotated[int, Field(description="the number of the revision that was applied before; 0: none")] = 0
    last_number: Annotated[int, Field(description="the last number that a candidate got; 0: there was none")] = 0
    promoted: Annotated[
        int | None,
        Field(description="the candidate that gets all requests until the main revision is available with its spec"),
    ] = None
    canary: Annotated[
        CanaryRelease | None,
        Field(description="the last canary release, also after its end until another revision follows; None: none"),
    ] = None

    @property
    def next_number(self) -> int:
        """The number of the next revision."""
        return max(self.revision, self.last_number) + 1

    @property
    def share(self) -> float:
        """The share of the requests that the main revision gets."""
        return rest_of(each.share for each in self.candidates)

    @property
    def live(self) -> tuple[Candidate, ...]:
        """The candidates that are not removed."""
        return tuple(each for each in self.candidates if not each.removed)

    @property
    def release(self) -> CanaryRelease | None:
        """The canary release that goes on; None: there is none."""
        return self.canary if self.canary is not None and self.canary.goes_on else None

    @property
    def name(self) -> str:
        return self.desired.name

    @property
    def key(self) -> ApplicationKey:
        return ApplicationKey.parse(self.name)

    @property
    def current(self) -> ApplicationSpec:
        """The revision that should run."""
        return self.stable if self.failure is not None and self.stable is not None else self.desired

    @property
    def current_revision(self) -> int | None:
        """The number of the revision that should run; None: not known."""
        return self.stable_revision if self.failure is not None and self.stable is not None else self.revision

    def number_of(self, spec: ApplicationSpec) -> int:
        """Return the number of one of its revisions; 0: not known."""
        numbered = (
            (self.current, self.current_revision),
            (self.stable, self.stable_revision),
            (self.outgoing, self.number_before),
        )
        return next((number or 0 for revision, number in numbered if revision == spec), 0)

    @property
    def active(self) -> tuple[ApplicationSpec, ...]:
        """The revisions that may have replicas. If several have the same deployment, the last one defines its spec."""
        in_progress = () if self.outgoing is None else (*_known(self.stable), self.outgoing, self.published)
        return (*in_progress, self.current)

    @property
    def revisions(self) -> tuple[ApplicationSpec, ...]:
        """All revisions that may have to be started again."""
        return (*_known(self.previous_stable, self.stable, self.outgoing), self.published, self.desired)

    @property
    def is_settled(self) -> bool:
        """Whether the rollout has ended, so that nothing changes until another revision is applied."""
        return self.outgoing is None and (self.failure is not None or self.stable == self.desired)

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


def _known(*revisions: ApplicationSpec | None) -> tuple[ApplicationSpec, ...]:
    return tuple(revision for revision in revisions if revision is not None)


def applied(rollout: Rollout | None, spec: ApplicationSpec) -> Rollout:
    """Return the rollout after a revision was applied.

    The first revision is published at once, so that requests wait for its replicas.
    """
    if rollout is None:
        return Rollout(revision=1, desired=spec, published=spec)
    there = rollout.outgoing is None and spec == rollout.stable == rollout.published
    return rollout.but(
        revision=rollout.next_number,
        number_before=rollout.revision,
        desired=spec,
        outgoing=None if there else rollout.current,
        failure=None,
    )


def rollback_target(rollout: Rollout) -> ApplicationSpec | None:
    """Return the last stable revision other than the current one; None: there is none."""
    stable = _known(rollout.stable, rollout.previous_stable)
    return next((revision for revision in stable if revision != rollout.current), None)


def rollback_revision(rollout: Rollout) -> int | None:
    """Return the number of the revision that `rollback_target` returns; None: not known, or there is none."""
    numbered = ((rollout.stable, rollout.stable_revision), (rollout.previous_stable, rollout.previous_stable_revision))
    return next((number for revision, number in numbered if revision is not None and revision != rollout.current), None)


def step(rollout: Rollout, replica_sets: Mapping[AnySetKey, ReplicaSet]) -> Rollout:
    """Return the rollout after its next step in this state of the replica sets; the same object if nothing changes."""
    if rollout.is_settled:
        return rollout
    failure = failure_of(rollout, replica_sets)
    if failure is not None:
        return rollout.but(failure=failure, outgoing=rollout.desired)
    current = rollout.current
    if any(name not in replica_sets or replica_sets[name].spec is None for name in replica_set_keys(current)):
        return rollout
    changed = {name for revision in _known(rollout.outgoing, rollout.stable) for name in _changed(current, revision)}
    if all(_is_available(replica_sets[name], ready=name in changed) for name in replica_set_keys(current)):
        return _available(rollout)
    if rollout.published != current and (
        _same_table(rollout.published, current) or _has_ready_ingresses(current, replica_sets)
    ):
        return rollout.but(published=current)
    # Deployments that only the outgoing revision has may stop now: they are not published, and no replica can call
    # them. The replicas of the current revision may need their resources.
    if rollout.outgoing is not None and rollout.published == current and not _ask_others(current, replica_sets):
        return rollout.but(outgoing=None)
    return rollout


def _available(rollout: Rollout) -> Rollout:
    """Return the rollout after its current revision has become available."""
    current = rollout.current
    rollout = rollout.but(published=current, outgoing=None)
    if rollout.failure is not None:
        return rollout
    if rollout.stable == current:
        return rollout.but(stable_revision=rollout.revision)
    return rollout.but(
        stable=current,
        stable_revision=rollout.revision,
        previous_stable=rollout.stable,
        previous_stable_revision=rollout.stable_revision,
    )


def _ask_others(revision: ApplicationSpec, replica_sets: Mapping[AnySetKey, ReplicaSet]) -> bool:
    """Return whether requests still go to a replica of another revision, whose code may call other deployments."""
    return any(_others(replica_sets[name]) for name in replica_set_keys(revision))


def failure_of(rollout: Rollout, replica_sets: Mapping[AnySetKey, ReplicaSet]) -> str | None:
    """Return why the desired revision is about to be rolled back.

    None: it has not failed, was rolled back before, or there is no stable revision to return to.
    """
    if rollout.failure is not None or rollout.stable is None or rollout.stable == rollout.desired:
        return None
    for name in _changed(rollout.desired, rollout.stable):
        record = replica_sets[name].record if name in replica_sets else None
        if record is not None and restarts.has_failed(record.failures, _template_hash(rollout.desired, name)):
            return f"{name}: {record.last_error}"
    return None


def _changed(revision: ApplicationSpec, other: ApplicationSpec) -> Iterator[ReplicaSetKey]:
    """Yield the replica sets whose replicas must become ready, because they are replaced or reload options."""
    there = {each.config.name: each for each in other.deployments}
    for name, deployment in zip(replica_set_keys(revision), revision.deployments, strict=True):
        old = there.get(deployment.config.name)
        same = old is not None and old.config.reloadable_options == deployment.config.reloadable_options
        if not same or _template_hash(other, name) != _template_hash(revision, name):
            yield name


def _template_hash(revision: ApplicationSpec, replica_set: ReplicaSetKey) -> str:
    return revision.template_hash(replica_set.deployment)


def _is_available(replica_set: ReplicaSet, *, ready: bool) -> bool:
    """Return whether enough replicas run, and no requests go to other revisions. `ready`: they must also be ready."""
    spec, replicas = replica_set.spec, replica_set.record.replicas
    assert spec is not None
    mine = [
        replica
        for replica in replicas
        if replica.phase is Phase.RUNNING
        and replica.template_hash == spec.template_hash
        and replica.live == spec.live
        and (not ready or (replica.ready and not replica.failed_probes))
    ]
    return len(mine) >= spec.target and not _others(replica_set)


def _others(replica_set: ReplicaSet) -> list[ReplicaRecord]:
    """Return the replicas of other revisions that callers may still send requests to."""
    assert replica_set.spec is not None
    replicas = replica_set.record.replicas
    asked = [r for r in replicas if r.phase in (Phase.RUNNING, Phase.RECOVERING)] + unrouting(replicas)
    return [replica for replica in asked if replica.template_hash != replica_set.spec.template_hash]


def _same_table(one: ApplicationSpec, other: ApplicationSpec) -> bool:
    fields = "route_prefix", "root_path", "cors", "default", "routes"
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def _has_ready_ingresses(revision: ApplicationSpec, replica_sets: Mapping[AnySetKey, ReplicaSet]) -> bool:
    """Return whether each ingress of this revision has a ready replica or a target of 0."""
    key = ApplicationKey.parse(revision.name)
    return all(_serves(replica_sets[key.replica_set(name)]) for name in revision.ingresses)


def _serves(replica_set: ReplicaSet) -> bool:
    spec = replica_set.spec
    assert spec is not None
    return spec.target == 0 or any(
        replica.phase is Phase.RUNNING and replica.template_hash == spec.template_hash and replica.ready
        for replica in replica_set.record.replicas
    )


def active_revisions(rollouts: Iterable[Rollout]) -> list[ApplicationSpec]:
    """Return the revisions of all applications that may have replicas, in the order of `active` for each of them."""
    return [revision for rollout in rollouts for revision in rollout.active]
