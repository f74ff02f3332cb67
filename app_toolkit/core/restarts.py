"""How soon a group that keeps failing may try again.

A first death of a replica that served is made good at once. From then on each failure doubles the wait, up to
half a minute, and no more than five fall into one minute; where all of them had served, no more than five for each
replica that is wanted. Failures belong to a revision: a repaired one is not held back by what its predecessor did.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0

WINDOW_S = 60.0
PER_WINDOW = 5

BURST_S = 0.5
"""Deaths that come together have one cause (a node, an import) and count once."""

SERVED_LONG_S = 60.0
"""A replica that served this long did not die of starting: its death holds nothing back."""

KEPT = 16
"""Enough to tell the longest wait, and to find five of one revision among another's."""

FAILED_STARTS = 3
"""So many starts in a row, and none that came up: whoever deployed is told that it failed."""


EXCEPTION = re.compile(r"(?:\w+\.)*([A-Z]\w*)(?:: |:?$)")
"""Begins the last line of a traceback: the exception's class."""


@dataclass(frozen=True, slots=True)
class Failure:
    at: float
    revision: str
    served: bool
    """It was ready before it died."""
    given_up: bool = False
    """It was never well in all the time that it had: it was killed for that."""
    raised: bool = False
    """The app's own code ended the start, by an exception."""
    lived_s: float = field(default=0.0, compare=False)
    """Seconds that it had served."""


def noted(failures: tuple[Failure, ...], failure: Failure) -> tuple[Failure, ...]:
    for other in reversed(failures):
        same = replace(other, at=failure.at) == failure
        if same and failure.at - other.at < BURST_S:
            return failures
    return (*failures, failure)[-KEPT:]


def cleared(failures: tuple[Failure, ...], revision: str) -> tuple[Failure, ...]:
    """Without the failed starts of a revision that has now come up."""
    return tuple(failure for failure in failures if failure.served or failure.revision != revision)


def failed_starts(failures: tuple[Failure, ...], revision: str) -> int:
    return sum(failure.revision == revision and not failure.served for failure in failures)


def is_given_up(failures: tuple[Failure, ...], revision: str) -> bool:
    """Whether a revision that takes the place of another will not come up, or not stay up.

    One that died may have been the machine's fault; as many in a row as `FAILED_STARTS` were not, and take seconds. One
    that had its whole `startup_timeout_s`, or failed every probe since it served, is not tried a second time: minutes
    may have gone by already.
    """
    mine = [failure for failure in failures if failure.revision == revision]
    return len(mine) >= FAILED_STARTS or any(failure.given_up for failure in mine)


def cannot_start(
    failures: tuple[Failure, ...], revision: str, tries: Iterable[float], now: float, startup_timeout_s: float
) -> bool:
    """Whether requests for a revision, of which no replica serves, are refused instead of queued.

    One start that the app's own code ended is enough, and so is one that took its whole `startup_timeout_s`. A process
    that died may have been the machine's fault, so that takes `FAILED_STARTS` in a row. Nobody is refused while a start
    is under way (`tries`: when each began) that began before the first one failed. Only recent failures count: as long
    as starts fail, the next one fails within `WINDOW_S`, the longest wait, and `startup_timeout_s`.
    """
    mine: list[Failure] = []  # newest first, until there was calm between two
    after = now
    for failure in reversed(failures):
        if failure.revision != revision or failure.served:
            continue
        if after - failure.at > WINDOW_S + startup_timeout_s:
            break
        mine.append(failure)
        after = failure.at
    if not any(failure.raised or failure.given_up for failure in mine) and len(mine) < FAILED_STARTS:
        return False
    return all(began > mine[-1].at for began in tries)


def exception_name(why: str | None) -> str | None:
    """The class of the exception that a traceback ends with; None: this is no traceback."""
    lines = (why or "").rstrip().splitlines()
    for line in reversed(lines):
        if found := EXCEPTION.match(line):
            return found[1]
    return None


def has_outlived(failures: tuple[Failure, ...], revision: str, lived_s: float) -> bool:
    """Whether who has served so long shows more than those of its revision did that died: it may have their illness."""
    return all(lived_s > failure.lived_s for failure in failures if failure.revision == revision)


def not_before(failures: tuple[Failure, ...], revision: str, wanted: int = 1) -> float | None:
    """When this revision, of which so many replicas are wanted, may be started again; None: nothing holds it back."""
    row: list[Failure] = []  # newest first, until there was calm between two
    for failure in reversed(failures):
        if failure.revision != revision:
            continue
        if row and row[-1].at - failure.at > WINDOW_S:
            break
        row.append(failure)
    if not row:
        return None
    doublings = len(row) - 2 if row[-1].served else len(row) - 1
    wait = min(FIRST_WAIT_S * 2**doublings, LONGEST_WAIT_S) if doublings >= 0 else 0.0
    when = row[0].at + wait
    # Starts fail for a reason that the next one shares; many replicas may well die for reasons of their own.
    most = PER_WINDOW * (max(wanted, 1) if all(failure.served for failure in row) else 1)
    if len(row) >= most:
        when = max(when, row[most - 1].at + WINDOW_S)
    return when
