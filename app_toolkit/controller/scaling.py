"""The targets of deployments that follow their load: reports come in, targets go out."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from app_toolkit.config.models import AutoscalingConfig
from app_toolkit.core.autoscale import Autoscaler, Decision, Report
from app_toolkit.core.groups import Group
from app_toolkit.core.reconcile import GroupSpec
from app_toolkit.core.replica_state import Phase
from app_toolkit.core.reports import Loads
from app_toolkit.core.status import ScalingStatus
from app_toolkit.observability.story import Story


@dataclass(slots=True)
class _Scaled:
    autoscaler: Autoscaler
    target: int
    """What was last given as the target of its group."""
    due: float | None = None
    why: str | None = None
    """Of the last change of its target."""


class Scaling:
    """One autoscaler for each group whose spec has a config, asked when something was heard or came due.

    * A new group begins as its config says, one that had a number with that number, one whose config or limits changed
      with the target it has. To be specified again the same changes nothing.
    * After a restart a group begins with what runs, once everybody there has said what it is.
    """

    def __init__(self, story: Story) -> None:
        self._story = story
        self._scaled: dict[str, _Scaled] = {}
        self._recovering: set[str] = set()
        """Found after a restart: some of their replicas may be on their way out."""
        self._stirred: set[str] = set()
        """To be looked at before they come due."""

    # What is wanted

    def adopt(self, specs: Mapping[str, GroupSpec], found: Mapping[str, Group], now: float) -> None:
        """After a restart: these were wanted before it, and those in `found` had replicas."""
        for name, spec in specs.items():
            if spec.autoscaling is not None and name in found:
                self._recovering.add(name)
            elif spec.autoscaling is not None:
                self._begin(spec, spec.autoscaling, 0, now)

    def scaled(self, specs: Mapping[str, GroupSpec], known: Mapping[str, Group], now: float) -> dict[str, GroupSpec]:
        """From now on exactly these groups are wanted: their specs, with the targets that their load asks for."""
        for name in self._scaled.keys() - specs.keys():
            del self._scaled[name]
        self._recovering &= specs.keys()
        return {name: self._with_target(spec, known.get(name), now) for name, spec in specs.items()}

    def _with_target(self, spec: GroupSpec, group: Group | None, now: float) -> GroupSpec:
        name, config = spec.group, spec.autoscaling
        if config is None:
            self._scaled.pop(name, None)
            self._recovering.discard(name)
            return spec
        if name in self._recovering:
            return replace(spec, target=_standing(group, config))
        there = self._scaled.get(name)
        if there is None:
            before = group.spec if group is not None and group.wanted else None
            there = self._begin(spec, config, (before or spec).target, now)
        elif (there.autoscaler.config, there.autoscaler.shares) != (config, _shares(spec)):
            there = self._begin(spec, config, there.target, now)
        return replace(spec, target=there.target)

    def _begin(self, spec: GroupSpec, config: AutoscalingConfig, target: int, now: float) -> _Scaled:
        autoscaler = Autoscaler(config, target, now, *_shares(spec))
        there = self._scaled[spec.group] = _Scaled(autoscaler, autoscaler.decide(now).target)
        self._stirred.add(spec.group)
        return there

    # What is known

    def hear(self, caller: str, loads: Loads, now: float) -> bool:
        """A caller says its loads. False: of some nobody takes note yet, and it is to say them again."""
        heard = True
        for name, load in loads.items():
            there = self._scaled.get(name)
            if there is not None:
                there.autoscaler.hear(Report(caller, now, *load), now)
                self._look(name, there, now)
            elif name in self._recovering:
                heard = False
        return heard

    def forget(self, caller: str, now: float) -> None:
        """It is gone, and its load with it."""
        for name, there in self._scaled.items():
            there.autoscaler.forget(caller, now)
            self._look(name, there, now)

    def settle(self, known: Mapping[str, Group], now: float) -> None:
        """Whoever was found has had its time to say what it is."""
        for name in list(self._recovering):
            self._settle(name, known[name], now)

    def _settle(self, name: str, group: Group, now: float) -> None:
        self._recovering.discard(name)
        if group.spec is not None and group.spec.autoscaling is not None:
            config = group.spec.autoscaling
            self._begin(group.spec, config, _standing(group, config), now)

    def _look(self, name: str, there: _Scaled, now: float) -> None:
        decision = there.autoscaler.decide(now)
        sooner = (math.inf if decision.due is None else decision.due) < (math.inf if there.due is None else there.due)
        if decision.target != there.target or sooner:
            self._stirred.add(name)

    # What follows

    @property
    def is_stirred(self) -> bool:
        """It is to be asked before it is due."""
        return bool(self._stirred)

    @property
    def due(self) -> float | None:
        """When the next target may change although nothing is heard before."""
        return min((there.due for there in self._scaled.values() if there.due is not None), default=None)

    def decide(self, known: Mapping[str, Group], now: float) -> Iterator[tuple[str, int]]:
        """Groups whose target is another one now, and that."""
        for name in list(self._recovering):
            group = known[name]
            if not any(replica.phase is Phase.RECOVERING for replica in group.record.replicas):
                self._settle(name, group, now)
            elif group.spec is not None and group.spec.autoscaling is not None:
                target = _standing(group, group.spec.autoscaling)
                if target != group.spec.target:
                    yield name, target
        stirred, self._stirred = self._stirred, set()
        for name, there in self._scaled.items():
            if name in stirred or (there.due is not None and there.due <= now):
                decision = there.autoscaler.decide(now)
                there.due = decision.due
                if decision.target != there.target:
                    there.why = _why(there, decision)
                    self._story.tell(name, "Scaled", cause=there.why)
                    there.target = decision.target
                group = known[name]
                if group.spec is not None and group.spec.target != there.target:
                    yield name, there.target

    def status(self, now: float) -> dict[str, ScalingStatus]:
        """By group, what its target goes by."""
        return {name: _status(there, now) for name, there in self._scaled.items()}


def _shares(spec: GroupSpec) -> tuple[Fraction, Fraction]:
    """As how many requests an open WebSocket and an open stream count.

    Each takes one of the places that a replica has for its kind. A kind that has none counts as nothing.
    """
    live = spec.live
    if live is None:
        return Fraction(0), Fraction(0)
    places = live.max_open_websockets, live.max_open_streams
    websocket, stream = (Fraction(live.max_ongoing_requests, most) if most else Fraction(0) for most in places)
    return websocket, stream


def _standing(group: Group | None, config: AutoscalingConfig) -> int:
    """How many replicas there are that nobody has told to go, within the bounds."""
    replicas = () if group is None else group.record.replicas
    standing = sum(replica.phase not in (Phase.DRAINING, Phase.STOPPING) for replica in replicas)
    return min(max(standing, config.min_replicas), config.max_replicas)


def _why(there: _Scaled, decision: Decision) -> str:
    each = there.autoscaler.config.target_ongoing_requests
    return (
        f"from {there.target} to {decision.target}: the load is {round(decision.load, 1):.10g}, "
        f"on average {decision.average:.1f}, and one replica is meant to have {each:g}"
    )


def _status(there: _Scaled, now: float) -> ScalingStatus:
    config, decision = there.autoscaler.config, there.autoscaler.decide(now)
    return ScalingStatus(
        min_replicas=config.min_replicas,
        max_replicas=config.max_replicas,
        load=round(decision.load, 1),
        average=round(decision.average, 3),
        needed=decision.needed,
        why=there.why,
    )
