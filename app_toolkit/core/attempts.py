"""The next step of a request after an attempt that brought no answer: wait, reassign, retry, or fail.

An attempt sends a request to one replica. The proxy, calls over the wire, and the engines in one process all decide
here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from app_toolkit.core.recent import WINDOW_S, Recent
from app_toolkit.errors import (
    NOT_TAKEN,
    BadAnswer,
    DeadlineExceeded,
    NoReplica,
    QueueTimeout,
    ReplicaLost,
    RequestError,
    TooManyWebSockets,
)
from app_toolkit.types import ReplicaId, Retry

DEATHS = 2
"""A request that lost so many replicas is not retried: it may be what kills them."""

LOSSES = 4
"""A request that was lost so often is not retried. A dying process accepts connections for a moment, so one death can
lose a request more than once."""

SHARE = 0.2
"""Retries of one deployment, as a share of its requests in the last ten seconds."""

FLOOR_PER_S = 10
"""Retries a second that are always allowed, because a share of few requests is none."""

ONE_DEATH_S = 1.0
"""All requests that one replica loses within this time are lost in one death, which the budget counts once."""


class Result(Enum):
    """How an attempt ended without an answer."""

    BUSY = auto()
    """The replica refused the request: other callers had filled it."""
    DRAINING = auto()
    """The replica refused the request: it takes no new ones."""
    CROWDED = auto()
    """The replica refused the WebSocket: it has `max_open_websockets` open."""
    REFUSED = auto()
    """The replica refused the caller, for any other reason."""
    UNREACHED = auto()
    """There was no connection to the replica, so nothing was sent."""
    UNREAD = auto()
    """The replica ended before it had read the head, and nothing but the head was sent."""
    LOST = auto()
    """The request was sent, and the connection ended before the answer. The request may have run."""
    UNREADABLE = auto()
    """The replica lives, and its answer is no HTTP. The request has run."""


REFUSALS: Mapping[str, Result] = {
    "busy": Result.BUSY,
    "draining": Result.DRAINING,
    "websockets": Result.CROWDED,
}
"""By the word that the replica gives."""


def refusal(word: str) -> Result:
    return REFUSALS.get(word, Result.REFUSED)


class Action(Enum):
    """What to do with a request that is not failed."""

    WAIT = auto()
    """Wait for a permit again, also at the same replica. Free of charge: nothing ran."""
    REASSIGN = auto()
    """Ask for a permit at another replica. Free of charge: nothing ran."""
    RETRY = auto()
    """Ask for a permit at another replica, and run the request once more. The retry budget pays."""


class Reason(Enum):
    """Why a request fails. The value is the sentence of its error, for `failure` to fill in."""

    DEADLINE = "the deadline of {request} has passed"
    QUEUE_WAIT = "{request} has waited for a replica of {deployment} for its max_queue_wait_s"
    REFUSED = "replica {replica} refused {request}"
    BODY_TAKEN = "replica {replica} refused the request after it had taken its body"
    CROWDED = "no replica has room for another WebSocket: each has its max_open_websockets open"
    CROWDED_OR_GONE = (
        "no replica took this WebSocket: some have their max_open_websockets open, others drain or were not reached"
    )
    UNREADABLE = "what the app has answered in replica {replica} cannot be read"
    NOT_REPEATABLE = "replica {replica} was lost; the outcome of {request} is unknown"
    SUSPECT = "replica {replica} stopped answering while {request} ran in it; it is not tried again"
    LOST_BEFORE = "replica {replica} was lost, as one was before it; {it} is not tried again"
    BODY_DROPPED = "replica {replica} was lost; the body of {request} is no longer held"
    BUDGET = "replica {replica} was lost; the retry budget of {deployment} is spent"


ERRORS: Mapping[Reason, type[RequestError]] = {
    Reason.DEADLINE: DeadlineExceeded,
    Reason.QUEUE_WAIT: QueueTimeout,
    Reason.CROWDED: TooManyWebSockets,
    Reason.CROWDED_OR_GONE: NoReplica,
    Reason.UNREADABLE: BadAnswer,
}
"""The kind of the error; `ReplicaLost` for every other reason."""


def failure(reason: Reason, replica: ReplicaId, *, request: str, it: str, deployment: str) -> RequestError:
    """The error for a client. `request` names the request, as in `this POST`; `it` does so where that is too long."""
    kind = ERRORS.get(reason, ReplicaLost)
    return kind(reason.value.format(replica=replica, request=request, it=it, deployment=deployment))


def is_repeatable(policy: Retry, idempotent: bool) -> bool:
    """Whether a request may run twice."""
    return policy == "all" or (policy == "idempotent" and idempotent)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is known about one attempt that brought no answer."""

    replica: ReplicaId
    result: Result
    repeatable: bool = False
    """The request may run twice, by its method and the policy of its deployment."""
    body_retained: bool = True
    """The whole body is held, to be sent again."""
    suspect: bool = False
    """The replica was ended because it did not answer probes, and the request may be what blocked it."""


