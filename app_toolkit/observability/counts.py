"""Outcomes and latencies of requests as plain numbers, for metrics."""

from bisect import bisect_left
from dataclasses import dataclass, field

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of the histogram's buckets in seconds. One more bucket counts longer requests."""


@dataclass(slots=True)
class Counts:
    """The ended requests of one ingress at one proxy, since the proxy first routed to the ingress.

    If the ingress is removed and deployed again, its counts start at zero.
    """

    outcomes: dict[str, int] = field(default_factory=dict)
    """The number of requests by outcome, as named in the access log."""
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_S) + 1))
    """The number of requests in each bucket. WebSockets are in none of them."""
    latency_sum_s: float = 0.0

    def note(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def took(self, seconds: float) -> None:
        self.latency[bisect_left(LATENCY_S, seconds)] += 1
        self.latency_sum_s += seconds

    def copy(self) -> "Counts":
        """Return a copy of the current values.

        Safe from any thread. The values of the copy may differ by a request that has just ended.
        """
        return Counts(dict(self.outcomes), list(self.latency), self.latency_sum_s)
