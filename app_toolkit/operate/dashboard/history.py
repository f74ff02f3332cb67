"""Rates and latencies of the last 15 minutes, computed from the metrics of the instance. The time is an argument."""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from math import ceil, isfinite, nan
from typing import NamedTuple

from app_toolkit.contract.identity import live_revision_of
from app_toolkit.control.replica_state import Phase
from app_toolkit.observability.metrics import SIZES
from app_toolkit.operate.aggregate import DeploymentNumbers, Numbers

EVERY_S = 2.0
"""Seconds between two samples. The processes report as often."""

POINTS = 450
"""The number of points that are kept: 15 minutes."""

WINDOW_S = 10.0
"""A rate or a quantile covers this many seconds. Reports arrive at different times, so a shorter window would waver."""

MOST_NAMES = 2_000
"""The maximum number of names with a history. Each takes 27 kB."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The numbers of a deployment, an application or the instance at one moment.

    The first ones are cumulative: they only grow. The others are of this moment.
    """

    requests: int = 0
    """Requests and calls that have ended."""
    errors: int = 0
    """Requests and calls that failed by a fault of the server."""
    latency: tuple[int, ...] = ()
    """Their number in each bucket; see `quantile`."""
    batches: tuple[int, ...] = ()
    """The number of batches in each bucket of `SIZES`."""
    batch_items: int = 0
    """The items of all batches together."""
    queued: int = 0
    ongoing: int = 0
    streams: int = 0
    websockets: int = 0
    replicas: int = 0
    """Replicas that run."""
    desired: int = 0

    def __add__(self, other: "Sample") -> "Sample":
        plain = {name: getattr(self, name) + getattr(other, name) for name in PLAIN}
        latency, batches = _added(self.latency, other.latency), _added(self.batches, other.batches)
        return Sample(latency=latency, batches=batches, **plain)


PLAIN = tuple(field.name for field in fields(Sample) if field.name not in ("latency", "batches"))
NO_SAMPLE = Sample()


def samples(numbers: Numbers) -> dict[str, Sample]:
    """Return the samples of all deployments, of their applications, and of the instance, whose name is empty.

    For applications and the instance, only requests count: one request can make many calls.
    """
    by_name: dict[str, Sample] = {"": NO_SAMPLE}
    for name, deployment_numbers in numbers.deployments.items():
        requests = _requests(deployment_numbers)
        by_name[name] = requests + Sample(
            deployment_numbers.calls, deployment_numbers.call_errors, tuple(deployment_numbers.call_latency)
        )
        live = live_revision_of(name)
        if live is not None and (deployment_numbers.requests or not deployment_numbers.calls):
            by_name[live.name] = by_name.get(live.name, NO_SAMPLE) + requests
            by_name[""] += requests
    return by_name


def _requests(numbers: DeploymentNumbers) -> Sample:
    return Sample(
        numbers.requests,
        numbers.errors,
        tuple(numbers.latency),
        tuple(numbers.batches),
        int(numbers.batch_items),
        numbers.queued,
        numbers.ongoing,
        numbers.streams,
        numbers.websockets,
        numbers.replicas.get(Phase.RUNNING.value, 0),
        numbers.desired,
    )


class Point(NamedTuple):
    """What the charts show of one moment. NaN: there is no value, for example no latency without requests."""

    rate: float = nan
    """Requests per second."""
    errors: float = nan
    """Errors per second."""
    p50: float = nan
    p95: float = nan
    p99: float = nan
    """Latencies in seconds."""
    batch: float = nan
    """The average number of items of a batch."""
    batch_p50: float = nan
    batch_p95: float = nan
    batch_p99: float = nan
    """Numbers of items, rounded up: a bucket with the upper bound 1 has only batches with one item."""
    queued: float = nan
    ongoing: float = nan
    streams: float = nan
    websockets: float = nan
    replicas: float = nan
    desired: float = nan


def quantile(counts: Sequence[int], bounds: Sequence[float], level: float) -> float:
    """Return a quantile of values above 0, or NaN if there are none.

    Within a bucket, values are taken as evenly distributed. Above the last bound, that bound is returned.

    Parameters:
        counts: The number of values in each bucket.
        bounds: The upper bounds of the buckets. `counts` has one more bucket for higher values.
        level: Between 0 and 1.
    """
    cumulative = list(accumulate(counts))
    if not cumulative or not cumulative[-1]:
        return nan
    rank = max(level * cumulative[-1], 1e-9)
    bucket = bisect_left(cumulative, rank)
    if bucket >= len(bounds):
        return bounds[-1]
    low, high = bounds[bucket - 1] if bucket else 0.0, bounds[bucket]
    below = cumulative[bucket - 1] if bucket else 0
    return min(high, low + (high - low) * (rank - below) / counts[bucket])  # the sum may be rounded to above the bound


