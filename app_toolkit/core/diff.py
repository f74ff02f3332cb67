"""Computes what applying an application would change in each deployment, and the effect on its replicas."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from app_toolkit.config.models import UNINTERPRETED, ApplicationSpec, DeploymentSpec, Model, Origin, SplitSpec

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
        return not self.changes and all(each.effect is Effect.UNCHANGED for each in self.deployments)

    def __str__(self) -> str:
        """What changes, on one line, such as `chat scaled (num_replicas 1 -> 4)`."""
        if self.is_new:
            return "new"
        changes = [
            f"{each.name} {each.effect}" + (f" ({', '.join(map(str, each.changes))})" if each.changes else "")
            for each in self.deployments
            if each.effect is not Effect.UNCHANGED
        ]
        return "; ".join([*map(str, self.changes), *changes]) or "no changes"


def difference(before: ApplicationSpec | None, after: ApplicationSpec) -> Diff:
    """Return what applying `after` would change. `before`: the application that was applied last; None: none was."""
    there = {} if before is None else {each.config.name: each for each in before.deployments}
    desired = {each.config.name: each for each in after.deployments}
    of_deployments = [
        DeploymentDifference(name, Effect.ADDED, (Change("num_replicas", NONE, str(each.config.num_replicas)),))
        if before is None or name not in there
        else _of_deployment(before, after, there[name], each)
        for name, each in desired.items()
    ]
    of_deployments += [DeploymentDifference(name, Effect.REMOVED) for name in there if name not in desired]
    return Diff(
        after.name, before is None, tuple(of_deployments), () if before is None else tuple(_of_whole(before, after))
    )


def of_part(difference: Diff, deployments: Collection[str]) -> Diff:
    """Return the part of a diff that concerns these deployments and the application as a whole."""
    return replace(difference, deployments=tuple(each for each in difference.deployments if each.name in deployments))


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
    from_origin = tuple(_of_origin(before.origin_of(name), after.origin_of(name)))
    if from_origin != tuple(_of_origin(before.origin, after.origin)):  # otherwise in the changes of the application
        changes = (*changes, *from_origin)
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
    if before.stream_log != after.stream_log:
        yield Change("stream_log", before.stream_log, after.stream_log)
    if before.loop != after.loop:
        yield Change("loop", before.loop, after.loop)
    if before.fork != after.fork:
        yield Change("fork", str(before.fork).lower(), str(after.fork).lower())
    if before.logging_config != after.logging_config:
        yield Change("logging_config")
    for fact in ("root_path", "cors"):
        if getattr(before, fact) != getattr(after, fact):
            yield Change(fact)
    yield from _of_splits(before, after)
    if before.routes != after.routes or before.default != after.default:
        yield Change("routes")
    yield from _of_origin(before.origin, after.origin)


def _of_splits(before: ApplicationSpec, after: ApplicationSpec) -> Iterator[Change]:
    one, other = ({name: value for each in spec.splits for name, value in _shares(each)} for spec in (before, after))
    for name in {**one, **other}:
        if one.get(name) != other.get(name):
            yield Change(f"splits.{name}", _shown(one.get(name)), _shown(other.get(name)))


def _shares(split: SplitSpec) -> Iterator[tuple[str, float]]:
    for member, share in split.shares.items():
        yield f"{split.name}.{member}", share
        if member in split.mirrors:
            yield f"{split.name}.{member}.mirror", split.mirrors[member]


def _of_origin(before: Origin, after: Origin) -> Iterator[Change]:
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
