"""The backoff between the starts of a replica set whose replicas fail.

The first replica that dies after it has served is replaced at once. Each further failure doubles the wait, up to 30 s.
No more than five starts fall into one minute; if all replicas had served before they died, no more than five for each
desired replica. Failures are counted by template hash: failures of one revision do not delay the next one.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0

WINDOW_S = 60.0
PER_WINDOW = 5

BURST_S = 0.5
"""Failures within this many seconds have one cause (a node, an import) and count once."""

SERVED_LONG_S = 60.0
"""The death of a replica that served for so many seconds delays no start."""

KEPT = 16
"""Failures that are kept: enough to compute the longest wait, and to find five of one template among others."""

FAILED_STARTS = 3
"""Failed starts in a row after which a deployment counts as failed."""


EXCEPTION = re.compile(r"(?:\w+\.)*([A-Z]\w*)(?:: |:?$)")
"""The class of the exception, at the beginning of the last line of a traceback."""


@dataclass(frozen=True, slots=True)
class Failure:
    at: float
    template_hash: str
    served: bool
    """Whether it served before it died."""
    never_ready: bool = False
    """Whether it was killed because it was not ready in time."""
    raised: bool = False
    """Whether an exception of the app ended the start."""
    lived_s: float = field(default=0.0, compare=False)
    """Seconds that it served."""


def noted(failures: tuple[Failure, ...], failure: Failure) -> tuple[Failure, ...]:
    for other in reversed(failures):
        same = replace(other, at=failure.at) == failure
        if same and failure.at - other.at < BURST_S:
            return failures
    return (*failures, failure)[-KEPT:]


def cleared(failures: tuple[Failure, ...], template_hash: str) -> tuple[Failure, ...]:
    """The failures without the failed starts of a template that has started now."""
    return tuple(failure for failure in failures if failure.served or failure.template_hash != template_hash)


def failed_starts(failures: tuple[Failure, ...], template_hash: str) -> int:
    return sum(failure.template_hash == template_hash and not failure.served for failure in failures)


def has_failed(failures: tuple[Failure, ...], template_hash: str) -> bool:
    """Whether the rollout of a revision has failed: its replicas do not start, or die soon.

    One death may be the fault of the machine; `FAILED_STARTS` in a row are not, and take seconds. One replica that used
    up its `startup_timeout_s`, or failed every probe, is enough: minutes may have passed already.
    """
    mine = [failure for failure in failures if failure.template_hash == template_hash]
    return len(mine) >= FAILED_STARTS or any(failure.never_ready for failure in mine)


def cannot_start(
    failures: tuple[Failure, ...], template_hash: str, tries: Iterable[float], now: float, startup_timeout_s: float
) -> bool:
    """Whether requests for a deployment without serving replicas are refused instead of queued.

    One start that an exception of the app ended is enough, and so is one that used up its `startup_timeout_s`. A
    process that died may be the fault of the machine, so that takes `FAILED_STARTS` in a row. Requests are queued while
    a start is in progress that began before the first failure (`tries`: when each start began). Only recent failures
    count: as long as starts fail, the next one fails within `WINDOW_S` plus `startup_timeout_s`.
    """
    mine: list[Failure] = []  # newest first, until there was calm between two
    after = now
    for failure in reversed(failures):
        if failure.template_hash != template_hash or failure.served:
            continue
        if after - failure.at > WINDOW_S + startup_timeout_s:
            break
        mine.append(failure)
        after = failure.at
    if not any(failure.raised or failure.never_ready for failure in mine) and len(mine) < FAILED_STARTS:
        return False
    return all(began > mine[-1].at for began in tries)


def exception_name(why: str | None) -> str | None:
    """The class of the exception at the end of a traceback; None: this is no traceback."""
    lines = (why or "").rstrip().splitlines()
    for line in reversed(lines):
        if found := EXCEPTION.match(line):
            return found[1]
    return None


def has_outlived(failures: tuple[Failure, ...], template_hash: str, lived_s: float) -> bool:
    """Whether a replica has served for longer than all replicas with the same template that died."""
    return all(lived_s > failure.lived_s for failure in failures if failure.template_hash == template_hash)


def not_before(failures: tuple[Failure, ...], template_hash: str, desired: int = 1) -> float | None:
    """The time before which no replica of this template may start, of `desired` replicas; None: now."""
    row: list[Failure] = []  # newest first, until there was calm between two
    for failure in reversed(failures):
        if failure.template_hash != template_hash:
            continue
        if row and row[-1].at - failure.at > WINDOW_S:
            break
        row.append(failure)
    if not row:
        return None
    doublings = len(row) - 2 if row[-1].served else len(row) - 1
    wait = min(FIRST_WAIT_S * 2**doublings, LONGEST_WAIT_S) if doublings >= 0 else 0.0
    when = row[0].at + wait
    # All starts fail for the same reason. Replicas that served may die for different reasons.
    most = PER_WINDOW * (max(desired, 1) if all(failure.served for failure in row) else 1)
    if len(row) >= most:
        when = max(when, row[most - 1].at + WINDOW_S)
    return when
