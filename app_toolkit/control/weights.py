"""Setting the weights of live revisions, and those of the members of a split. `traffic.py` has the decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from app_toolkit.contract.identity import parts_of
from app_toolkit.control import promotion, traffic
from app_toolkit.control.change import Change, State
from app_toolkit.control.command import Operation
from app_toolkit.control.operations import spec_changed
from app_toolkit.errors import ConfigError

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class SetTraffic(Operation[None]):
    """Set the weights of the live revisions of an application, and what they mirror.

    A revision that `weights` lacks has the weight 0. Without a tag and a mirror, it then drains and is removed, except
    for the main revision. If one of the others gets all weight, this is its promotion, once it is available. Every
    process follows within 2 seconds. Raises `ConfigError` if there is no such application or revision, a weight or a
    percentage is invalid, or a promotion would lack a deployment that another application calls.
    """

    application: str
    weights: Mapping[int, float] = field(default_factory=dict)
    """By the number of the revision, such as `{12: 90, 13: 10}`. Their sum is 100 %. Empty: they stay."""
    mirror: Mapping[int, float] = field(default_factory=dict)
    """By the number of the revision: the percentage of the requests of the others that it gets copies of, such as
    `{13: 50}`. 0 ends it. The percentage of a revision that is missing stays."""

    def apply(self, state: State) -> Change[None]:
        before = state.application(self.application)
        return promotion.traffic_changed(
            state, None, traffic.with_weights(before, self.weights, _shares_of(self.mirror))
        )


@dataclass(frozen=True, slots=True)
class SetSplit(Operation[int]):
    """Set the weights of the members of a split, and what they mirror, until the application is deployed again.

    Every process follows within 2 seconds. The result is the revision number, as soon as that is stored. Raises
    `ConfigError` if there is no such application, split or member, or a weight or a percentage is invalid.
    """

    split: str
    """`APPLICATION/SPLIT`."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """By the name of the member, such as `{"writer-v1": 90, "writer-v2": 10}`. Their sum is 100 %. Empty: they
    stay."""
    mirror: Mapping[str, float] = field(default_factory=dict)
    """By the name of the member: the percentage of the calls of the others that it gets copies of. 0 ends it. The
    percentage of a member that is missing stays."""
    revision: int | None = None
    """Another live revision than the main one; None: the main one."""

    def __post_init__(self) -> None:
        split_of(self.split)

    def apply(self, state: State) -> Change[int]:
        name, split = split_of(self.split)
        application, live = state.live(name, self.revision)
        spec = traffic.with_split(live.spec, split, self.weights, _shares_of(self.mirror))
        return spec_changed(state, application, live, spec)


def split_of(name: str) -> tuple[str, str]:
    """Return the parts of `APPLICATION/SPLIT`. Raises `ConfigError` if the name has another form."""
    application, split = parts_of(name)
    if not (application and split):
        raise ConfigError(f"{name!r} names no split: it should be APPLICATION/SPLIT")
    return application, split


def _shares_of(percentages: Mapping[K, float]) -> dict[K, float]:
    """Return shares between 0 and 1 instead of percentages."""
    return {key: percentage / 100 for key, percentage in percentages.items()}
