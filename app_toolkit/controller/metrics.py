"""The metrics of the controller: what its records and its state say about the replicas and the traffic."""

from collections import Counter
from collections.abc import Iterator, Mapping

from app_toolkit.core import autoscale
from app_toolkit.core.identity import AnySetKey, ApplicationKey, ReplicaSetKey, application_of, proxy_set_of
from app_toolkit.core.replica_sets import ReplicaSet
from app_toolkit.core.rollout import Rollout
from app_toolkit.core.status import ScalingStatus, traffic_status
from app_toolkit.observability.counts import Histogram
from app_toolkit.observability.metrics import (
    APPLICATION_REVISION,
    EVENTS,
    MIRROR_WEIGHT,
    NONE,
    RECYCLED,
    REPLICAS,
    REPLICAS_DESIRED,
    REPLICAS_REASON,
    RESTARTS,
    SPLIT_WEIGHT,
    START_S,
    START_SECONDS,
    TICK_SECONDS,
    TRAFFIC_WEIGHT,
    Sample,
)
from app_toolkit.observability.records import ControllerRecord


class ControllerMetrics:
    """Counts the records of the controller, and derives the gauges from its state."""

    def __init__(self) -> None:
        #: The durations of the controller's ticks in seconds.
        self.ticks = Histogram()
        self._events: Counter[tuple[str, str]] = Counter()
        self._starting: dict[str, float] = {}
        """The replicas that start, and since when."""
        self._starts: dict[str, Histogram] = {}

    def add(self, record: ControllerRecord) -> None:
        """Count a record. Subscribes to `EventLog.records`."""
        self._events[_application(record.subject), record.name] += 1
        if record.replica is None:
            return
        if record.name == "Start":
            self._starting[record.replica] = record.at
        elif record.name in ("Started", "Exited"):
            began = self._starting.pop(record.replica, None)
            if began is not None and record.name == "Started":
                self._starts.setdefault(record.subject, Histogram(START_S)).observe(record.at - began)

    def samples(
        self,
        rollouts: Mapping[ApplicationKey, Rollout],
        known: Mapping[AnySetKey, ReplicaSet],
        scaling: Mapping[AnySetKey, ScalingStatus],
    ) -> Iterator[Sample]:
        """Yield the samples of all metrics of the controller.

        Parameters:
            rollouts: Those of all applications and candidates.
            known: The replica sets.
            scaling: The values of the autoscalers by replica set.
        """
        for (application, event), number in self._events.items():
            yield Sample(EVENTS, (application, event), [number])
        yield Sample(TICK_SECONDS, (), self.ticks.numbers())
        for key, replica_set in known.items():
            if isinstance(key, ReplicaSetKey):
                yield from _samples_of_replicas(key.name, replica_set, scaling.get(key))
        names = {key.name for key in known}
        self._starts = {name: histogram for name, histogram in self._starts.items() if name in names}
        for name, histogram in self._starts.items():
            if application_of(name) is not None:
                yield Sample(START_SECONDS, (name,), histogram.numbers())
        for rollout in rollouts.values():
            if not rollout.key.is_candidate:
                yield from _samples_of_traffic(rollout, rollouts)


def _samples_of_replicas(name: str, replica_set: ReplicaSet, scaling: ScalingStatus | None) -> Iterator[Sample]:
    phases = Counter(replica.phase.value for replica in replica_set.record.replicas)
    phases.setdefault("running", 0)
    for phase, number in phases.items():
        yield Sample(REPLICAS, (name, phase), [number])
    target = 0 if replica_set.spec is None else replica_set.spec.target
    yield Sample(REPLICAS_DESIRED, (name,), [target])
    yield Sample(REPLICAS_REASON, (name, _reason(target, scaling)), [1])
    yield Sample(RESTARTS, (name,), [replica_set.record.deaths])
    for limit, number in replica_set.record.recycled.items():
        yield Sample(RECYCLED, (name, limit), [number])


def _reason(target: int, scaling: ScalingStatus | None) -> str:
    if scaling is None:
        return "fixed"
    return autoscale.reason(target, scaling.needed, scaling.min_replicas, scaling.max_replicas)


def _samples_of_traffic(rollout: Rollout, rollouts: Mapping[ApplicationKey, Rollout]) -> Iterator[Sample]:
    revision = rollout.current_revision or rollout.revision
    yield Sample(APPLICATION_REVISION, (rollout.name,), [revision])
    live = traffic_status(rollout, rollouts)
    if not live:
        yield Sample(TRAFFIC_WEIGHT, (rollout.name, str(revision)), [1.0])
    for each in live:
        labels = rollout.name, str(each.revision)
        yield Sample(TRAFFIC_WEIGHT, labels, [each.share])
        yield Sample(MIRROR_WEIGHT, labels, [each.mirror])
    for split in rollout.current.splits:
        for member, share in split.shares.items():
            yield Sample(SPLIT_WEIGHT, (rollout.name, split.name, member), [share])


def _application(subject: str) -> str:
    """Return the application of a record, without the revision of a candidate; `-` for the proxies and the instance."""
    if not subject or proxy_set_of(subject) is not None:
        return NONE
    return (application_of(subject) or ApplicationKey.parse(subject)).application
