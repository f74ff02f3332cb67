"""The requests and calls that have ended, counted in plain data for the metrics.

Nothing is formatted here: `Counters.samples` does that when somebody reads the metrics.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from app_toolkit.contract.compared import Requests, bucket_of
from app_toolkit.contract.identity import LiveRevisionKey, live_revision_of
from app_toolkit.errors import QueueFull, TooManyWebSockets
from app_toolkit.observability.context import ReplicaContext
from app_toolkit.observability.metrics import DEPLOYMENT, HTTP_METHODS, LATENCY_S, NONE, OTHER, SIZES, Sample, declare
from app_toolkit.observability.records import CLIENT_GONE, CUT, OK, Record

ROUTE = (*DEPLOYMENT, "route", "method")

REQUESTS = declare(
    "app_toolkit_requests_total",
    "counter",
    "Requests and WebSockets that have ended, by the status and the outcome of the response.",
    (*ROUTE, "status", "outcome"),
    "proxies",
)
REQUEST_SECONDS = declare(
    "app_toolkit_request_duration_seconds",
    "histogram",
    "Time from the arrival of a request to the end of its response. WebSockets are not included.",
    ROUTE,
    "proxies",
    LATENCY_S,
)
FIRST_BYTE_SECONDS = declare(
    "app_toolkit_request_first_byte_seconds",
    "histogram",
    "Time from the arrival of a request to the start of its response.",
    ROUTE,
    "proxies",
    LATENCY_S,
)
REQUEST_QUEUE_SECONDS = declare(
    "app_toolkit_request_queue_seconds",
    "histogram",
    "Time that a request has waited for a replica, in all attempts together.",
    DEPLOYMENT,
    "proxies",
    LATENCY_S,
)
REQUEST_RETRIES = declare(
    "app_toolkit_request_retries_total",
    "counter",
    "Attempts of requests after the first one.",
    DEPLOYMENT,
    "proxies",
)
RESPONSE_BYTES = declare(
    "app_toolkit_response_body_bytes_total",
    "counter",
    "Bytes of the bodies of responses.",
    DEPLOYMENT,
    "proxies",
)
STREAM_GAP_SECONDS = declare(
    "app_toolkit_stream_gap_seconds",
    "histogram",
    "Time between two chunks of a streamed response. The chunks are those that the proxy receives.",
    DEPLOYMENT,
    "proxies",
    LATENCY_S,
)
AFFINITY = declare(
    "app_toolkit_affinity_total",
    "counter",
    "Requests and calls with an affinity key or a routing policy, by what became of the preference.",
    (*DEPLOYMENT, "kind", "result"),
    "all",
)
CALLS = declare(
    "app_toolkit_calls_total",
    "counter",
    "Calls of a deployment that have ended. The outcome `error`: the method raised an exception.",
    (*DEPLOYMENT, "method", "outcome"),
    "replicas",
)
CALL_SECONDS = declare(
    "app_toolkit_call_duration_seconds",
    "histogram",
    "Time from a call to the end of its result.",
    (*DEPLOYMENT, "method"),
    "replicas",
    LATENCY_S,
)
CALL_QUEUE_SECONDS = declare(
    "app_toolkit_call_queue_seconds",
    "histogram",
    "Time that a call has waited for a replica, in all attempts together.",
    DEPLOYMENT,
    "replicas",
    LATENCY_S,
)
CALL_RETRIES = declare(
    "app_toolkit_call_retries_total",
    "counter",
    "Attempts of calls after the first one.",
    DEPLOYMENT,
    "replicas",
)
BATCH_SIZE = declare(
    "app_toolkit_batch_size",
    "histogram",
    "Items of a batch that has ended.",
    (*DEPLOYMENT, "function"),
    "replicas",
    SIZES,
)
BATCH_WAIT_SECONDS = declare(
    "app_toolkit_batch_wait_seconds",
    "histogram",
    "Time that the first item of a batch has waited for the start of the batch.",
    (*DEPLOYMENT, "function"),
    "replicas",
    LATENCY_S,
)
BATCH_SECONDS = declare(
    "app_toolkit_batch_duration_seconds",
    "histogram",
    "Time that a batch has run.",
    (*DEPLOYMENT, "function"),
    "replicas",
    LATENCY_S,
)


MOST_SERIES = 5_000
"""Maximum number of combinations of a deployment, a route and a method that one process counts separately. Requests of
further ones count with the method `OTHER` and without a route."""

FAILED = "error"
"""The outcome of a call whose method raised an exception."""


class Histogram:
    """The number of observations in each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_S) -> None:
        self.bounds = bounds
        #: One more bucket counts what is above the last bound.
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def numbers(self) -> list[float]:
        """Return the numbers of a `Sample`. Safe from any thread."""
        return [*self.counts, self.sum]


