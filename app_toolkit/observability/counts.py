"""How many requests ended how, and how long they took: plain numbers, for whoever publishes them."""

from bisect import bisect_left
from dataclasses import dataclass, field

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of the histogram's buckets; one more bucket holds what took longer."""


@dataclass(slots=True)
class Counts:
    """What became of the requests for one ingress since the process began."""

    outcomes: dict[str, int] = field(default_factory=dict)
    """By the word that the access log has for it."""
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_S) + 1))
    """How many took how long; an open WebSocket is in none of the buckets."""
    latency_sum_s: float = 0.0

    def note(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def took(self, seconds: float) -> None:
        self.latency[bisect_left(LATENCY_S, seconds)] += 1
        self.latency_sum_s += seconds

    def copy(self) -> "Counts":
        """As it is now. Safe from any thread: the copy may be between two requests, and is no less whole for it."""
        return Counts(dict(self.outcomes), list(self.latency), self.latency_sum_s)
