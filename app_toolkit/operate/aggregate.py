"""Adds up the metrics that all processes of an instance push, and exposes them to Prometheus and to the dashboard.

* A counter is the sum over all processes, also over those that have ended, so it never decreases. It begins at zero
  when the aggregate begins, and a process adds only what was not taken before: no counter makes a jump.
* A gauge has the values of the processes that are alive. Those with the same labels are added.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from math import inf, isfinite, isnan
from typing import Any

from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.control.metrics import REPLICAS, REPLICAS_DESIRED, REPLICAS_REASON
from app_toolkit.exchange.gauges import (
    CALLS_ONGOING,
    CALLS_QUEUED,
    OPEN_STREAMS,
    OPEN_WEBSOCKETS,
    REQUESTS_ONGOING,
    REQUESTS_QUEUED,
)
from app_toolkit.host.replica_server import REPLICA_BUFFERED, REPLICA_ONGOING, REPLICA_STREAMS, REPLICA_WEBSOCKETS
from app_toolkit.observability.counts import BATCH_SIZE, CALL_SECONDS, CALLS, REQUEST_SECONDS, REQUESTS
from app_toolkit.observability.metrics import LATENCY_S, NONE, SIZES, Kind, Metric
from app_toolkit.observability.process_use import LOOP_LAG_SECONDS, MEMORY_BYTES
from app_toolkit.observability.records import CUT
from app_toolkit.observability.snapshots import HEARTBEAT_S, UserFamily
from app_toolkit.operate.metrics import METRICS, REPORTING

log = logging.getLogger("app_toolkit.metrics")

SILENT_S = 3 * HEARTBEAT_S
"""Seconds after the last push of a process until its gauges vanish."""

FORGOTTEN_S = 900.0
"""Seconds without a change after which a series is removed, if no process that is alive has it."""

SWEEP_S = 60.0

FIRST_S = 10.0
"""Seconds for which a new aggregate takes only the pushes of the controller, unless that has pushed. The others are
sent again. Without the controller, the revisions are not known."""

NO_ROUTE = "without a route"
"""What the requests of all methods that match no route are counted as in `DeploymentNumbers.routes`."""

LEGAL_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
ILLEGAL = re.compile(r"[^a-zA-Z0-9_]|^(?=[0-9])")
"""What the name of a label cannot have. `prometheus_client` replaces it by `_`, too."""
RESERVED = ("application", "revision", "deployment", "replica")
"""The labels that user metrics get. A label of the user with such a name becomes `exported_NAME`."""

_LABELS = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(slots=True)
class DeploymentNumbers:
    """The metrics of one replica set as plain numbers. All except the gauges are cumulative."""

    requests: int = 0
    """Requests that have ended."""
    errors: int = 0
    """Requests with a status from 500, and responses that were cut."""
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_S) + 1))
    """Requests by their duration: the buckets of `LATENCY_S`, which are not cumulative."""
    latency_sum_s: float = 0.0
    calls: int = 0
    call_errors: int = 0
    """Calls that have not ended with the outcome `ok`."""
    call_latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_S) + 1))
    call_latency_sum_s: float = 0.0
    batches: list[int] = field(default_factory=lambda: [0] * (len(SIZES) + 1))
    """Batches by their number of items: the buckets of `SIZES`, which are not cumulative."""
    batch_items: float = 0.0
    routes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By `METHOD ROUTE`, or by the method of a class: what has ended, and what of it counts as an error."""
    # Gauges
    queued: int = 0
    """Requests and calls that wait for a replica."""
    ongoing: int = 0
    """Requests and calls that a replica serves."""
    streams: int = 0
    websockets: int = 0
    buffered: int = 0
    """Items that wait for their batch."""
    replicas: dict[str, int] = field(default_factory=dict)
    """The number of replicas by phase."""
    desired: int = 0
    reason: str = ""
    """The category of the reason for the desired number."""


