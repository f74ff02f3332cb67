"""The table of all metrics of the toolkit.

The exposition, docs/reference/metrics.md and the dashboard for Grafana are derived from it. A process counts in plain
data (`observability/counts.py`), and yields `Sample`s of these metrics.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds in seconds of the buckets of a time that a client waits. One more bucket counts longer times."""

START_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The upper bounds in seconds for the start of a replica, which may download a model."""

SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""The upper bounds of the number of items in a batch."""

NONE = "-"
"""The value of a label if there is nothing to name: no route matched, or no ingress owned the request."""

OTHER = "OTHER"
"""The value of the label `method` for an HTTP method that is not a standard one."""

HTTP_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH"})

DEPLOYMENT = ("application", "revision", "deployment")
"""The first labels of a metric of one deployment. A process names its replica set instead, `APPLICATION/DEPLOYMENT`,
and `observability/aggregate.py` derives the three labels from it."""

PROCESS = (*DEPLOYMENT, "component", "process")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the toolkit."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    source: str
    """The processes that count it: `proxies`, `replicas`, `controller`, `all` or `admin`."""
    buckets: tuple[float, ...] = ()
    """The upper bounds of the buckets of a histogram, without +Inf."""

    @property
    def is_of_deployment(self) -> bool:
        return self.labels[:3] == DEPLOYMENT


class Sample(NamedTuple):
    """One series of a metric in one process."""

    metric: str
    labels: tuple[str, ...]
    """The values of the labels. The first one is the replica set if the metric has the labels `DEPLOYMENT`."""
    numbers: list[float]
    """A counter or a gauge: its value. A histogram: the number of observations in each bucket, which are not
    cumulative, and their sum."""


Source = Callable[[], Iterable[Sample]]
"""Returns the present samples of a part of a process. It is called on any thread."""

REQUESTS = "app_toolkit_requests_total"
REQUEST_SECONDS = "app_toolkit_request_duration_seconds"
FIRST_BYTE_SECONDS = "app_toolkit_request_first_byte_seconds"
REQUEST_QUEUE_SECONDS = "app_toolkit_request_queue_seconds"
REQUEST_RETRIES = "app_toolkit_request_retries_total"
RESPONSE_BYTES = "app_toolkit_response_body_bytes_total"
STREAM_GAP_SECONDS = "app_toolkit_stream_gap_seconds"
RATE_LIMITED = "app_toolkit_rate_limited_total"
REQUESTS_QUEUED = "app_toolkit_requests_queued"
REQUESTS_ONGOING = "app_toolkit_requests_ongoing"
OPEN_STREAMS = "app_toolkit_open_streams"
OPEN_WEBSOCKETS = "app_toolkit_open_websockets"
AFFINITY = "app_toolkit_affinity_total"
FAULTS = "app_toolkit_faults_injected_total"
MIRRORED = "app_toolkit_mirrored_total"
MIRROR_COMPARED = "app_toolkit_mirror_compared_total"
CALLS = "app_toolkit_calls_total"
CALL_SECONDS = "app_toolkit_call_duration_seconds"
CALL_QUEUE_SECONDS = "app_toolkit_call_queue_seconds"
CALL_RETRIES = "app_toolkit_call_retries_total"
CALLS_QUEUED = "app_toolkit_calls_queued"
CALLS_ONGOING = "app_toolkit_calls_ongoing"
CALL_STREAMS = "app_toolkit_call_streams"
BATCH_SIZE = "app_toolkit_batch_size"
BATCH_WAIT_SECONDS = "app_toolkit_batch_wait_seconds"
BATCH_SECONDS = "app_toolkit_batch_duration_seconds"
REPLICA_ONGOING = "app_toolkit_replica_ongoing_requests"
REPLICA_STREAMS = "app_toolkit_replica_open_streams"
REPLICA_WEBSOCKETS = "app_toolkit_replica_open_websockets"
REPLICA_BUFFERED = "app_toolkit_replica_buffered_items"
REPLICAS = "app_toolkit_replicas"
REPLICAS_DESIRED = "app_toolkit_replicas_desired"
REPLICAS_REASON = "app_toolkit_replicas_desired_reason"
RESTARTS = "app_toolkit_replica_restarts_total"
RECYCLED = "app_toolkit_replicas_recycled_total"
START_SECONDS = "app_toolkit_replica_start_seconds"
APPLICATION_REVISION = "app_toolkit_application_revision"
TRAFFIC_WEIGHT = "app_toolkit_traffic_weight"
MIRROR_WEIGHT = "app_toolkit_mirror_weight"
SPLIT_WEIGHT = "app_toolkit_split_weight"
EVENTS = "app_toolkit_events_total"
TICK_SECONDS = "app_toolkit_controller_tick_seconds"
CONNECTIONS = "app_toolkit_proxy_connections"
LOOP_LAG_SECONDS = "app_toolkit_event_loop_lag_seconds"
MEMORY_BYTES = "app_toolkit_process_resident_memory_bytes"
CPU_SECONDS = "app_toolkit_process_cpu_seconds_total"
DROPPED_SERIES = "app_toolkit_metrics_dropped_series"
REPORTING = "app_toolkit_metrics_processes"

