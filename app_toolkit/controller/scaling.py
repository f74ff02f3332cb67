"""The targets of autoscaled deployments, computed from the load that callers report."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from app_toolkit.config.models import AutoscalingConfig
from app_toolkit.core.autoscale import Autoscaler, Decision, Report
from app_toolkit.core.identity import AnySetKey
from app_toolkit.core.reconcile import ReplicaSetSpec
from app_toolkit.core.replica_sets import ReplicaSet
from app_toolkit.core.replica_state import Phase
from app_toolkit.core.reports import Loads
from app_toolkit.core.status import ScalingStatus
from app_toolkit.observability.event_log import EventLog


@dataclass(slots=True)
class _Scaled:
    autoscaler: Autoscaler
    target: int
    """The last target of its replica set."""
    due: float | None = None
    why: str | None = None
    """The reason for the last change of the target."""


class Scaling:
    """The autoscalers of all autoscaled replica sets. Each decides after a report or when it is due.

    * The first target of a new replica set comes from its config. If the replica set had a fixed number of replicas,
      that number is the first target. If the config or the limits change, the target stays. An unchanged spec changes
      nothing.
    * After a restart, the first target is the number of running replicas, once all have reported their state.
    """

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self._scaled: dict[AnySetKey, _Scaled] = {}
        self._recovering: set[AnySetKey] = set()
        """Replica sets that were found after a restart and have replicas which have not reported their state yet."""
        self._stirred: set[AnySetKey] = set()
        """Replica sets whose autoscaler must decide now, before it is due."""

    # Desired state

    def adopt(
        self, specs: Mapping[AnySetKey, ReplicaSetSpec], found: Mapping[AnySetKey, ReplicaSet], now: float
    ) -> None:
        """Begin after a restart with the stored specs. `found`: the replica sets that have replicas."""
        for key, spec in specs.items():
            if spec.autoscaling is not None and key in found:
                self._recovering.add(key)
            elif spec.autoscaling is not None:
                self._begin(spec, spec.autoscaling, 0, now)

    def scaled(
        self,
        specs: Mapping[AnySetKey, ReplicaSetSpec],
        known: Mapping[AnySetKey, ReplicaSet],
        promoted: Mapping[AnySetKey, AnySetKey],
        now: float,
    ) -> dict[AnySetKey, ReplicaSetSpec]:
        """Set the desired replica sets, and return their specs with the targets of the autoscalers.

        `promoted`: the replica set of the promoted candidate for each replica set of a main revision. The main revision
        gets at least as many replicas, because it takes over the requests of the candidate.
        """
        for key in self._scaled.keys() - specs.keys():
            del self._scaled[key]
        self._recovering &= specs.keys()
        least = {main: self._scaled[key].target for main, key in promoted.items() if key in self._scaled}
        return {key: self._with_target(spec, known.get(key), least.get(key, 0), now) for key, spec in specs.items()}

    def _with_target(
        self, spec: ReplicaSetSpec, replica_set: ReplicaSet | None, least: int, now: float
    ) -> ReplicaSetSpec:
        key, config = spec.key, spec.autoscaling
        if config is None:
            self._scaled.pop(key, None)
            self._recovering.discard(key)
            return spec
        if key in self._recovering:
            return replace(spec, target=_remaining_replicas(replica_set, config))
        there = self._scaled.get(key)
        if there is None:
            before = replica_set.spec if replica_set is not None and replica_set.desired else None
            there = self._begin(spec, config, max((before or spec).target, least), now)
        elif there.target < least or (there.autoscaler.config, there.autoscaler.shares) != (config, _shares(spec)):
            there = self._begin(spec, config, max(there.target, least), now)
        return replace(spec, target=there.target)

    def _begin(self, spec: ReplicaSetSpec, config: AutoscalingConfig, target: int, now: float) -> _Scaled:
        autoscaler = Autoscaler(config, target, now, *_shares(spec))
        there = self._scaled[spec.key] = _Scaled(autoscaler, autoscaler.decide(now).target)
        self._stirred.add(spec.key)
        return there

    # Reports

    def hear(self, caller: str, loads: Loads, now: float) -> bool:
        """Take the report of a caller. Return False if the caller must report again, because a part was not used."""
        heard = True
        for key, load in loads.items():
            there = self._scaled.get(key)
            if there is not None:
                there.autoscaler.hear(Report(caller, now, *load), now)
                self._check_decision(key, there, now)
            elif key in self._recovering:
                heard = False
        return heard

    def forget(self, caller: str, now: float) -> None:
        """Remove the load of a caller that has ended."""
        for key, there in self._scaled.items():
            there.autoscaler.forget(caller, now)
            self._check_decision(key, there, now)

    def settle(self, known: Mapping[AnySetKey, ReplicaSet], now: float) -> None:
        """End the recovery of all replica sets."""
        for key in list(self._recovering):
            self._settle(key, known[key], now)

    def _settle(self, key: AnySetKey, replica_set: ReplicaSet, now: float) -> None:
        self._recovering.discard(key)
        if replica_set.spec is not None and replica_set.spec.autoscaling is not None:
            config = replica_set.spec.autoscaling
            self._begin(replica_set.spec, config, _remaining_replicas(replica_set, config), now)

    def _check_decision(self, key: AnySetKey, there: _Scaled, now: float) -> None:
        """Mark a deployment whose target has changed, or whose next decision is due earlier than before."""
        decision = there.autoscaler.decide(now)
        sooner = (math.inf if decision.due is None else decision.due) < (math.inf if there.due is None else there.due)
        if decision.target != there.target or sooner:
            self._stirred.add(key)

    # Decisions

    @property
    def is_stirred(self) -> bool:
        """Whether any autoscaler must decide now, before it is due."""
        return bool(self._stirred)

    @property
    def due(self) -> float | None:
        """When the next target may change without another report; None: none can."""
        return min((there.due for there in self._scaled.values() if there.due is not None), default=None)

    def decide(self, known: Mapping[AnySetKey, ReplicaSet], now: float) -> Iterator[tuple[AnySetKey, int]]:
        """Yield the replica sets whose target changes now, each with the new target."""
        for key in list(self._recovering):
            replica_set = known[key]
            if not any(replica.phase is Phase.RECOVERING for replica in replica_set.record.replicas):
                self._settle(key, replica_set, now)
            elif replica_set.spec is not None and replica_set.spec.autoscaling is not None:
                target = _remaining_replicas(replica_set, replica_set.spec.autoscaling)
                if target != replica_set.spec.target:
                    yield key, target
        stirred, self._stirred = self._stirred, set()
        for key, there in self._scaled.items():
            if key in stirred or (there.due is not None and there.due <= now):
                decision = there.autoscaler.decide(now)
                there.due = decision.due
                if decision.target != there.target:
                    there.why = _why(there, decision)
                    self._event_log.append(key.name, "Scaled", cause=there.why)
                    there.target = decision.target
                replica_set = known[key]
                if replica_set.spec is not None and replica_set.spec.target != there.target:
                    yield key, there.target

    def status(self, now: float) -> dict[AnySetKey, ScalingStatus]:
        """Return the load and the number of needed replicas of each autoscaled replica set, by its key."""
        return {key: _status(there, now) for key, there in self._scaled.items()}


def _shares(spec: ReplicaSetSpec) -> tuple[float, float]:
    """Return the weights of an open WebSocket and of an open stream, in requests.

    The weight is `max_ongoing_requests` divided by the maximum number of open WebSockets or streams. If that number is
    0, so is the weight.
    """
    live = spec.live
    if live is None:
        return 0.0, 0.0
    places = live.max_open_websockets, live.max_open_streams
    websocket, stream = (live.max_ongoing_requests / most if most else 0.0 for most in places)
    return websocket, stream


def _remaining_replicas(replica_set: ReplicaSet | None, config: AutoscalingConfig) -> int:
    """Return the number of replicas that are not draining or stopping, within the bounds of the config."""
    replicas = () if replica_set is None else replica_set.record.replicas
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