@dataclass(slots=True)
class Counts:
    """The ended requests or calls of one deployment in one process, since the process first sent one to it."""

    outcomes: dict[str, int] = field(default_factory=dict)
    """Their number by outcome, as named in the access log."""
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_S) + 1))
    """Their number in each bucket. WebSockets are in none of them."""
    latency_sum_s: float = 0.0
    affinity: dict[str, int] = field(default_factory=dict)
    """The number of those with an affinity key, by what became of it (`exchange.preference.Outcome`)."""


class _Route:
    """The ended requests of one route and method, or the ended calls of one method."""

    __slots__ = ("first_byte", "first_byte_s", "latency", "latency_s", "responses")

    def __init__(self) -> None:
        #: Their number by status and outcome.
        self.responses: dict[tuple[int, str], int] = {}
        self.latency = [0] * (len(LATENCY_S) + 1)
        self.latency_s = 0.0
        self.first_byte = [0] * (len(LATENCY_S) + 1)
        self.first_byte_s = 0.0


class _Deployment:
    """What is counted for all requests or all calls of one deployment together."""

    __slots__ = ("affinity", "queued", "retries", "size")

    def __init__(self) -> None:
        self.affinity: dict[str, int] = {}
        self.queued = Histogram()
        self.retries = 0
        self.size = 0


