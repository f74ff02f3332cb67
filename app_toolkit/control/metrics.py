"""The metrics of the controller: what its records and its state say about the replicas and the traffic."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from app_toolkit.contract.identity import AnySetKey, LiveRevisionKey, ReplicaSetKey, live_revision_of, proxy_set_of
from app_toolkit.control import autoscale
from app_toolkit.control.application import Application
from app_toolkit.control.replica_set import ReplicaSet
from app_toolkit.control.status import ScalingStatus, traffic_status
from app_toolkit.observability.counts import Histogram
from app_toolkit.observability.metrics import DEPLOYMENT, LATENCY_S, NONE, START_S, Sample, declare
from app_toolkit.observability.records import ControllerRecord

REPLICAS = declare(
    "app_toolkit_replicas",
    "gauge",
    "Replicas by phase.",
    (*DEPLOYMENT, "phase"),
    "controller",
)
REPLICAS_DESIRED = declare(
    "app_toolkit_replicas_desired",
    "gauge",
    "Replicas that should run.",
    DEPLOYMENT,
    "controller",
)
REPLICAS_REASON = declare(
    "app_toolkit_replicas_desired_reason",
    "gauge",
    "1 for the reason of the desired number of replicas. `app-toolkit events` has the numbers.",
    (*DEPLOYMENT, "reason"),
    "controller",
)
RECYCLED = declare(
    "app_toolkit_replicas_recycled_total",
    "counter",
    "Replicas that were replaced while they worked, by the option of `recycling` whose limit they reached.",
    (*DEPLOYMENT, "limit"),
    "controller",
)
RESTARTS = declare(
    "app_toolkit_replica_restarts_total",
    "counter",
    "Replicas that have ended unexpectedly, and were replaced.",
    DEPLOYMENT,
    "controller",
)
START_SECONDS = declare(
    "app_toolkit_replica_start_seconds",
    "histogram",
    "Time from the decision to start a replica until it serves.",
    DEPLOYMENT,
    "controller",
    START_S,
)
APPLICATION_REVISION = declare(
    "app_toolkit_application_revision",
    "gauge",
    "The number of the main revision that should run.",
    ("application",),
    "controller",
)
TRAFFIC_WEIGHT = declare(
    "app_toolkit_traffic_weight",
    "gauge",
    "The share of the requests of the application that a live revision gets, between 0 and 1.",
    ("application", "revision"),
    "controller",
)
MIRROR_WEIGHT = declare(
    "app_toolkit_mirror_weight",
    "gauge",
    "The share of the requests of other live revisions that a live revision gets copies of, between 0 and 1.",
    ("application", "revision"),
    "controller",
)
SPLIT_WEIGHT = declare(
    "app_toolkit_split_weight",
    "gauge",
    "The share of the calls of a split that a member gets, between 0 and 1.",
    ("application", "split", "deployment"),
    "controller",
)
EVENTS = declare(
    "app_toolkit_events_total",
    "counter",
    "Actions and events of the controller, by name.",
    ("application", "event"),
    "controller",
)
TICK_SECONDS = declare(
    "app_toolkit_controller_tick_seconds",
    "histogram",
    "Time of one pass of the controller's loop.",
    (),
    "controller",
    LATENCY_S,
)


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
        applications: Iterable[Application],
        by_key: Mapping[AnySetKey, ReplicaSet],
        scaling: Mapping[AnySetKey, ScalingStatus],
    ) -> Iterator[Sample]:
        """Yield the samples of all metrics of the controller.

        Parameters:
            applications: All applications.
            by_key: The replica sets.
            scaling: The values of the autoscalers by replica set.
        """
        for (name, event), number in self._events.items():
            yield Sample(EVENTS, (name, event), [number])
        yield Sample(TICK_SECONDS, (), self.ticks.numbers())
        for key, replica_set in by_key.items():
            if isinstance(key, ReplicaSetKey):
                yield from _samples_of_replicas(key.name, replica_set, scaling.get(key))
        names = {key.name for key in by_key}
        self._starts = {name: histogram for name, histogram in self._starts.items() if name in names}
        for name, histogram in self._starts.items():
            if live_revision_of(name) is not None:
                yield Sample(START_SECONDS, (name,), histogram.numbers())
        for application in applications:
            yield from _samples_of_traffic(application)


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


def _samples_of_traffic(application: Application) -> Iterator[Sample]:
    name, revision = application.name, application.main.number
    yield Sample(APPLICATION_REVISION, (name,), [revision])
    live = traffic_status(application)
    if not live:
        yield Sample(TRAFFIC_WEIGHT, (name, str(revision)), [1.0])
    for traffic in live:
        labels = name, str(traffic.revision)
        yield Sample(TRAFFIC_WEIGHT, labels, [traffic.share])
        yield Sample(MIRROR_WEIGHT, labels, [traffic.mirror])
    for split in application.main.spec.splits:
        for member, share in split.shares.items():
            yield Sample(SPLIT_WEIGHT, (name, split.name, member), [share])


def _application(subject: str) -> str:
    """Return the application of a record, without the revision of a candidate; `-` for the proxies and the instance."""
    if not subject or proxy_set_of(subject) is not None:
        return NONE
    return (live_revision_of(subject) or LiveRevisionKey.parse(subject)).application