class RetryBudget:
    """The budget of one deployment in one process. `now` is in seconds and never falls.

    A few retries help. If many requests need one, something is wrong with all replicas and more requests make it
    worse, so retries are limited to a share of the requests. One death of a replica costs as much as one retry,
    however many requests it loses.
    """

    __slots__ = ("_requests", "_retries", "deaths")

    def __init__(self) -> None:
        self._requests = Recent()
        self._retries = Recent()
        #: When each replica's last death was paid for, oldest first.
        self.deaths: dict[ReplicaId, float] = {}

    def count_request(self, now: float) -> None:
        self._requests.note(now)

    def affords(self, replica: ReplicaId, now: float) -> bool:
        """Whether a request that this replica has lost may be retried."""
        return self._is_paid(replica, now) or self.spent(now) < self.limit(now)

    def spend(self, replica: ReplicaId, now: float) -> None:
        """Pay for such a retry; nothing if the same death is paid for."""
        if self._is_paid(replica, now):
            return
        self._retries.note(now)
        while self.deaths and not self._is_paid(oldest := next(iter(self.deaths)), now):
            del self.deaths[oldest]
        self.deaths[replica] = now

    def spent(self, now: float) -> int:
        """Deaths that were paid for within the window that ends now."""
        return self._retries.total(now)

    def limit(self, now: float) -> float:
        """Deaths that can be paid for within the window that ends now."""
        return max(SHARE * self._requests.total(now), FLOOR_PER_S * WINDOW_S)

    def _is_paid(self, replica: ReplicaId, now: float) -> bool:
        paid = self.deaths.get(replica)
        return paid is not None and now - paid < ONE_DEATH_S


class Attempts:
    """All attempts of one request. Times are in seconds on one clock that never falls."""

    __slots__ = ("avoid", "count", "crowded", "deadline", "losses", "lost_replicas", "since")

    def __init__(self, since: float, deadline: float | None = None) -> None:
        #: When the request began to wait for a permit; a retry begins anew, because the loss is not its fault.
        self.since = since
        #: None: nothing bounds the request.
        self.deadline = deadline
        self.count = 0
        self.losses = 0
        #: Replicas to use only if there is no other.
        self.avoid: tuple[ReplicaId, ...] = ()
        #: Those of them that had no room for a WebSocket.
        self.crowded: tuple[ReplicaId, ...] = ()
        self.lost_replicas: tuple[ReplicaId, ...] = ()

    def after(
        self, attempt: Attempt, now: float, max_queue_wait_s: float, budget: RetryBudget | None = None
    ) -> Action | Reason:
        """Take the attempt into the history, and give the next step. `budget` pays for a retry; None: there is none."""
        if attempt.result is Result.LOST:
            self.losses += 1
            self.lost_replicas = _with(self.lost_replicas, attempt.replica)
        affordable = budget is not None and budget.affords(attempt.replica, now)
        step = next_step(self, attempt, now, max_queue_wait_s, affordable=affordable)
        if attempt.result is Result.CROWDED:
            self.crowded = _with(self.crowded, attempt.replica)
        if step is Action.REASSIGN or step is Action.RETRY:
            self.avoid = _with(self.avoid, attempt.replica)
        if step is Action.RETRY:
            assert budget is not None, "it afforded this retry"
            self.since = now
            budget.spend(attempt.replica, now)
        return step

    def explain(self, error: Exception, request: str) -> Exception:
        """The error of a request that gets no permit: after a loss nobody may say that nothing ran."""
        if self.losses and isinstance(error, NOT_TAKEN):
            return ReplicaLost(f"a replica was lost with {request}, and then {error}; the outcome is unknown")
        return error


def next_step(
    attempts: Attempts, attempt: Attempt, now: float, max_queue_wait_s: float, *, affordable: bool
) -> Action | Reason:
    """What to do after an attempt, given the history, of which its loss is a part. `affordable`: the budget would pay.

    * A request that may have run runs again only if it is repeatable, and is not what ends its replicas.
    * A request that did not run goes on as long as it may wait, whatever its method.
    * Nothing is sent after the deadline, and no body of which a part is missing.
    """
    late = attempts.deadline is not None and now >= attempts.deadline
    match attempt.result:
        case Result.UNREADABLE:
            return Reason.UNREADABLE
        case Result.REFUSED:
            return Reason.REFUSED
        case Result.LOST:
            return _after_loss(attempts, attempt, late, affordable)
    if not attempt.body_retained:
        return Reason.BODY_TAKEN
    if attempt.result is Result.CROWDED and attempt.replica in attempts.crowded:
        # It was asked again because there is no other.
        return Reason.CROWDED if set(attempts.avoid) <= set(attempts.crowded) else Reason.CROWDED_OR_GONE
    if late:
        return Reason.DEADLINE
    if now - attempts.since >= max_queue_wait_s:
        return Reason.QUEUE_WAIT
    return Action.WAIT if attempt.result is Result.BUSY else Action.REASSIGN


def _after_loss(attempts: Attempts, attempt: Attempt, late: bool, affordable: bool) -> Action | Reason:
    if not attempt.repeatable:
        return Reason.NOT_REPEATABLE
    if attempt.suspect:
        return Reason.SUSPECT
    if len(attempts.lost_replicas) >= DEATHS or attempts.losses >= LOSSES:
        return Reason.LOST_BEFORE
    if not attempt.body_retained:
        return Reason.BODY_DROPPED
    if late:
        return Reason.DEADLINE
    return Action.RETRY if affordable else Reason.BUDGET


def _with(replicas: tuple[ReplicaId, ...], replica: ReplicaId) -> tuple[ReplicaId, ...]:
    return replicas if replica in replicas else (*replicas, replica)