@dataclass(frozen=True, slots=True)
class ProcessNumbers:
    """The gauges of one process."""

    component: str
    """`proxy`, `replica` or `controller`."""
    replica_set: str
    """Of a replica: `APPLICATION/DEPLOYMENT`."""
    memory_bytes: int = 0
    loop_lag_s: float = 0.0
    """The longest delay of its event loop within the last 10 to 20 seconds."""
    ongoing: int = 0
    streams: int = 0
    websockets: int = 0


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the aggregate knows at one moment, as plain numbers."""

    at: float
    """The time of the aggregate's clock."""
    deployments: dict[str, DeploymentNumbers]
    """By replica set, `APPLICATION/DEPLOYMENT`. A live revision has the application `APPLICATION@REVISION`."""
    processes: dict[str, ProcessNumbers]
    """By the name of the process; that of a replica is its ID."""


@dataclass(slots=True)
class _Series:
    """A counter, a histogram or a summary, and the sum of its numbers over all processes."""

    lines: str
    """Its lines in the exposition, with a `%s` for each number."""
    numbers: list[float]
    changed: float


@dataclass(slots=True)
class _Gauge:
    """A gauge of one process."""

    labels: list[tuple[str, ...]] = field(default_factory=list)
    """Those of each series, as the process names them."""
    values: list[float] = field(default_factory=list)
    texts: list[str] | None = None
    """The labels in the exposition, from one scrape to the next. None: they are not known."""


@dataclass(slots=True)
class _Process:
    run: str
    component: str
    replica_set: str
    number: int = 0
    pushed: float = 0.0
    ended: bool = False
    gauges: dict[str, _Gauge] = field(default_factory=dict)
    families: dict[str, UserFamily] = field(default_factory=dict)
    usable: set[str] = field(default_factory=set)
    """The families that can be exposed."""


