"""Decides which deployments fail, from their requests and calls of the last minute. The time is an argument."""

from collections import deque
from collections.abc import Mapping

from app_toolkit.operate.aggregate import DeploymentNumbers

WINDOW_S = 60.0
"""Requests that ended within so many seconds count."""

MOST = 0.5
"""The share from which a route or method fails that has at least `REPEATED` failed requests."""

REPEATED = 2
"""One failed request alone says nothing about the next one."""

SOME = 0.05
"""The share from which a route or method fails that has at least `SEVERAL` failed requests."""

SEVERAL = 3

SHOWN = 3
"""Maximum number of routes and methods of a deployment that are named."""

Counts = Mapping[str, tuple[int, int]]
"""By route or method: the requests that have ended, and those of them that failed."""


class Failing:
    """The deployments that fail, with a sentence for each."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, Mapping[str, Counts]]] = deque()

    def add(self, at: float, deployments: Mapping[str, DeploymentNumbers]) -> dict[str, str]:
        """Return the sentence of each deployment that fails at the time `at` in seconds, when it has these numbers."""
        counts = {name: dict(numbers.routes) for name, numbers in deployments.items()}
        self._past.append((at, counts))
        while len(self._past) > 1 and self._past[1][0] <= at - WINDOW_S:
            self._past.popleft()
        before = self._past[0][1]
        sentences = {name: failure(before.get(name, {}), after) for name, after in counts.items()}
        return {name: sentence for name, sentence in sentences.items() if sentence is not None}


def failure(before: Counts, after: Counts) -> str | None:
    """Return which routes or methods have failed between two moments, the worst first; None: none of them fails."""
    failing = []
    for name, (ended, failed) in after.items():
        ended_before, failed_before = before.get(name, (0, 0))
        ended, failed = ended - ended_before, failed - failed_before
        if (failed >= REPEATED and failed >= MOST * ended) or (failed >= SEVERAL and failed >= SOME * ended):
            failing.append((-failed, name, f"{name}: {failed} of {ended}"))
    if not failing:
        return None
    parts = [text for *_, text in sorted(failing)]
    more = f", and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    return f"{', '.join(parts[:SHOWN])}{more} failed in the last minute"
