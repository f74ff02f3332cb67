"""When a caller tells its loads anew, and what it says."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LEAST_S = 1.0
"""Nobody reports more often, but for what cannot wait."""

LONGEST_S = 3.0
"""As long as there is a load it is told so often: a report that is older than `FORGOTTEN_S` counts no more."""

MATTERS = 0.1
"""A load that changed by a smaller share of itself need not be told before that."""

JUMP = 2
"""A load of more than so many times what is known of it is told at once, since replicas take long to start. Where none
is known, that is one of more than so many requests."""

Loads = Mapping[str, tuple[int, int, int]]
"""By deployment, `APPLICATION/DEPLOYMENT`: how many of this caller's requests wait, how many are ongoing, and how many
of its WebSockets are open."""

NONE = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Told:
    """The last report that was heard."""

    loads: Loads = field(default_factory=dict)
    at: float = float("-inf")


def to_tell(told: Told, loads: Loads, now: float, *, unserved: bool = False) -> Loads:
    """What is to be reported now; nothing where that has time.

    `unserved`: something waits that no replica is there for. If nobody knows of that load, it is told at once.
    """
    every = {**dict.fromkeys(told.loads, NONE), **loads}  # what is not there any more has no load
    news = {name: load for name, load in every.items() if any(load) or any(told.loads.get(name, NONE))}
    before = {name: sum(told.loads.get(name, NONE)) for name in news}
    if any(_cannot_wait(before[name], sum(load), unserved) for name, load in news.items()):
        return news
    elapsed = now - told.at
    if elapsed < LEAST_S:
        return {}
    if elapsed >= LONGEST_S or any(_matters(before[name], sum(load)) for name, load in news.items()):
        return news
    return {}


def _cannot_wait(before: int, load: int, unserved: bool) -> bool:
    return load > JUMP * max(before, 1) or (unserved and not before and load > 0)


def _matters(before: int, load: int) -> bool:
    return load != before and abs(load - before) >= MATTERS * max(before, load)
