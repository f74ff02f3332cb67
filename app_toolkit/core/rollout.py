"""From one version of an application to the next, and back by itself where the next one does not hold.

A *version* is an application as it was applied. It is *whole* once every deployment has as many replicas as it wants,
all of which have been well while they served, and nobody is told of any other; what is whole once is *good*.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from app_toolkit.config.models import ApplicationSpec, Model
from app_toolkit.core import restarts
from app_toolkit.core.applications import group_names
from app_toolkit.core.groups import Group
from app_toolkit.core.posted import on_the_way_out
from app_toolkit.core.replica_state import Phase, ReplicaRecord


@dataclass(frozen=True, slots=True)
class Reverted:
    """An application that went back to a version before."""

    application: str
    left: int | None
    """The number of the version that ran until then; None: not known."""
    to: int | None
    """The number that the version had which runs from now on; None: not known."""
    revision: int
    """The number that it has now."""

    def __str__(self) -> str:
        left = "the present revision" if self.left is None else f"revision {self.left}"
        to = "the good one before it" if self.to is None else f"revision {self.to}"
        return f"application {self.application} goes back from {left} to {to}, which is revision {self.revision} now"


class Rollout(Model):
    """Where an application stands between its versions; plain data, which the store keeps for the next controller."""

    schema_version: Literal[1] = 1
    revision: Annotated[int, Field(ge=1, description="counts what was applied under this name")]
    wanted: Annotated[ApplicationSpec, Field(description="what was applied last")]
    good: Annotated[ApplicationSpec | None, Field(description="the last that became whole; None: none has yet")] = None
    before: Annotated[ApplicationSpec | None, Field(description="the good one before that")] = None
    good_revision: Annotated[int | None, Field(description="the number of `good`; None: not known")] = None
    before_revision: Annotated[int | None, Field(description="the number of `before`; None: not known")] = None
    told: Annotated[ApplicationSpec, Field(description="the version whose route table callers are told")]
    leaving: Annotated[
        ApplicationSpec | None,
        Field(description="what is being replaced; what only this one has stays until nobody is asked who may call it"),
    ] = None
    failure: Annotated[
        str | None, Field(description="why `wanted` was given up for `good`, with the last traceback")
    ] = None

    @property
    def name(self) -> str:
        return self.wanted.name

    @property
    def present(self) -> ApplicationSpec:
        """The version that is to run."""
        return self.good if self.failure is not None and self.good is not None else self.wanted

    @property
    def present_revision(self) -> int | None:
        """The number of the version that is to run; None: not known."""
        return self.good_revision if self.failure is not None and self.good is not None else self.revision

    @property
    def kept(self) -> tuple[ApplicationSpec, ...]:
        """The versions of which something may still run; of a deployment that several have, the last one's counts."""
        under_way = () if self.leaving is None else (*_there(self.good), self.leaving, self.told)
        return (*under_way, self.present)

    @property
    def versions(self) -> tuple[ApplicationSpec, ...]:
        """All that may have to be started again."""
        return (*_there(self.before, self.good, self.leaving), self.told, self.wanted)

    @property
    def is_settled(self) -> bool:
        """Nothing more comes of it until something else is applied."""
        return self.leaving is None and (self.failure is not None or self.good == self.wanted)

    def but(self, **facts: Any) -> Self:
        """The same, with other facts."""
        return self.model_copy(update=facts)


def _there(*versions: ApplicationSpec | None) -> tuple[ApplicationSpec, ...]:
    return tuple(version for version in versions if version is not None)


def applied(rollout: Rollout | None, spec: ApplicationSpec) -> Rollout:
    """Once this version was applied. The first is told of at once: requests wait for its replicas."""
    if rollout is None:
        return Rollout(revision=1, wanted=spec, told=spec)
    there = rollout.leaving is None and spec == rollout.good == rollout.told
    return rollout.but(
        revision=rollout.revision + 1, wanted=spec, leaving=None if there else rollout.present, failure=None
    )


def previous(rollout: Rollout) -> ApplicationSpec | None:
    """The last good version other than the present one."""
    return next((version for version in _there(rollout.good, rollout.before) if version != rollout.present), None)


def previous_revision(rollout: Rollout) -> int | None:
    """The number of what `previous` gives."""
    numbered = ((rollout.good, rollout.good_revision), (rollout.before, rollout.before_revision))
    return next((number for version, number in numbered if version is not None and version != rollout.present), None)