class MetricsAggregate:
    """The metrics of an instance. Thread-safe.

    The revision of a series is that which the application had when the difference was taken. A process only says to
    which replica set something belongs.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._processes: dict[str, _Process] = {}
        self._series: dict[str, dict[tuple[str, ...], _Series]] = {}
        """The counters and histograms, by metric and by the values of their labels."""
        self._families: dict[str, UserFamily] = {}
        self._names: dict[str, str] = {}
        """The families of user code by the names of their series."""
        self._deployments: dict[str, DeploymentNumbers] = {}
        self._revisions: dict[str, str] = {}
        self._alive: frozenset[str] | None = None
        """The processes that the controller knows. None: it has not pushed."""
        self._alive_at = 0.0
        self._began = self._swept = now()
        self._warned: set[str] = set()

    # Pushes

    def push(self, process: str, snapshot: bytes) -> bool:
        """Take a push of a process (`observability/snapshots.py`). Each number of a run is added once.

        Return False if the process must push again.
        """
        contents: dict[str, Any] = json.loads(snapshot)
        with self._lock:
            now = self._now()
            if self._alive is None and "revisions" not in contents and now - self._began < FIRST_S:
                return False
            sender = self._processes.get(process)
            if sender is None or sender.run != contents["run"]:
                sender = _Process(contents["run"], contents["component"], contents["replica_set"])
                self._processes[process] = sender
            if "revisions" in contents:
                revisions = {name: str(revision) for name, revision in contents["revisions"].items()}
                if revisions != self._revisions:
                    self._revisions = revisions
                    for other in self._processes.values():
                        for gauge in other.gauges.values():
                            gauge.texts = None
                self._alive, self._alive_at = frozenset(contents["processes"]), now
            sender.families = {
                name: UserFamily(kind, help, tuple(bounds))
                for name, (kind, help, bounds) in contents["families"].items()
            }
            sender.usable = {name for name in sender.families if self._is_usable(sender, name)}
            if contents["number"] > sender.number:
                sender.number = contents["number"]
                for name, labels, grown in contents["counters"]:
                    self._add(sender, name, tuple(labels), grown, now)
            sender.pushed, sender.ended = now, contents["ended"]
            gauges: dict[str, _Gauge] = {}
            for name, labels, value in contents["gauges"]:
                if name in METRICS or name in sender.usable:
                    gauge = gauges.setdefault(name, _Gauge())
                    gauge.labels.append(tuple(labels))
                    gauge.values.append(value)
            for name, gauge in gauges.items():
                before = sender.gauges.get(name)
                if before is not None and before.labels == gauge.labels:
                    gauge.texts = before.texts
            sender.gauges = gauges
            if now - self._swept >= SWEEP_S:
                self._sweep(now)
        return True

    def _add(self, process: _Process, name: str, labels: tuple[str, ...], grown: list[float], now: float) -> None:
        metric = METRICS.get(name)
        if metric is None:
            if name not in process.usable or len(grown) != _length(self._families[name]):
                return
            names, values = self._user_labels(process, labels, None)
            key = (*names, *values)
        else:
            if metric.is_of_deployment:
                self._count(name, labels, grown)
            names, values = metric.labels, self._values(metric, labels)
            key = values
        of_metric = self._series.setdefault(name, {})
        series = of_metric.get(key)
        if series is not None:
            series.numbers = [before + more for before, more in zip(series.numbers, grown, strict=True)]
            series.changed = now
            return
        text = _labels_text(names, values)
        if metric is not None:
            lines = _lines_of(name, metric.kind, _bounds(metric), text)
        else:
            family = self._families[name]
            lines = _lines_of(name, family.kind, family.bounds, text)
        of_metric[key] = _Series(lines, grown, now)

    def _count(self, name: str, labels: tuple[str, ...], grown: list[float]) -> None:
        """Add to the plain numbers of a deployment."""
        count = _COUNTED.get(name)
        if count is not None and labels[0] != NONE:
            numbers = self._deployments.get(labels[0])
            if numbers is None:
                numbers = self._deployments[labels[0]] = DeploymentNumbers()
            count(numbers, labels, grown)

    # Labels

    def _deployment_of(self, replica_set: str) -> tuple[str, str, str]:
        """Return the labels `DEPLOYMENT` of a replica set."""
        if "/" not in replica_set:  # one process, in which applications have no names; or no ingress owned the request
            return NONE, NONE, replica_set or NONE
        key = ReplicaSetKey.parse(replica_set)
        return key.application, self._revisions.get(key.live_revision.name, NONE), key.deployment

    def _values(self, metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
        return (*self._deployment_of(labels[0]), *labels[1:]) if metric.is_of_deployment else labels

    def _user_labels(
        self, process: _Process, labels: Sequence[str], replica: str | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names and the values of the labels of a user metric. `replica`: None for a counter."""
        leading = self._deployment_of(process.replica_set)
        if replica is not None:
            leading = (*leading, replica)  # type: ignore[assignment]
        names = [*RESERVED[: len(leading)]]
        for name in map(_label_name, labels[::2]):
            while name in names:  # as Prometheus does
                name = f"exported_{name}"
            names.append(name)
        return tuple(names), (*leading, *labels[1::2])

    def _is_usable(self, process: _Process, name: str) -> bool:
        """Return whether a metric of user code can be exposed. If not, say so once."""
        family = process.families[name]
        registered = self._families.get(name)
        if not LEGAL_NAME.fullmatch(name):
            why = "its name is not a legal one"
        elif _reserved(name):
            why = "the toolkit has a metric of this name"
        elif registered is None and (other := self._with_series_of(name, family)):
            why = f"it has the same series as the metric {other}"
        elif registered is not None and (registered.kind, registered.bounds) != (family.kind, family.bounds):
            why = f"it is a {family.kind} here and a {registered.kind} elsewhere, or has other buckets"
        else:
            if registered is None:
                self._families[name] = family
                self._names |= dict.fromkeys(_exposed(name, family), name)
            return True
        if name not in self._warned:
            self._warned.add(name)
            log.warning("the metric %s of %s is left out: %s", name[:200], process.replica_set, why)
        return False

    def _with_series_of(self, name: str, family: UserFamily) -> str | None:
        """Return another family that has a series of this name; None: there is none."""
        return next((self._names[series] for series in _exposed(name, family) if series in self._names), None)

    # What has ended

    def _is_alive(self, name: str, process: _Process, now: float) -> bool:
        if process.ended or now - process.pushed > SILENT_S:
            return False
        if self._alive is None or process.component not in ("replica", "proxy"):
            return True
        return name in self._alive or process.pushed >= self._alive_at

    def _sweep(self, now: float) -> None:
        """Forget the processes and the series that have ended."""
        self._swept = now
        self._processes = {
            name: process for name, process in self._processes.items() if now - process.pushed <= FORGOTTEN_S
        }
        current = {process.replica_set for process in self._processes.values()}
        current |= {labels[0] for process in self._processes.values() for labels, _ in _values_of(process, REPLICAS)}
        labels = {self._deployment_of(name) for name in current}
        for name, of_metric in list(self._series.items()):
            metric = METRICS.get(name)
            if metric is not None and not metric.is_of_deployment:
                continue
            first = 0 if metric is not None else None  # the labels of user metrics begin with their names
            kept = {
                key: series
                for key, series in of_metric.items()
                if now - series.changed <= FORGOTTEN_S
                or (of_deployment := key[(at := len(key) // 2 if first is None else 0) : at + 3]) in labels
                or of_deployment[0] == NONE
            }
            if kept:
                self._series[name] = kept
            else:
                del self._series[name]
        self._families = {
            name: family
            for name, family in self._families.items()
            if name in self._series or any(name in process.gauges for process in self._processes.values())
        }
        self._names = {series: name for name, family in self._families.items() for series in _exposed(name, family)}
        self._deployments = {name: numbers for name, numbers in self._deployments.items() if name in current}

    # For Prometheus

    def exposition(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return all metrics in the format that the header field `Accept` asks for, and the media type.

        Without the field, it is the text format 0.0.4.
        """
        # A controller imports it only if something scrapes it.
        from prometheus_client.exposition import choose_encoder

        _, media_type = choose_encoder(accept or "")
        is_open = media_type.startswith("application/openmetrics-text")
        if not is_open:
            media_type = TEXT
        with self._lock:
            now = self._now()
            lines = list(self._lines(now, is_open=is_open))
        if is_open:
            lines.append("# EOF\n")
        return "".join(lines).encode(), OPENMETRICS if is_open else media_type

    def _lines(self, now: float, *, is_open: bool) -> Iterator[str]:
        gauges, user_gauges = self._gauges(now)
        for metric in METRICS.values():
            if metric.kind == "gauge":
                if values := gauges.get(metric.name):
                    yield _header(metric.name, "gauge", metric.help)
                    for labels, value in values.items():
                        yield f"{metric.name}{labels} {_text(value)}\n"
            elif of_metric := self._series.get(metric.name):
                yield from _counted(metric.name, metric.kind, metric.help, of_metric, is_open=is_open)
        for name in sorted(self._families):
            family = self._families[name]
            if of_metric := self._series.get(name):
                yield from _counted(name, family.kind, family.help, of_metric, is_open=is_open)
            elif values := user_gauges.get(name):
                yield from _instant(name, family, values, is_open=is_open)

    def _gauges(self, now: float) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
        """Return the gauges of the toolkit and those of user code: the values by metric and by labels."""
        ours: dict[str, dict[str, float]] = {}
        users: dict[str, dict[str, float]] = {}
        reporting: dict[str, float] = {}
        for name, process in self._processes.items():
            if not self._is_alive(name, process, now):
                continue
            reporting[process.component] = reporting.get(process.component, 0) + 1
            for metric_name, gauge in process.gauges.items():
                metric = METRICS.get(metric_name)
                if gauge.texts is None:
                    gauge.texts = [
                        _labels_text(metric.labels, self._values(metric, labels))
                        if metric is not None
                        else _labels_text(*self._user_labels(process, labels, name))
                        for labels in gauge.labels
                    ]
                target = (ours if metric is not None else users).setdefault(metric_name, {})
                for text, value in zip(gauge.texts, gauge.values, strict=True):
                    target[text] = target[text] + value if text in target else value
        ours[REPORTING] = {_labels_text(("component",), (name,)): count for name, count in reporting.items()}
        return ours, users

    # For the dashboard

    def latest(self) -> Numbers:
        """Return the metrics of each deployment and of each process that is alive, as plain numbers."""
        with self._lock:
            now = self._now()
            deployments = {name: _copy(numbers) for name, numbers in self._deployments.items()}
            processes = {}
            for name, process in self._processes.items():
                if self._is_alive(name, process, now):
                    processes[name] = _process_numbers(process)
                    _add_gauges(deployments, process)
        return Numbers(now, deployments, processes)


TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@lru_cache(1_000)
def _label_name(name: str) -> str:
    """Return the name of a label of user code in the exposition."""
    name = ILLEGAL.sub("_", name)
    return f"exported_{name}" if name in RESERVED else name


def _length(family: UserFamily) -> int:
    """Return how many numbers a series of user code has."""
    return len(family.bounds) + 1 if family.kind == "histogram" else 2 if family.kind == "summary" else 1


def _exposed(name: str, family: UserFamily) -> tuple[str, ...]:
    """Return the names of the series of a metric of user code."""
    match family.kind:
        case "histogram":
            return name, f"{name}_bucket", f"{name}_count", f"{name}_sum"
        case "summary":
            return name, f"{name}_count", f"{name}_sum"
        case "counter" | "info":
            return name, f"{name}_{'total' if family.kind == 'counter' else 'info'}"
    return (name,)


def _reserved(name: str) -> bool:
    return name.startswith("app_toolkit_")


def _labels_text(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    pairs = ",".join([f'{name}="{value.translate(_LABELS)}"' for name, value in zip(names, values, strict=True)])
    return f"{{{pairs}}}"


def _text(value: float) -> str:
    if type(value) is int or isfinite(value):
        return repr(value)
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"


def _bounds(metric: Metric) -> tuple[str, ...]:
    return tuple(_text(bound) for bound in (*metric.buckets, inf)) if metric.buckets else ()


def _header(name: str, kind: str, help: str) -> str:
    return f"# HELP {name} {help.translate(_HELP)}\n# TYPE {name} {kind}\n"


def _lines_of(name: str, kind: Kind | str, bounds: Sequence[str], labels: str) -> str:
    """Return the lines of a counter, a histogram or a summary, with a `%s` for each number."""
    labels = labels.replace("%", "%%")
    if kind == "counter":
        return f"{name.removesuffix('_total')}_total{labels} %s\n"
    inner = f"{labels[:-1]},le=" if labels else "{le="
    buckets = [f'{name}_bucket{inner}"{bound}"}} %s\n' for bound in bounds]
    return "".join([*buckets, f"{name}_count{labels} %s\n{name}_sum{labels} %s\n"])


def _counted(
    name: str, kind: Kind | str, help: str, of_metric: dict[tuple[str, ...], _Series], *, is_open: bool
) -> Iterator[str]:
    """Yield the header and the lines of a counter, a histogram or a summary."""
    if kind == "counter":
        base = name.removesuffix("_total")
        yield _header(base if is_open else f"{base}_total", kind, help)
        for series in of_metric.values():
            yield series.lines % _text(series.numbers[0])
        return
    yield _header(name, kind, help)
    for series in of_metric.values():
        *counts, total = series.numbers
        below = [*accumulate(counts)]
        if kind == "summary":
            yield series.lines % (below[-1], _text(total))
        else:
            yield series.lines % (*below, below[-1], _text(total))


def _instant(name: str, family: UserFamily, values: dict[str, float], *, is_open: bool) -> Iterator[str]:
    """Yield the lines of a user metric that is not added up."""
    kind = family.kind
    shown = f"{name}_info" if kind == "info" else name
    if is_open:
        yield _header(name, kind if kind == "info" else "unknown" if kind == "unknown" else "gauge", family.help)
    else:
        yield _header(shown, "untyped" if kind == "unknown" else "gauge", family.help)
    for labels, value in values.items():
        yield f"{shown}{labels} {_text(value)}\n"


# Plain numbers


def _count_requests(numbers: DeploymentNumbers, labels: tuple[str, ...], grown: list[float]) -> None:
    route, method, status, outcome = labels[1:]
    ended = int(grown[0])
    failed = ended if status >= "500" or outcome == CUT else 0
    numbers.requests += ended
    numbers.errors += failed
    _count_route(numbers, NO_ROUTE if route == NONE else f"{method} {route}", ended, failed)


def _count_latency(numbers: DeploymentNumbers, labels: tuple[str, ...], grown: list[float]) -> None:
    numbers.latency = [before + int(more) for before, more in zip(numbers.latency, grown[:-1], strict=True)]
    numbers.latency_sum_s += grown[-1]


def _count_calls(numbers: DeploymentNumbers, labels: tuple[str, ...], grown: list[float]) -> None:
    ended = int(grown[0])
    failed = ended if labels[2] != "ok" else 0
    numbers.calls += ended
    numbers.call_errors += failed
    _count_route(numbers, labels[1], ended, failed)


def _count_route(numbers: DeploymentNumbers, name: str, ended: int, failed: int) -> None:
    before = numbers.routes.get(name, (0, 0))
    numbers.routes[name] = before[0] + ended, before[1] + failed


def _count_call_latency(numbers: DeploymentNumbers, labels: tuple[str, ...], grown: list[float]) -> None:
    numbers.call_latency = [before + int(more) for before, more in zip(numbers.call_latency, grown[:-1], strict=True)]
    numbers.call_latency_sum_s += grown[-1]


def _count_batches(numbers: DeploymentNumbers, labels: tuple[str, ...], grown: list[float]) -> None:
    numbers.batches = [before + int(more) for before, more in zip(numbers.batches, grown[:-1], strict=True)]
    numbers.batch_items += grown[-1]


_COUNTED: dict[str, Callable[[DeploymentNumbers, tuple[str, ...], list[float]], None]] = {
    REQUESTS: _count_requests,
    REQUEST_SECONDS: _count_latency,
    CALLS: _count_calls,
    CALL_SECONDS: _count_call_latency,
    BATCH_SIZE: _count_batches,
}

_GAUGES = {
    REQUESTS_QUEUED: "queued",
    CALLS_QUEUED: "queued",
    REQUESTS_ONGOING: "ongoing",
    CALLS_ONGOING: "ongoing",
    OPEN_STREAMS: "streams",
    OPEN_WEBSOCKETS: "websockets",
    REPLICA_BUFFERED: "buffered",
    REPLICAS_DESIRED: "desired",
}
"""The field of `DeploymentNumbers` that each gauge is added to."""


def _copy(numbers: DeploymentNumbers) -> DeploymentNumbers:
    return DeploymentNumbers(
        numbers.requests,
        numbers.errors,
        numbers.latency,
        numbers.latency_sum_s,
        numbers.calls,
        numbers.call_errors,
        numbers.call_latency,
        numbers.call_latency_sum_s,
        numbers.batches,
        numbers.batch_items,
        dict(numbers.routes),
    )


def _values_of(process: _Process, name: str) -> Iterator[tuple[tuple[str, ...], float]]:
    """Return the labels and the values of a gauge."""
    gauge = process.gauges.get(name)
    return iter(()) if gauge is None else zip(gauge.labels, gauge.values, strict=True)


def _add_gauges(deployments: dict[str, DeploymentNumbers], process: _Process) -> None:
    for name, attribute in _GAUGES.items():
        for labels, value in _values_of(process, name):
            numbers = deployments.setdefault(labels[0], DeploymentNumbers())
            setattr(numbers, attribute, getattr(numbers, attribute) + int(value))
    for labels, value in _values_of(process, REPLICAS):
        deployments.setdefault(labels[0], DeploymentNumbers()).replicas[labels[1]] = int(value)
    for labels, _ in _values_of(process, REPLICAS_REASON):
        deployments.setdefault(labels[0], DeploymentNumbers()).reason = labels[1]


def _process_numbers(process: _Process) -> ProcessNumbers:
    def first(name: str) -> float:
        return next((value for _, value in _values_of(process, name)), 0)

    return ProcessNumbers(
        process.component,
        process.replica_set,
        int(first(MEMORY_BYTES)),
        float(first(LOOP_LAG_SECONDS)),
        int(first(REPLICA_ONGOING)),
        int(first(REPLICA_STREAMS)),
        int(first(REPLICA_WEBSOCKETS)),
    )
