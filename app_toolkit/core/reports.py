"""When a caller tells its loads anew, and what it says."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

LEAST_S = 1.0
"""Nobody reports more often, but for what cannot wait."""

LONGEST_S = 3.0
"""As long as there is a load it is told so often: a report that is older than `FORGOTTEN_S` counts no more."""

MATTERS = 0.1
"""A report waits until then if neither requests, WebSockets nor streams have changed by this share of what there is."""

JUMP = 2
"""More than so many times as many as are known of are told at once, since replicas take long to start. Where none are,
that is more than so many."""

Load = tuple[int, int, int, int]
Loads = Mapping[str, Load]
"""By deployment, `APPLICATION/DEPLOYMENT`: how many of this caller's requests wait, how many are ongoing, and how many
of its WebSockets and of its streams are open."""

NONE = (0, 0, 0, 0)


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
    before = {name: told.loads.get(name, NONE) for name in news}
    if any(_cannot_wait(before[name], load, unserved) for name, load in news.items()):
        return news
    elapsed = now - told.at
    if elapsed < LEAST_S:
        return {}
    if elapsed >= LONGEST_S or any(_matters(before[name], load) for name, load in news.items()):
        return news
    return {}


def _cannot_wait(before: Load, load: Load, unserved: bool) -> bool:
    jumps = any(now > JUMP * max(then, 1) for then, now in _sizes(before, load))
    return jumps or (unserved and any(load) and not any(before))


def _matters(before: Load, load: Load) -> bool:
    return any(now != then and abs(now - then) >= MATTERS * max(then, now) for then, now in _sizes(before, load))


def _sizes(before: Load, load: Load) -> Iterator[tuple[int, int]]:
    """Requests; and WebSockets and streams, of which there may be many more."""
    yield sum(before[:2]), sum(load[:2])
    yield before[2], load[2]
    yield before[3], load[3]