def point(before: Sample, after: Sample, seconds: float, bounds: Sequence[float]) -> Point:
    """Return what happened between two moments, and the gauges of the later one.

    A number that has decreased began again at 0.

    Parameters:
        before: The numbers of the earlier moment.
        after: The numbers of the later moment.
        seconds: The time between them; 0: there is no earlier moment, and no rate.
        bounds: The bounds of the buckets of `Sample.latency` in seconds.
    """
    gauges = Point(
        queued=after.queued,
        ongoing=after.ongoing,
        streams=after.streams,
        websockets=after.websockets,
        replicas=after.replicas,
        desired=after.desired,
    )
    if seconds <= 0:
        return gauges
    began_again = after.requests < before.requests
    past = NO_SAMPLE if began_again else before
    counts = _grown(past.latency, after.latency)
    batches = _grown(past.batches, after.batches)
    return gauges._replace(
        rate=(after.requests - past.requests) / seconds,
        errors=max(after.errors - past.errors, 0) / seconds,
        p50=quantile(counts, bounds, 0.5),
        p95=quantile(counts, bounds, 0.95),
        p99=quantile(counts, bounds, 0.99),
        batch=max(after.batch_items - past.batch_items, 0) / sum(batches) if any(batches) else nan,
        batch_p50=_whole(quantile(batches, SIZES, 0.5)),
        batch_p95=_whole(quantile(batches, SIZES, 0.95)),
        batch_p99=_whole(quantile(batches, SIZES, 0.99)),
    )


class History:
    """The points of all names of the last `POINTS` samples.

    A name that is missing in a sample is forgotten. Beyond `MOST_NAMES`, further names have rates but no past.
    """

    def __init__(self, bounds: Sequence[float], points: int = POINTS) -> None:
        """`bounds`: those of the buckets of `Sample.latency` in seconds. `points`: how many are kept."""
        self._bounds = tuple(bounds)
        self._size = points
        self._times = array("d", [nan]) * points
        self._next = 0
        self._columns: dict[str, array[float]] = {}
        self._recent: deque[tuple[float, Mapping[str, Sample]]] = deque()
        self._latest: dict[str, Point] = {}

    @property
    def latest(self) -> Mapping[str, Point]:
        """The points of the last sample by name."""
        return self._latest

    def add(self, at: float, sample: Mapping[str, Sample]) -> None:
        """Add a sample, which belongs to the time `at` in seconds."""
        while len(self._recent) > 1 and self._recent[1][0] <= at - WINDOW_S:
            self._recent.popleft()
        earlier, before = self._recent[0] if self._recent else (at, {})
        self._recent.append((at, sample))
        self._latest = {
            name: point(before.get(name, NO_SAMPLE), numbers, at - earlier, self._bounds)
            for name, numbers in sample.items()
        }
        self._times[self._next] = at
        for name in self._columns.keys() - sample.keys():
            del self._columns[name]
        for name, latest in self._latest.items():
            column = self._columns.get(name)
            if column is None:
                if len(self._columns) >= MOST_NAMES:
                    continue
                column = self._columns[name] = array("f", [nan]) * (self._size * len(Point._fields))
            column[self._next * len(latest) : (self._next + 1) * len(latest)] = array("f", latest)
        self._next = (self._next + 1) % self._size

    def series(self, name: str) -> dict[str, list[float | None]]:
        """Return the points of a name by field, oldest first, with their times in `at`. None: there is no value."""
        order = [index % self._size for index in range(self._next, self._next + self._size)]
        filled = [index for index in order if isfinite(self._times[index])]
        columns: dict[str, list[float | None]] = {"at": [round(self._times[index], 3) for index in filled]}
        values = self._columns.get(name)
        width = len(Point._fields)
        for place, field in enumerate(Point._fields):
            columns[field] = [rounded(values[index * width + place]) if values else None for index in filled]
        return columns


def rounded(value: float) -> float | None:
    """Return a number with four significant digits, for JSON; None: it is NaN."""
    return float(f"{value:.4g}") if isfinite(value) else None


def _whole(value: float) -> float:
    return float(ceil(value)) if isfinite(value) else nan


def _grown(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [max(now - then, 0) for now, then in zip(after, _padded(before, len(after)), strict=True)]


def _added(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    longest = max(len(left), len(right))
    return tuple(map(sum, zip(_padded(left, longest), _padded(right, longest), strict=True)))


def _padded(counts: Sequence[int], length: int) -> Sequence[int]:
    return [*counts, *[0] * (length - len(counts))] if len(counts) < length else counts[:length]
