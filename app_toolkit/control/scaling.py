"""The targets of autoscaled deployments, computed from the load that callers report."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from app_toolkit.config.models import AutoscalingConfig
from app_toolkit.contract.identity import AnySetKey
from app_toolkit.contract.loads import Loads
from app_toolkit.control.autoscale import Autoscaler, Decision, Report
from app_toolkit.control.reconcile import ReplicaSetSpec
from app_toolkit.control.replica_set import ReplicaSet
from app_toolkit.control.replica_state import Phase
from app_toolkit.control.status import ScalingStatus
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
        self._changed: set[AnySetKey] = set()
        """Replica sets whose autoscaler must decide now, before it is due."""

    # Desired state

    def adopt(
        self, specs: Mapping[AnySetKey, ReplicaSetSpec], by_key: Mapping[AnySetKey, ReplicaSet], now: float
    ) -> None:
        """Begin after a restart with the stored specs. `by_key`: the replica sets that have replicas."""
        for key, spec in specs.items():
            if spec.config.autoscaling_config is not None and key in by_key:
                self._recovering.add(key)
            elif spec.config.autoscaling_config is not None:
                self._begin(spec, spec.config.autoscaling_config, 0, now)

    def scaled(
        self,
        specs: Mapping[AnySetKey, ReplicaSetSpec],
        by_key: Mapping[AnySetKey, ReplicaSet],
        now: float,
    ) -> dict[AnySetKey, ReplicaSetSpec]:
        """Set the desired replica sets, and return their specs with the targets of the autoscalers."""
        for key in self._scaled.keys() - specs.keys():
            del self._scaled[key]
        self._recovering &= specs.keys()
        return {key: self._with_target(spec, by_key.get(key), now) for key, spec in specs.items()}

    def _with_target(self, spec: ReplicaSetSpec, replica_set: ReplicaSet | None, now: float) -> ReplicaSetSpec:
        key, config = spec.key, spec.config.autoscaling_config
        if config is None:
            self._scaled.pop(key, None)
            self._recovering.discard(key)
            return spec
        if key in self._recovering:
            return replace(spec, target=_remaining_replicas(replica_set, config))
        scaled = self._scaled.get(key)
        if scaled is None:
            before = replica_set.spec if replica_set is not None and replica_set.desired else None
            scaled = self._begin(spec, config, (before or spec).target, now)
        elif (scaled.autoscaler.config, scaled.autoscaler.shares) != (config, _shares(spec)):
            scaled = self._begin(spec, config, scaled.target, now)
        return replace(spec, target=scaled.target)

    def _begin(self, spec: ReplicaSetSpec, config: AutoscalingConfig, target: int, now: float) -> _Scaled:
        autoscaler = Autoscaler(config, target, now, *_shares(spec))
        scaled = self._scaled[spec.key] = _Scaled(autoscaler, autoscaler.decide(now).target)
        self._changed.add(spec.key)
        return scaled

    # Reports

    def add_loads(self, caller: str, loads: Loads, now: float) -> bool:
        """Take the report of a caller. Return False if the caller must report again, because a part was not used."""
        all_used = True
        for key, load in loads.items():
            scaled = self._scaled.get(key)
            if scaled is not None:
                scaled.autoscaler.add_report(Report(caller, now, *load), now)
                self._check_decision(key, scaled, now)
            elif key in self._recovering:
                all_used = False
        return all_used

    def forget(self, caller: str, now: float) -> None:
        """Remove the load of a caller that has ended."""
        for key, scaled in self._scaled.items():
            scaled.autoscaler.forget(caller, now)
            self._check_decision(key, scaled, now)

    def settle(self, by_key: Mapping[AnySetKey, ReplicaSet], now: float) -> None:
        """End the recovery of all replica sets."""
        for key in list(self._recovering):
            self._settle(key, by_key[key], now)

    def _settle(self, key: AnySetKey, replica_set: ReplicaSet, now: float) -> None:
        self._recovering.discard(key)
        if replica_set.spec is not None and replica_set.spec.config.autoscaling_config is not None:
            config = replica_set.spec.config.autoscaling_config
            self._begin(replica_set.spec, config, _remaining_replicas(replica_set, config), now)

    def _check_decision(self, key: AnySetKey, scaled: _Scaled, now: float) -> None:
        """Mark a deployment whose target has changed, or whose next decision is due earlier than before."""
        decision = scaled.autoscaler.decide(now)
        sooner = (math.inf if decision.due is None else decision.due) < (math.inf if scaled.due is None else scaled.due)
        if decision.target != scaled.target or sooner:
            self._changed.add(key)

    # Decisions

    @property
    def has_changed(self) -> bool:
        """Whether any autoscaler must decide now, before it is due."""
        return bool(self._changed)

    @property
    def due(self) -> float | None:
        """When the next target may change without another report; None: none can."""
        return min((scaled.due for scaled in self._scaled.values() if scaled.due is not None), default=None)

    def decide(self, by_key: Mapping[AnySetKey, ReplicaSet], now: float) -> Iterator[tuple[AnySetKey, int]]:
        """Yield the replica sets whose target changes now, each with the new target."""
        for key in list(self._recovering):
            replica_set = by_key[key]
            if not any(replica.phase is Phase.RECOVERING for replica in replica_set.record.replicas):
                self._settle(key, replica_set, now)
            elif replica_set.spec is not None and replica_set.spec.config.autoscaling_config is not None:
                target = _remaining_replicas(replica_set, replica_set.spec.config.autoscaling_config)
                if target != replica_set.spec.target:
                    yield key, target
        changed, self._changed = self._changed, set()
        for key, scaled in self._scaled.items():
            if key in changed or (scaled.due is not None and scaled.due <= now):
                decision = scaled.autoscaler.decide(now)
                scaled.due = decision.due
                if decision.target != scaled.target:
                    scaled.why = _why(scaled, decision)
                    self._event_log.append(key.name, "Scaled", cause=scaled.why)
                    scaled.target = decision.target
                replica_set = by_key[key]
                if replica_set.spec is not None and replica_set.spec.target != scaled.target:
                    yield key, scaled.target

    def status(self, now: float) -> dict[AnySetKey, ScalingStatus]:
        """Return the load and the number of needed replicas of each autoscaled replica set, by its key."""
        return {key: _status(scaled, now) for key, scaled in self._scaled.items()}


def _shares(spec: ReplicaSetSpec) -> tuple[float, float]:
    """Return the weights of an open WebSocket and of an open stream, in requests.

    The weight is `max_ongoing_requests` divided by the maximum number of open WebSockets or streams. If that number is
    0, so is the weight.
    """
    reloadable = spec.reloadable
    if reloadable is None:
        return 0.0, 0.0
    places = reloadable.max_open_websockets, reloadable.max_open_streams
    websocket, stream = (reloadable.max_ongoing_requests / most if most else 0.0 for most in places)
    return websocket, stream


def _remaining_replicas(replica_set: ReplicaSet | None, config: AutoscalingConfig) -> int:
    """Return the number of replicas that are not draining or stopping, within the bounds of the config."""
    replicas = () if replica_set is None else replica_set.record.replicas
    standing = sum(replica.phase not in (Phase.DRAINING, Phase.STOPPING) for replica in replicas)
    return min(max(standing, config.min_replicas), config.max_replicas)


def _why(scaled: _Scaled, decision: Decision) -> str:
    per_replica = scaled.autoscaler.config.target_ongoing_requests
    return (
        f"from {scaled.target} to {decision.target}: the load is {round(decision.load, 1):.10g}, "
        f"on average {decision.average:.1f}, and one replica is meant to have {per_replica:g}"
    )


def _status(scaled: _Scaled, now: float) -> ScalingStatus:
    config, decision = scaled.autoscaler.config, scaled.autoscaler.decide(now)
    return ScalingStatus(
        min_replicas=config.min_replicas,
        max_replicas=config.max_replicas,
        load=round(decision.load, 1),
        average=round(decision.average, 3),
        needed=decision.needed,
        why=scaled.why,
    )
