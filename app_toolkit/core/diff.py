"""What an apply would change: said of each deployment, with what that does to its replicas."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from app_toolkit.config.models import ApplicationSpec, DeploymentSpec, Model, Origin

HIDDEN = ("user_config", "ray_actor_options.runtime_env")
"""Options with values that may be secrets: of them it is said that they change, and no more."""

NONE = "none"


class Effect(StrEnum):
    """What becomes of the replicas of one deployment."""

    ADDED = "added"
    REMOVED = "removed"
    RESTARTED = "restarted"
    """New ones take over from all that run."""
    RECONFIGURED = "reconfigured"
    """They take up options while they run."""
    SCALED = "scaled"
    """There are more or fewer of them."""
    KEPT = "kept"
    """Nothing, though an option changes that concerns their callers or the controller."""
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Change:
    """One option that changes."""

    option: str
    before: str = ""
    after: str = ""
    """Both as people read them; empty where the values are not to be seen, or too long."""

    def __str__(self) -> str:
        return f"{self.option} {self.before} -> {self.after}" if self.before or self.after else f"{self.option} changed"


@dataclass(frozen=True, slots=True)
class DeploymentDifference:
    name: str
    effect: Effect
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Diff:
    """Between an application that runs and the same as it is to be."""

    name: str
    is_new: bool
    deployments: tuple[DeploymentDifference, ...]
    """As they are to be, then those that are removed."""
    changes: tuple[Change, ...] = ()
    """What concerns the application as a whole."""

    @property
    def is_empty(self) -> bool:
        return not self.changes and all(each.effect is Effect.UNCHANGED for each in self.deployments)


def difference(before: ApplicationSpec | None, after: ApplicationSpec) -> Diff:
    """What applying `after` does where `before` was applied last; None: nothing was."""
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
    """What it says of these deployments, and of the application as a whole."""
    return replace(difference, deployments=tuple(each for each in difference.deployments if each.name in deployments))


def options_changed(before: Model, after: Model) -> tuple[Change, ...]:
    """The options that two say differently, by their dotted names; of a part that only one has, each option."""
    one, other = dict(_flat(before.model_dump(mode="json"))), dict(_flat(after.model_dump(mode="json")))
    return tuple(
        Change(option) if option in HIDDEN else Change(option, _shown(one.get(option)), _shown(other.get(option)))
        for option in {**one, **other}
        if one.get(option) != other.get(option)
    )


def _of_deployment(
    before: ApplicationSpec, after: ApplicationSpec, one: DeploymentSpec, other: DeploymentSpec
) -> DeploymentDifference:
    name, changes = other.config.name, options_changed(one.config, other.config)
    from_elsewhere = tuple(_of_origin(before.origin_of(name), after.origin_of(name)))
    if from_elsewhere != tuple(_of_origin(before.origin, after.origin)):  # which is said once, of the whole
        changes = (*from_elsewhere, *changes)
    if before.template_hash(name) != after.template_hash(name):
        effect = Effect.RESTARTED
    elif one.config.live != other.config.live:
        effect = Effect.RECONFIGURED
    elif one.config.num_replicas != other.config.num_replicas:
        effect = Effect.SCALED
    else:
        effect = Effect.KEPT if changes else Effect.UNCHANGED
    return DeploymentDifference(name, effect, changes)


def _of_whole(before: ApplicationSpec, after: ApplicationSpec) -> Iterator[Change]:
    yield from _of_origin(before.origin, after.origin)
    if before.route_prefix != after.route_prefix:
        yield Change("route_prefix", _shown(before.route_prefix), _shown(after.route_prefix))
    if before.routes != after.routes or before.default != after.default:
        yield Change("routes")


def _of_origin(before: Origin, after: Origin) -> Iterator[Change]:
    if (before.artifact, before.sources) != (after.artifact, after.sources):
        yield Change("files")
    if before.code != after.code:
        yield Change("code")
    for fact in ("target", "app_dir", "working_dir"):
        one, other = getattr(before, fact), getattr(after, fact)
        if one != other:
            yield Change(fact, _shown(one), _shown(other))


def _flat(options: Mapping[str, Any], around: str = "") -> Iterator[tuple[str, Any]]:
    """By dotted names. What users have put together themselves stays in one piece."""
    for name, value in options.items():
        option = f"{around}{name}"
        if isinstance(value, Mapping) and option not in HIDDEN:
            yield from _flat(value, f"{option}.")
        else:
            yield option, value


def _shown(value: Any) -> str:
    if value is None or value == "":
        return NONE
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