def step(rollout: Rollout, groups: Mapping[str, Group]) -> Rollout:
    """Where it stands now that its groups are like this; the same object where nothing has come of it."""
    if rollout.is_settled:
        return rollout
    failure = _failure(rollout, groups)
    if failure is not None:
        return rollout.but(failure=failure, leaving=rollout.wanted)
    present = rollout.present
    if any(name not in groups or groups[name].spec is None for name in group_names(present)):
        return rollout
    changed = {name for version in _there(rollout.leaving, rollout.good) for name in _changed(present, version)}
    if all(_is_whole(groups[name], proven=name in changed) for name in group_names(present)):
        rollout = rollout.but(told=present, leaving=None)
        if rollout.failure is not None:
            return rollout
        if rollout.good == present:
            return rollout.but(good_revision=rollout.revision)
        return rollout.but(
            good=present,
            good_revision=rollout.revision,
            before=rollout.good,
            before_revision=rollout.good_revision,
        )
    if rollout.told != present and (_same_table(rollout.told, present) or _answers(present, groups)):
        return rollout.but(told=present)
    # What nobody is told of, and nobody runs who would call it, may go: perhaps somebody waits for its room.
    if rollout.leaving is not None and rollout.told == present and not _ask_others(present, groups):
        return rollout.but(leaving=None)
    return rollout


def _ask_others(version: ApplicationSpec, groups: Mapping[str, Group]) -> bool:
    """Whether in any of its groups a replica of another version is still asked, whose code may call what it calls."""
    return any(_others(groups[name]) for name in group_names(version))


def _failure(rollout: Rollout, groups: Mapping[str, Group]) -> str | None:
    """Why the wanted version is to be given up. The first one is not: there is nothing to go back to."""
    if rollout.failure is not None or rollout.good is None or rollout.good == rollout.wanted:
        return None
    for name in _changed(rollout.wanted, rollout.good):
        record = groups[name].record if name in groups else None
        if record is not None and restarts.is_given_up(record.failures, _revision(rollout.wanted, name)):
            return f"{name}: {record.last_error}"
    return None


def _changed(version: ApplicationSpec, other: ApplicationSpec) -> Iterator[str]:
    """The groups of which replicas have to show that they are well: they start, or take something up, that is new."""
    there = {each.config.name: each for each in other.deployments}
    for name, deployment in zip(group_names(version), version.deployments, strict=True):
        old = there.get(deployment.config.name)
        same = old is not None and old.config.live == deployment.config.live
        if not same or _revision(other, name) != _revision(version, name):
            yield name


def _revision(version: ApplicationSpec, group: str) -> str:
    return version.revision(group.partition("/")[2])


def _is_whole(group: Group, *, proven: bool) -> bool:
    spec, replicas = group.spec, group.record.replicas
    assert spec is not None
    mine = [r for r in replicas if r.phase is Phase.RUNNING and r.revision == spec.revision and r.live == spec.live]
    well = [r for r in mine if not proven or (r.proven and not r.failed_probes)]
    return len(well) >= spec.target and not _others(group)


def _others(group: Group) -> list[ReplicaRecord]:
    """Replicas of other versions that somebody may still ask."""
    assert group.spec is not None
    replicas = group.record.replicas
    asked = [r for r in replicas if r.phase in (Phase.RUNNING, Phase.RECOVERING)] + on_the_way_out(replicas)
    return [replica for replica in asked if replica.revision != group.spec.revision]


def _same_table(one: ApplicationSpec, other: ApplicationSpec) -> bool:
    return (one.route_prefix, one.default, one.routes) == (other.route_prefix, other.default, other.routes)


def _answers(version: ApplicationSpec, groups: Mapping[str, Group]) -> bool:
    """Whether each of its ingresses has a replica of this version that serves, and has been well."""
    return all(_serves(groups[f"{version.name}/{name}"]) for name in version.ingresses)


def _serves(group: Group) -> bool:
    spec = group.spec
    assert spec is not None
    return spec.target == 0 or any(
        replica.phase is Phase.RUNNING and replica.revision == spec.revision and replica.proven
        for replica in group.record.replicas
    )


def kept(rollouts: Iterable[Rollout]) -> list[ApplicationSpec]:
    """The versions of all of which something may still run, of each application the last to come last."""
    return [version for rollout in rollouts for version in rollout.kept]
