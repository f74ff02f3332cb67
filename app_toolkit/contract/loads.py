"""Decides when a caller reports to the controller: its loads, and the requests of revisions that are compared."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from app_toolkit.contract.compared import Requests
from app_toolkit.contract.identity import LiveRevisionKey, ReplicaSetKey
from app_toolkit.types import ReplicaId

LEAST_S = 1.0
"""The minimum number of seconds between two reports, except urgent ones."""

LONGEST_S = 3.0
"""The maximum number of seconds between two reports while there is any load. A report counts only for `FORGOTTEN_S`."""

SIGNIFICANT_CHANGE = 0.1
"""The share by which requests, WebSockets or streams must have changed for a report before `LONGEST_S`."""

JUMP = 2
"""If the load is more than this many times the reported load, or more than this number if none was reported, the caller
reports it at once, because replicas take long to start."""

Load = tuple[int, int, int, int]
Loads = Mapping[ReplicaSetKey, Load]
"""The loads of one caller by deployment: the numbers of waiting requests, ongoing requests, open WebSockets and open
streams."""

Compared = Mapping[LiveRevisionKey, Requests]
"""The ended requests in one caller, by live revision, of applications with a canary release. They are counts since the
caller began to count, so a report that is lost does no harm."""

Lost = Mapping[ReplicaId, Mapping[str, int]]
"""The requests and calls that ran in replicas when these were lost, as one caller knows them: how many, by their names,
such as `GET /die`."""

MOST_NAMES = 3
"""The number of different requests that a sentence names."""

NONE = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class LastReport:
    """The last report that the controller accepted."""

    loads: Loads = field(default_factory=dict)
    at: float = float("-inf")


def loads_to_report(last: LastReport, loads: Loads, now: float, *, unserved: bool = False) -> Loads:
    """Return the loads to report now; an empty mapping if the report can wait.

    `unserved`: a request waits for a deployment without replicas. If its load has not been reported, it is reported at
    once.
    """
    every = {**dict.fromkeys(last.loads, NONE), **loads}  # a deployment that is missing in `loads` has no load any more
    news = {name: load for name, load in every.items() if any(load) or any(last.loads.get(name, NONE))}
    before = {name: last.loads.get(name, NONE) for name in news}
    if any(_cannot_wait(before[name], load, unserved) for name, load in news.items()):
        return news
    elapsed = now - last.at
    if elapsed < LEAST_S:
        return {}
    if elapsed >= LONGEST_S or any(_is_significant(before[name], load) for name, load in news.items()):
        return news
    return {}


def lost_sentence(requests: Mapping[str, int]) -> str:
    """Return a sentence about the requests that ran in a replica when it was lost."""
    ordered = sorted(requests.items(), key=lambda item: -item[1])
    names = [f"{name} ({count})" if count > 1 else name for name, count in ordered[:MOST_NAMES]]
    rest = sum(count for _, count in ordered[MOST_NAMES:])
    total = sum(requests.values())
    what = "request" if total == 1 else "requests"
    return f"{total} {what} ran in it: {', '.join(names)}{f' and {rest} others' if rest else ''}"


def are_due(last: Compared, at: float, compared: Compared, now: float) -> bool:
    """Return whether to report these requests now. `last`: what was reported last, at the time `at`."""
    return now - at >= LEAST_S and compared != last


def _cannot_wait(before: Load, load: Load, unserved: bool) -> bool:
    jumps = any(now > JUMP * max(then, 1) for then, now in _sizes(before, load))
    return jumps or (unserved and any(load) and not any(before))


def _is_significant(before: Load, load: Load) -> bool:
    return any(
        now != then and abs(now - then) >= SIGNIFICANT_CHANGE * max(then, now) for then, now in _sizes(before, load)
    )


def _sizes(before: Load, load: Load) -> Iterator[tuple[int, int]]:
    """Yield the numbers before and now of requests, WebSockets and streams, which are compared separately: there may be
    many more WebSockets and streams than requests."""
    yield sum(before[:2]), sum(load[:2])
    yield before[2], load[2]
    yield before[3], load[3]
