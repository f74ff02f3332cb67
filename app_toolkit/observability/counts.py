"""Outcomes and latencies of requests and calls as plain numbers, for metrics."""

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, field

from app_toolkit.core.canary import Requests, bucket_of
from app_toolkit.core.identity import application_of
from app_toolkit.errors import QueueFull, TooManyWebSockets
from app_toolkit.observability.records import CLIENT_GONE, CUT, Record

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of the histogram's buckets in seconds. One more bucket counts longer requests."""


@dataclass(slots=True)
class Counts:
    """The ended requests or calls of one deployment in one process, since the process first sent one to it."""

    outcomes: dict[str, int] = field(default_factory=dict)
    """Their number by outcome, as named in the access log."""
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_S) + 1))
    """Their number in each bucket. WebSockets are in none of them."""
    latency_sum_s: float = 0.0
    affinity: dict[str, int] = field(default_factory=dict)
    """The number of those with an affinity key, by what became of it (`core.affinity.Outcome`)."""

    def add(self, record: Record) -> None:
        self.outcomes[record.outcome] = self.outcomes.get(record.outcome, 0) + 1
        if record.affinity is not None:
            self.affinity[record.affinity] = self.affinity.get(record.affinity, 0) + 1
        if record.kind != "websocket":
            self.latency[bisect_left(LATENCY_S, record.seconds)] += 1
            self.latency_sum_s += record.seconds

    def copy(self) -> "Counts":
        """Return a copy of the current values.

        Safe from any thread. The values of the copy may differ by a request that has just ended.
        """
        return Counts(dict(self.outcomes), list(self.latency), self.latency_sum_s, dict(self.affinity))


class Counters:
    """The counts of each deployment. Subscribes to `Records`."""

    def __init__(self) -> None:
        self._by_deployment: dict[str, Counts] = {}

    def add(self, record: Record) -> None:
        counts = self._by_deployment.get(record.deployment)
        if counts is None:
            counts = self._by_deployment[record.deployment] = Counts()
        counts.add(record)

    def forget(self, deployment: str) -> None:
        """Remove the counts of a deployment that is gone. If it is deployed again, they start at zero."""
        self._by_deployment.pop(deployment, None)

    def copy(self) -> dict[str, Counts]:
        """Return a copy of the counts by deployment. Safe from any thread."""
        return {deployment: counts.copy() for deployment, counts in list(self._by_deployment.items())}


REFUSED = (QueueFull.reason, TooManyWebSockets.reason)
"""The outcomes of requests that do not count: they say that a revision has too few replicas, not what its code does."""


class ComparedRequests:
    """The requests of the live revisions that a canary release compares. Subscribes to `Records`."""

    def __init__(self) -> None:
        self._by_revision: dict[str, Requests] = {}

    @property
    def revisions(self) -> Collection[str]:
        """The revisions whose requests are counted, by the names of their applications."""
        return self._by_revision.keys()

    def follow(self, revisions: Collection[str]) -> None:
        """Count the requests of these revisions. New ones start at zero."""
        self._by_revision = {name: self._by_revision.get(name) or Requests() for name in revisions}

    def add(self, record: Record) -> None:
        """Count a request.

        Errors are responses with a status from 500, and responses that were cut. If the client left before the response
        was complete, the server may not be at fault. But it took at least this long.
        """
        counts = self._by_revision.get(application_of(record.deployment) or "")
        if counts is None or record.outcome in REFUSED:
            return
        if record.outcome != CLIENT_GONE:
            counts.requests += 1
            counts.errors += record.status >= 500 or record.outcome == CUT
        if record.kind != "websocket":
            bucket = bucket_of(record.seconds)
            counts.latency[bucket] = counts.latency.get(bucket, 0) + 1

    def copy(self) -> dict[str, Requests]:
        """Return a copy of the current values by revision."""
        return {name: counts.copy() for name, counts in self._by_revision.items()}
