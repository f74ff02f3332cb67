"""The requests of the revisions that a canary release compares: what proxies count, and report to the controller."""

from dataclasses import dataclass, field
from math import ceil, log

LEAST_S = 0.0001
GROWTH = 1.05
"""The buckets of latencies: one for up to `LEAST_S` seconds, and each next bound is `GROWTH` times the one before. A
ratio such as 1.2 spans several buckets."""


@dataclass(slots=True)
class Requests:
    """The requests of one revision that have ended, as plain numbers that can be added and subtracted."""

    requests: int = 0
    """The number of requests that the server answered, or failed to answer."""
    errors: int = 0
    """The number of these requests that failed by a fault of the server."""
    latency: dict[int, int] = field(default_factory=dict)
    """Numbers by bucket. Requests whose client left are in them, and are not in `requests`. WebSockets are not."""

    @property
    def timed(self) -> int:
        """The number of requests with a latency."""
        return sum(self.latency.values())

    @property
    def error_rate(self) -> float:
        return self.errors / self.requests if self.requests else 0.0

    def copy(self) -> "Requests":
        return Requests(self.requests, self.errors, dict(self.latency))

    def add(self, other: "Requests") -> None:
        self.requests += other.requests
        self.errors += other.errors
        for bucket, number in other.latency.items():
            self.latency[bucket] = self.latency.get(bucket, 0) + number

    def since(self, before: "Requests") -> "Requests":
        """Return what was added since `before`. If this counts less, it counts from zero, and all of it was added."""
        latency = {bucket: number - before.latency.get(bucket, 0) for bucket, number in self.latency.items()}
        requests, errors = self.requests - before.requests, self.errors - before.errors
        if min(requests, errors, *latency.values()) < 0 or before.latency.keys() - self.latency.keys():
            return self.copy()
        return Requests(requests, errors, {bucket: number for bucket, number in latency.items() if number})

    def quantile_s(self, level: float) -> float:
        """Return the latency in seconds that this share of the requests does not exceed; 0: there are none."""
        rank, below = level * self.timed, 0
        for bucket, number in sorted(self.latency.items()):
            if number and below + number >= rank:
                return _bound_s(bucket - 1 + max(rank - below, 0.0) / number)
            below += number
        return 0.0

    def slower_than(self, seconds: float) -> float:
        """Return the number of requests that took longer. It is interpolated within a bucket."""
        at = _place(seconds)
        return sum(number * min(max(bucket - at, 0.0), 1.0) for bucket, number in self.latency.items())


def bucket_of(seconds: float) -> int:
    """Return the bucket of a latency."""
    return ceil(_place(seconds))


def _place(seconds: float) -> float:
    """Return where a latency is on the scale whose integers are the upper bounds of the buckets."""
    return log(seconds / LEAST_S) / log(GROWTH) if seconds > LEAST_S else 0.0


def _bound_s(place: float) -> float:
    return float(LEAST_S * GROWTH ** max(place, 0.0))