_ROUTE = (*DEPLOYMENT, "route", "method")

METRICS: tuple[Metric, ...] = (
    Metric(
        REQUESTS,
        "counter",
        "Requests and WebSockets that have ended, by the status and the outcome of the response.",
        (*_ROUTE, "status", "outcome"),
        "proxies",
    ),
    Metric(
        REQUEST_SECONDS,
        "histogram",
        "Time from the arrival of a request to the end of its response. WebSockets are not included.",
        _ROUTE,
        "proxies",
        LATENCY_S,
    ),
    Metric(
        FIRST_BYTE_SECONDS,
        "histogram",
        "Time from the arrival of a request to the start of its response.",
        _ROUTE,
        "proxies",
        LATENCY_S,
    ),
    Metric(
        REQUEST_QUEUE_SECONDS,
        "histogram",
        "Time that a request has waited for a replica, in all attempts together.",
        DEPLOYMENT,
        "proxies",
        LATENCY_S,
    ),
    Metric(
        REQUEST_RETRIES,
        "counter",
        "Attempts of requests after the first one.",
        DEPLOYMENT,
        "proxies",
    ),
    Metric(
        RESPONSE_BYTES,
        "counter",
        "Bytes of the bodies of responses.",
        DEPLOYMENT,
        "proxies",
    ),
    Metric(
        STREAM_GAP_SECONDS,
        "histogram",
        "Time between two chunks of a streamed response. The chunks are those that the proxy receives.",
        DEPLOYMENT,
        "proxies",
        LATENCY_S,
    ),
    Metric(
        RATE_LIMITED,
        "counter",
        "Requests to ingresses with a `rate_limit`: admitted, refused, or unchecked because the storage has failed.",
        (*DEPLOYMENT, "result"),
        "proxies",
    ),
    Metric(REQUESTS_QUEUED, "gauge", "Requests that wait for a replica.", DEPLOYMENT, "proxies"),
    Metric(REQUESTS_ONGOING, "gauge", "Requests that a replica serves.", DEPLOYMENT, "proxies"),
    Metric(OPEN_STREAMS, "gauge", "Streamed responses that are open.", DEPLOYMENT, "proxies"),
    Metric(OPEN_WEBSOCKETS, "gauge", "WebSockets that are open.", DEPLOYMENT, "proxies"),
    Metric(
        AFFINITY,
        "counter",
        "Requests and calls with an affinity key or a routing policy, by what became of the preference.",
        (*DEPLOYMENT, "kind", "result"),
        "all",
    ),
    Metric(
        FAULTS,
        "counter",
        "Faults that requests and calls got on purpose, by the option `faults`: `delay` or `abort`.",
        (*DEPLOYMENT, "kind"),
        "all",
    ),
    Metric(
        MIRRORED,
        "counter",
        "Requests and calls that a mirror should get copies of, by what became of the copy.",
        (*DEPLOYMENT, "kind", "result"),
        "all",
    ),
    Metric(
        MIRROR_COMPARED,
        "counter",
        "Copies whose response was compared with that of the client, by the difference.",
        (*DEPLOYMENT, "kind", "result"),
        "all",
    ),
    Metric(
        CALLS,
        "counter",
        "Calls of a deployment that have ended. The outcome `error`: the method raised an exception.",
        (*DEPLOYMENT, "method", "outcome"),
        "replicas",
    ),
    Metric(
        CALL_SECONDS,
        "histogram",
        "Time from a call to the end of its result.",
        (*DEPLOYMENT, "method"),
        "replicas",
        LATENCY_S,
    ),
    Metric(
        CALL_QUEUE_SECONDS,
        "histogram",
        "Time that a call has waited for a replica, in all attempts together.",
        DEPLOYMENT,
        "replicas",
        LATENCY_S,
    ),
    Metric(CALL_RETRIES, "counter", "Attempts of calls after the first one.", DEPLOYMENT, "replicas"),
    Metric(CALLS_QUEUED, "gauge", "Calls that wait for a replica.", DEPLOYMENT, "replicas"),
    Metric(CALLS_ONGOING, "gauge", "Calls that a replica runs.", DEPLOYMENT, "replicas"),
    Metric(CALL_STREAMS, "gauge", "Calls that yield items.", DEPLOYMENT, "replicas"),
    Metric(
        BATCH_SIZE,
        "histogram",
        "Items of a batch that has ended.",
        (*DEPLOYMENT, "function"),
        "replicas",
        SIZES,
    ),
    Metric(
        BATCH_WAIT_SECONDS,
        "histogram",
        "Time that the first item of a batch has waited for the start of the batch.",
        (*DEPLOYMENT, "function"),
        "replicas",
        LATENCY_S,
    ),
    Metric(
        BATCH_SECONDS,
        "histogram",
        "Time that a batch has run.",
        (*DEPLOYMENT, "function"),
        "replicas",
        LATENCY_S,
    ),
    Metric(
        REPLICA_ONGOING,
        "gauge",
        "Requests and calls that hold a slot of the replica.",
        (*DEPLOYMENT, "replica"),
        "replicas",
    ),
    Metric(
        REPLICA_STREAMS,
        "gauge",
        "Streamed responses of the replica that are open and hold no slot.",
        (*DEPLOYMENT, "replica"),
        "replicas",
    ),
    Metric(
        REPLICA_WEBSOCKETS, "gauge", "WebSockets of the replica that are open.", (*DEPLOYMENT, "replica"), "replicas"
    ),
    Metric(
        REPLICA_BUFFERED,
        "gauge",
        "Items in the replica that wait for their batch.",
        (*DEPLOYMENT, "replica"),
        "replicas",
    ),
    Metric(REPLICAS, "gauge", "Replicas by phase.", (*DEPLOYMENT, "phase"), "controller"),
    Metric(REPLICAS_DESIRED, "gauge", "Replicas that should run.", DEPLOYMENT, "controller"),
    Metric(
        REPLICAS_REASON,
        "gauge",
        "1 for the reason of the desired number of replicas. `app-toolkit events` has the numbers.",
        (*DEPLOYMENT, "reason"),
        "controller",
    ),
    Metric(
        RECYCLED,
        "counter",
        "Replicas that were replaced while they worked, by the option of `recycling` whose limit they reached.",
        (*DEPLOYMENT, "limit"),
        "controller",
    ),
    Metric(
        RESTARTS,
        "counter",
        "Replicas that have ended unexpectedly, and were replaced.",
        DEPLOYMENT,
        "controller",
    ),
    Metric(
        START_SECONDS,
        "histogram",
        "Time from the decision to start a replica until it serves.",
        DEPLOYMENT,
        "controller",
        START_S,
    ),
    Metric(
        APPLICATION_REVISION,
        "gauge",
        "The number of the main revision that should run.",
        ("application",),
        "controller",
    ),
    Metric(
        TRAFFIC_WEIGHT,
        "gauge",
        "The share of the requests of the application that a live revision gets, between 0 and 1.",
        ("application", "revision"),
        "controller",
    ),
    Metric(
        MIRROR_WEIGHT,
        "gauge",
        "The share of the requests of other live revisions that a live revision gets copies of, between 0 and 1.",
        ("application", "revision"),
        "controller",
    ),
    Metric(
        SPLIT_WEIGHT,
        "gauge",
        "The share of the calls of a split that a member gets, between 0 and 1.",
        ("application", "split", "deployment"),
        "controller",
    ),
    Metric(
        EVENTS,
        "counter",
        "Actions and events of the controller, by name.",
        ("application", "event"),
        "controller",
    ),
    Metric(
        TICK_SECONDS,
        "histogram",
        "Time of one pass of the controller's loop.",
        (),
        "controller",
        LATENCY_S,
    ),
    Metric(CONNECTIONS, "gauge", "Connections of clients.", ("process",), "proxies"),
    Metric(
        LOOP_LAG_SECONDS,
        "gauge",
        "The longest delay of the event loop within the last 10 to 20 seconds.",
        PROCESS,
        "all",
    ),
    Metric(MEMORY_BYTES, "gauge", "Resident memory of a process.", PROCESS, "all"),
    Metric(
        CPU_SECONDS,
        "counter",
        "CPU time of processes in user and system mode, also of those that have ended.",
        (*DEPLOYMENT, "component"),
        "all",
    ),
    Metric(
        DROPPED_SERIES,
        "gauge",
        "Series of user code that replicas have left out, because a replica has too many.",
        DEPLOYMENT,
        "replicas",
    ),
    Metric(REPORTING, "gauge", "Processes that push metrics.", ("component",), "admin"),
)

BY_NAME = {metric.name: metric for metric in METRICS}
"""The metrics by name, without those of user code."""