class Counters:
    """The counts of each deployment. Subscribes to `Records`.

    `add` is called on the data path for each request, and takes about a microsecond.
    """

    def __init__(self) -> None:
        #: By kind, deployment, route and method.
        self._routes: dict[tuple[str, str, str, bytes], tuple[_Route, _Deployment]] = {}
        #: By whether they are calls, and by deployment.
        self._deployments: dict[tuple[bool, str], _Deployment] = {}
        #: The gaps between the chunks of streamed responses, by deployment.
        self._gaps: dict[str, Histogram] = {}

    def add(self, record: Record) -> None:
        kind = record.kind
        key = kind, record.deployment, record.route, record.method
        route_counts, counts = self._routes.get(key) or self._begin(*key)
        response = record.status, record.outcome
        responses = route_counts.responses
        responses[response] = responses.get(response, 0) + 1
        if kind != "websocket":
            seconds, first_byte_s = record.seconds, record.first_byte_s
            route_counts.latency[bisect_left(LATENCY_S, seconds)] += 1
            route_counts.latency_s += seconds
            if first_byte_s is not None:
                route_counts.first_byte[bisect_left(LATENCY_S, first_byte_s)] += 1
                route_counts.first_byte_s += first_byte_s
        counts.size += record.size
        if record.queued_s:
            counts.queued.observe(record.queued_s)
        else:
            counts.queued.counts[0] += 1
        if record.tries > 1:
            counts.retries += record.tries - 1
        if record.affinity is not None:
            counts.affinity[record.affinity] = counts.affinity.get(record.affinity, 0) + 1

    def _begin(self, kind: str, deployment: str, route: str, method: bytes) -> tuple[_Route, _Deployment]:
        """Return the counts of a request that is the first one of its route and method, or whose method is no
        standard one."""
        is_call = kind == "call"
        if not is_call and method not in HTTP_METHODS:
            method = OTHER.encode()
        if (kind, deployment, route, method) not in self._routes and len(self._routes) >= MOST_SERIES:
            route, method = "", OTHER.encode()
        key = kind, deployment, route, method
        if key not in self._routes:
            counts = self._deployments.setdefault((is_call, deployment), _Deployment())
            self._routes[key] = _Route(), counts
        return self._routes[key]

    def gaps(self, deployment: str) -> Histogram:
        """Return the histogram of the gaps between the chunks of streamed responses of a deployment."""
        gaps = self._gaps.get(deployment)
        if gaps is None:
            gaps = self._gaps[deployment] = Histogram()
        return gaps

    def forget(self, deployment: str) -> None:
        """Remove the counts of a deployment that is gone. If it is deployed again, they start at zero."""
        self._routes = {key: counts for key, counts in self._routes.items() if key[1] != deployment}
        self._deployments = {key: counts for key, counts in self._deployments.items() if key[1] != deployment}
        self._gaps.pop(deployment, None)

    def copy(self) -> dict[str, Counts]:
        """Return the sum of the counts of each deployment. Safe from any thread.

        The values may differ by a request that has just ended.
        """
        totals: dict[str, Counts] = {}
        for (_, name, _, _), (route, _) in list(self._routes.items()):
            counts = totals.setdefault(name, Counts())
            for (_, outcome), number in list(route.responses.items()):
                counts.outcomes[outcome] = counts.outcomes.get(outcome, 0) + number
            counts.latency = [one + other for one, other in zip(counts.latency, route.latency, strict=True)]
            counts.latency_sum_s += route.latency_s
        for (_, name), deployment in list(self._deployments.items()):
            totals[name].affinity = dict(deployment.affinity)
        return totals

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all metrics of ended requests and calls. Safe from any thread."""
        for (kind, name, route, method), (counts, _) in list(self._routes.items()):
            if kind == "call":
                yield from _samples_of_calls(name, method.decode(), counts)
            else:
                yield from _samples_of_requests(name, route or NONE, method.decode(), counts, timed=kind == "http")
        for (is_call, name), deployment in list(self._deployments.items()):
            labels = (name,)
            yield Sample(CALL_QUEUE_SECONDS if is_call else REQUEST_QUEUE_SECONDS, labels, deployment.queued.numbers())
            yield Sample(CALL_RETRIES if is_call else REQUEST_RETRIES, labels, [deployment.retries])
            if not is_call:
                yield Sample(RESPONSE_BYTES, labels, [deployment.size])
            for result, number in list(deployment.affinity.items()):
                yield Sample(AFFINITY, (name, "call" if is_call else "request", result), [number])
        for name, gaps in list(self._gaps.items()):
            yield Sample(STREAM_GAP_SECONDS, (name,), gaps.numbers())


def _samples_of_requests(name: str, route: str, method: str, counts: _Route, *, timed: bool) -> Iterator[Sample]:
    labels = name, route, method
    for (status, outcome), number in list(counts.responses.items()):
        yield Sample(REQUESTS, (*labels, str(status), outcome), [number])
    if timed:
        yield Sample(REQUEST_SECONDS, labels, [*counts.latency, counts.latency_s])
        yield Sample(FIRST_BYTE_SECONDS, labels, [*counts.first_byte, counts.first_byte_s])


def _samples_of_calls(name: str, method: str, counts: _Route) -> Iterator[Sample]:
    by_outcome: dict[str, int] = {}
    for (status, outcome), number in list(counts.responses.items()):
        what = FAILED if outcome == OK and status >= 500 else outcome
        by_outcome[what] = by_outcome.get(what, 0) + number
    for outcome, number in by_outcome.items():
        yield Sample(CALLS, (name, method, outcome), [number])
    yield Sample(CALL_SECONDS, (name, method), [*counts.latency, counts.latency_s])


class BatchCounts:
    """The batches of a process that have ended, by the replica and the function that ran them."""

    def __init__(self) -> None:
        self._functions: dict[tuple[ReplicaContext | None, str], tuple[Histogram, Histogram, Histogram]] = {}

    def add(self, replica: ReplicaContext | None, function: str, size: int, waited_s: float, ran_s: float) -> None:
        """Count a batch of `size` items, whose first one has waited `waited_s`. The batch has run for `ran_s`."""
        sizes, waits, runs = self._functions.get((replica, function)) or self._begin(replica, function)
        sizes.observe(size)
        waits.observe(waited_s)
        runs.observe(ran_s)

    def _begin(self, replica: ReplicaContext | None, function: str) -> tuple[Histogram, Histogram, Histogram]:
        return self._functions.setdefault((replica, function), (Histogram(SIZES), Histogram(), Histogram()))

    def samples(self, replica_set: Callable[[ReplicaContext | None], str]) -> Iterator[Sample]:
        """Yield the samples of all metrics of batches. `replica_set`: returns the first label. Safe from any thread."""
        for (replica, function), (sizes, waits, runs) in list(self._functions.items()):
            labels = replica_set(replica), function
            yield Sample(BATCH_SIZE, labels, sizes.numbers())
            yield Sample(BATCH_WAIT_SECONDS, labels, waits.numbers())
            yield Sample(BATCH_SECONDS, labels, runs.numbers())


REFUSED = (QueueFull.reason, TooManyWebSockets.reason)
"""The outcomes of requests that do not count: they say that a revision has too few replicas, not what its code does."""


class ComparedRequests:
    """The requests of the live revisions that a canary release compares. Subscribes to `Records`."""

    def __init__(self) -> None:
        self._by_revision: dict[LiveRevisionKey, Requests] = {}

    @property
    def revisions(self) -> Collection[LiveRevisionKey]:
        """The revisions whose requests are counted."""
        return self._by_revision.keys()

    def follow(self, revisions: Collection[LiveRevisionKey]) -> None:
        """Count the requests of these revisions. New ones start at zero."""
        self._by_revision = {key: self._by_revision.get(key) or Requests() for key in revisions}

    def add(self, record: Record) -> None:
        """Count a request.

        Errors are responses with a status from 500, and responses that were cut. If the client left before the response
        was complete, the server may not be at fault. But it took at least this long.
        """
        live = live_revision_of(record.deployment)
        counts = None if live is None else self._by_revision.get(live)
        if counts is None or record.outcome in REFUSED:
            return
        if record.outcome != CLIENT_GONE:
            counts.requests += 1
            counts.errors += record.status >= 500 or record.outcome == CUT
        if record.kind != "websocket":
            bucket = bucket_of(record.seconds)
            counts.latency[bucket] = counts.latency.get(bucket, 0) + 1

    def copy(self) -> dict[LiveRevisionKey, Requests]:
        """Return a copy of the current values by revision."""
        return {key: counts.copy() for key, counts in self._by_revision.items()}
