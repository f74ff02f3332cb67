"""Computes what applying an application would change in each deployment, and the effect on its replicas."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app_toolkit.config.models import (
    UNINTERPRETED,
    ApplicationConfig,
    ApplicationSpec,
    DeploymentSpec,
    Model,
    SplitSpec,
)

NONE = "none"

MOST_NAMES = 5
"""Maximum number of files that a sentence names."""


class Effect(StrEnum):
    """The effect on the replicas of one deployment."""

    ADDED = "added"
    REMOVED = "removed"
    RESTARTED = "restarted"
    """New replicas replace all running ones."""
    RECONFIGURED = "reconfigured"
    """The replicas apply changed options while they run."""
    SCALED = "scaled"
    """The number of replicas changes."""
    KEPT = "kept"
    """The replicas do not change. An option changes that only concerns their callers or the controller."""
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Change:
    """One option that changes."""

    option: str
    before: str = ""
    after: str = ""
    """The values before and after, for display; both are empty if the values are secret or too long. For files, only
    `after` is set, and has their names: `+` precedes an added one, and `-` a removed one."""

    def __str__(self) -> str:
        if self.before:
            return f"{self.option} {self.before} -> {self.after}"
        return f"{self.option} changed" + (f": {self.after}" if self.after else "")


@dataclass(frozen=True, slots=True)
class DeploymentDifference:
    name: str
    effect: Effect
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between a running application and its new revision."""

    name: str
    is_new: bool
    deployments: tuple[DeploymentDifference, ...]
    """The deployments of the new revision, followed by the removed ones."""
    changes: tuple[Change, ...] = ()
    """The changes that concern the application as a whole."""

    @property
    def is_empty(self) -> bool:
        return not self.changes and all(deployment.effect is Effect.UNCHANGED for deployment in self.deployments)

    def __str__(self) -> str:
        """What changes, on one line, such as `chat scaled (num_replicas 1 -> 4)`."""
        if self.is_new:
            return "new"
        changes = [
            f"{deployment.name} {deployment.effect}"
            + (f" ({', '.join(map(str, deployment.changes))})" if deployment.changes else "")
            for deployment in self.deployments
            if deployment.effect is not Effect.UNCHANGED
        ]
        return "; ".join([*map(str, self.changes), *changes]) or "no changes"


def difference(before: ApplicationSpec | None, after: ApplicationSpec) -> Diff:
    """Return what applying `after` would change. `before`: the application that was applied last; None: none was."""
    applied = {} if before is None else {deployment.config.name: deployment for deployment in before.deployments}
    desired = {deployment.config.name: deployment for deployment in after.deployments}
    of_deployments = [
        DeploymentDifference(name, Effect.ADDED, (Change("num_replicas", NONE, str(deployment.config.num_replicas)),))
        if before is None or name not in applied
        else _of_deployment(before, after, applied[name], deployment)
        for name, deployment in desired.items()
    ]
    of_deployments += [DeploymentDifference(name, Effect.REMOVED) for name in applied if name not in desired]
    return Diff(
        after.name, before is None, tuple(of_deployments), () if before is None else tuple(_of_whole(before, after))
    )


def options_changed(before: Model, after: Model) -> tuple[Change, ...]:
    """Return the options with different values, by their dotted names.

    If only one of the two has a group of options, every option of the group is returned.
    """
    one, other = dict(_flat(before.model_dump(mode="json"))), dict(_flat(after.model_dump(mode="json")))
    return tuple(
        Change(option)
        if option in UNINTERPRETED
        else Change(option, _shown(one.get(option)), _shown(other.get(option)))
        for option in {**one, **other}
        if one.get(option) != other.get(option)
    )


def _of_deployment(
    before: ApplicationSpec, after: ApplicationSpec, one: DeploymentSpec, other: DeploymentSpec
) -> DeploymentDifference:
    name, changes = other.config.name, options_changed(one.config, other.config)
    if before.template_hash(name) != after.template_hash(name):
        effect = Effect.RESTARTED
    elif one.config.reloadable_options != other.config.reloadable_options:
        effect = Effect.RECONFIGURED
    elif one.config.num_replicas != other.config.num_replicas:
        effect = Effect.SCALED
    else:
        effect = Effect.KEPT if changes else Effect.UNCHANGED
    return DeploymentDifference(name, effect, changes)


def _of_whole(before: ApplicationSpec, after: ApplicationSpec) -> Iterator[Change]:
    if before.route_prefix != after.route_prefix:
        yield Change("route_prefix", _shown(before.route_prefix), _shown(after.route_prefix))
    for name in ApplicationConfig.model_fields:
        values = getattr(before, name), getattr(after, name)
        if values[0] != values[1]:
            is_table = any(isinstance(value, Mapping) for value in values)  # it may contain secrets
            yield Change(name) if is_table else Change(name, *map(_shown, values))
    for fact in ("root_path", "cors"):
        if getattr(before, fact) != getattr(after, fact):
            yield Change(fact)
    yield from _of_splits(before, after)
    if before.routes != after.routes or before.default != after.default:
        yield Change("routes")
    yield from _of_code(before, after)


def _of_splits(before: ApplicationSpec, after: ApplicationSpec) -> Iterator[Change]:
    one, other = ({name: value for split in spec.splits for name, value in _shares(split)} for spec in (before, after))
    for name in {**one, **other}:
        if one.get(name) != other.get(name):
            yield Change(f"splits.{name}", _shown(one.get(name)), _shown(other.get(name)))


def _shares(split: SplitSpec) -> Iterator[tuple[str, float]]:
    for member, share in split.shares.items():
        yield f"{split.name}.{member}", share
        if member in split.mirrors:
            yield f"{split.name}.{member}.mirror", split.mirrors[member]


def _of_code(before: ApplicationSpec, after: ApplicationSpec) -> Iterator[Change]:
    if before.code != after.code:
        yield Change("code")
    for fact in ("target", "app_dir", "working_dir"):
        one, other = getattr(before, fact), getattr(after, fact)
        if one != other:
            yield Change(fact, _shown(one), _shown(other))
    if (before.artifact, before.sources) != (after.artifact, after.sources):  # last, because it is a list
        yield Change("files", after=listed(_changed_files(before.files, after.files)))


def _changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of changed, added and removed files; nothing if one of the revisions has no names."""
    if not before or not after:
        return []
    return [
        *sorted(name for name in before.keys() & after.keys() if before[name] != after[name]),
        *(f"+{name}" for name in sorted(after.keys() - before.keys())),
        *(f"-{name}" for name in sorted(before.keys() - after.keys())),
    ]


def listed(names: Sequence[str]) -> str:
    """Return names for a sentence: at most `MOST_NAMES`, and the number of the others."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _flat(options: Mapping[str, Any], around: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the options by dotted names. Options in `UNINTERPRETED` contain mappings of users and are not split."""
    for name, value in options.items():
        option = f"{around}{name}"
        if isinstance(value, Mapping) and option not in UNINTERPRETED:
            yield from _flat(value, f"{option}.")
        else:
            yield option, value


def _shown(value: Any) -> str:
    if value is None or value == "":
        return NONE
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
