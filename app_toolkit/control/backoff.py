"""The backoff between the starts of a replica set whose replicas fail.

A replica that has served for `SERVED_S` and whose process then ends was probably lost or killed from outside, and is
replaced at once. If this happens more than `LOST_PER_WINDOW` times per minute and desired replica, the starts are
spaced.

Every other failure is the replica's own: it does not start, ends as soon as it serves, or fails its health checks. The
first replica that ends as soon as it serves is replaced at once, too. Each further failure in a row doubles the wait,
up to 30 s. At most five replicas then start in one minute, or five for each desired replica if all failed replicas had
served before they died. Failures are counted by template hash, so failures of one revision do not delay the next
revision.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile

FIRST_WAIT_S = 0.5
"""The first backoff before a restart in seconds. It doubles with each further failure."""

LONGEST_WAIT_S = 30.0
"""The maximum backoff in seconds."""

WINDOW_S = 60.0
"""The longest gap between two failures of one series, and the window of `PER_WINDOW`, in seconds."""

PER_WINDOW = 5
"""Restarts wait after this many failures within `WINDOW_S`. If all replicas that failed had served, the number is
multiplied by the number of desired replicas."""

SERVED_S = 1.0
"""Seconds. A replica that served for less before its process ended counts as the cause of its end: a request that waits
for it and crashes it does so at once."""

LOST_PER_WINDOW = 15
"""How many replicas are replaced at once within `WINDOW_S`, for each desired replica. Further starts are spaced by
`WINDOW_S / LOST_PER_WINDOW` seconds, so that replicas that crash after a few seconds do not use the whole machine for
their starts."""

REFUSED_S = 5.0
"""Seconds. If no replica serves and the next start waits for longer than this, requests are refused instead of
queued."""

BURST_S = 0.5
"""Equal failures within this many seconds probably have one cause (a node, an import) and count once."""

SERVED_LONG_S = 60.0
"""Seconds. The death of a replica that served for at least this long delays no start."""

KEPT = 64
"""The number of failures that are kept, which also bounds the number of replicas that are replaced at once within
`WINDOW_S`."""

FAILED_STARTS = 3
"""Failed starts in a row after which a deployment counts as failed."""


EXCEPTION = re.compile(r"(?:\w+\.)*([A-Z]\w*)(?:: |:?$)")
"""The class of the exception, at the beginning of the last line of a traceback."""


@dataclass(frozen=True, slots=True)
class Failure:
    at: float
    template_hash: str
    served: bool
    """Whether the replica served before it died."""
    never_ready: bool = False
    """Whether the replica was killed or retired before it was ready."""
    raised: bool = False
    """Whether an exception of the app ended the start."""
    ended: bool = False
    """Whether the process of a replica that served ended, other than by an order of the controller."""
    lived_s: float = field(default=0.0, compare=False)
    """The time in seconds for which the replica served."""

    @property
    def lost(self) -> bool:
        """Whether the process ended after it had served for long enough not to be the cause itself."""
        return self.ended and self.lived_s >= SERVED_S


def noted(failures: tuple[Failure, ...], failure: Failure) -> tuple[Failure, ...]:
    for other in reversed(failures):
        same = replace(other, at=failure.at) == failure and other.lost == failure.lost
        if same and failure.at - other.at < BURST_S:
            return failures
    return (*failures, failure)[-KEPT:]


def cleared(failures: tuple[Failure, ...], template_hash: str) -> tuple[Failure, ...]:
    """Return the failures without the failed starts of a template, after a replica of it has started."""
    return tuple(failure for failure in failures if failure.served or failure.template_hash != template_hash)


def failed_starts(failures: tuple[Failure, ...], template_hash: str) -> int:
    return sum(failure.template_hash == template_hash and not failure.served for failure in failures)


def has_failed(failures: tuple[Failure, ...], template_hash: str) -> bool:
    """Return whether a revision has failed, because its replicas do not start or die soon.

    A single death may be the fault of the machine. `FAILED_STARTS` deaths in a row are not, and take only seconds. A
    single replica that exceeded its `startup_timeout_s` or failed every probe is enough, because minutes may have
    passed already.
    """
    counted = [failure for failure in failures if failure.template_hash == template_hash]
    return len(counted) >= FAILED_STARTS or any(failure.never_ready for failure in counted)


def cannot_start(
    failures: tuple[Failure, ...], template_hash: str, tries: Iterable[float], now: float, startup_timeout_s: float
) -> bool:
    """Return whether requests for a deployment without serving replicas are refused instead of queued.

    A single start is enough if an exception of the app ended it or it exceeded its `startup_timeout_s`. The death of a
    process may be the fault of the machine, so `FAILED_STARTS` deaths in a row are necessary. Requests are queued while
    a start is in progress that began before the first failure (`tries`: when each start began). Only recent failures
    count: as long as starts fail, the next start fails within `WINDOW_S` plus `startup_timeout_s`.
    """
    counted: list[Failure] = []  # newest first, back to the first long gap between two failures
    after = now
    for failure in reversed(failures):
        if failure.template_hash != template_hash or failure.served:
            continue
        if after - failure.at > WINDOW_S + startup_timeout_s:
            break
        counted.append(failure)
        after = failure.at
    if not any(failure.raised or failure.never_ready for failure in counted) and len(counted) < FAILED_STARTS:
        return False
    return all(began > counted[-1].at for began in tries)


def exception_name(why: str | None) -> str | None:
    """Return the class of the exception at the end of a traceback; None: `why` is not a traceback."""
    lines = (why or "").rstrip().splitlines()
    for line in reversed(lines):
        if match := EXCEPTION.match(line):
            return match[1]
    return None


def has_outlived(failures: tuple[Failure, ...], template_hash: str, lived_s: float) -> bool:
    """Return whether a replica has served for longer than all replicas with the same template that died."""
    return all(lived_s > failure.lived_s for failure in failures if failure.template_hash == template_hash)


def not_before(failures: tuple[Failure, ...], template_hash: str, desired: int = 1) -> float | None:
    """Return the time before which no replica of this template may start; None: it may start now.

    `desired`: the number of desired replicas.
    """
    row = _row(failures, template_hash)
    if not row:
        return None
    last = row[0].at
    most_lost = min(LOST_PER_WINDOW * max(desired, 1), KEPT)
    recent = sum(last - failure.at < WINDOW_S for failure in row)
    spacing = WINDOW_S / most_lost if recent >= most_lost else 0.0
    own_failures = list(takewhile(lambda failure: not failure.lost, row))
    return max(last + spacing, _after_own(own_failures, desired)) if own_failures else last + spacing


def _row(failures: tuple[Failure, ...], template_hash: str) -> list[Failure]:
    """Return the failures of a template, the newest first, back to the first long gap between two of them."""
    row: list[Failure] = []
    for failure in reversed(failures):
        if failure.template_hash != template_hash:
            continue
        if row and row[-1].at - failure.at > WINDOW_S:
            break
        row.append(failure)
    return row


def _after_own(row: list[Failure], desired: int) -> float:
    """Return when a replica may start after failures that the replicas caused themselves, the newest first."""
    doublings = len(row) - 2 if row[-1].served else len(row) - 1
    wait = min(FIRST_WAIT_S * 2**doublings, LONGEST_WAIT_S) if doublings >= 0 else 0.0
    when = row[0].at + wait
    # Failed starts of a template have the same cause. Replicas that served may die for different reasons.
    most = PER_WINDOW * (max(desired, 1) if all(failure.served for failure in row) else 1)
    if len(row) >= most:
        when = max(when, row[most - 1].at + WINDOW_S)
    return when


def is_held_back(failures: tuple[Failure, ...], template_hash: str, desired: int, now: float) -> bool:
    """Return whether the next start waits for so long that requests without a replica are refused instead of queued."""
    when = not_before(failures, template_hash, desired)
    return when is not None and now < when and when - _row(failures, template_hash)[0].at > REFUSED_S
