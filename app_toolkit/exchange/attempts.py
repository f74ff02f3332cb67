"""Decides the next step of a request after an attempt without a response: wait, reassign, retry, or fail.

An attempt sends a request to one replica. The proxy, calls over the network and the engines that run in one process all
use this module.

Design: docs/design/retries.md
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from app_toolkit.errors import (
    NOT_TAKEN,
    BadResponse,
    DeadlineExceeded,
    NoReplica,
    QueueTimeout,
    ReplicaLost,
    RequestError,
    TooManyWebSockets,
)
from app_toolkit.exchange.recent import WINDOW_S, Recent
from app_toolkit.types import ReplicaId, Retry

DEATHS = 2
"""A request that was lost with this many replicas is not retried, because it may be the cause of their deaths."""

LOSSES = 4
"""A request that was lost this many times is not retried. A dying process still accepts connections for a moment, so
one death can lose a request more than once."""

NO_OTHER = ReplicaId("")
"""In `Attempts.avoid`: the other replicas there are not used even if there is none besides them."""

SHARE = 0.2
"""The maximum number of retries of one deployment, as a share of its requests in the last ten seconds."""

FLOOR_PER_S = 10
"""Retries per second that are always allowed, because a share of a few requests may be less than one retry."""

ONE_DEATH_S = 1.0
"""Seconds within which all requests that one replica loses count as one death, which the budget pays once."""


class Result(Enum):
    """How an attempt ended without a response."""

    BUSY = auto()
    """The replica refused the request, because requests of other callers hold all its slots."""
    DRAINING = auto()
    """The replica refused the request, because it drains and accepts no new requests."""
    MOVED = auto()
    """The replica refused the request, because it does not hold the request's affinity key any more."""
    CROWDED = auto()
    """The replica refused the WebSocket, because it has `max_open_websockets` open."""
    SLOW = auto()
    """The replica refused the request, because its body arrives slowly, and such bodies hold their share of slots."""
    REFUSED = auto()
    """The replica refused the caller, for any other reason."""
    UNREACHED = auto()
    """There was no connection to the replica, so nothing was sent."""
    UNREAD = auto()
    """The replica ended before it had read the request head, and only the head was sent."""
    LOST = auto()
    """The request was sent, and the connection ended before the response. The request may have run."""
    UNREADABLE = auto()
    """The replica runs, and its response is not valid HTTP. The request has run."""


REFUSALS: Mapping[str, Result] = {
    "busy": Result.BUSY,
    "draining": Result.DRAINING,
    "moved": Result.MOVED,
    "websockets": Result.CROWDED,
    "slow_bodies": Result.SLOW,
}
"""The results by the reason that a replica gives when it refuses a request."""


def result_of_refusal(word: str) -> Result:
    return REFUSALS.get(word, Result.REFUSED)


class Action(Enum):
    """The next step of a request that does not fail."""

    WAIT = auto()
    """Wait for a permit again, at any replica including the same one. Not counted as a retry, because nothing ran."""
    DELAY = auto()
    """Ask for a permit again after a while, at any replica. No slot is kept meanwhile, and nothing ran."""
    REASSIGN = auto()
    """Acquire a permit at another replica. Not counted as a retry, because nothing ran."""
    RETRY = auto()
    """Acquire a permit at another replica, and run the request again. Counts against the retry budget."""


class Reason(Enum):
    """Why a request fails. The value is the template of the error message, which `failure` fills in."""

    DEADLINE = "the deadline of {request} has passed"
    QUEUE_WAIT = "{request} has waited for a replica of {deployment} for its max_queue_wait_s"
    SLOW_WAIT = (
        "the body of {request} arrives slowly, and such bodies have held half of the slots of {deployment} for its "
        "max_queue_wait_s"
    )
    REFUSED = (
        "replica {replica} rejected the caller's credentials or protocol version ({refusal}); {request} did not run"
    )
    BODY_TAKEN = "replica {replica} refused the request after it had received the body"
    CROWDED = "no replica has room for another WebSocket: each has its max_open_websockets open"
    CROWDED_OR_GONE = (
        "no replica took this WebSocket: some have their max_open_websockets open, others drain or were not reached"
    )
    UNREADABLE = "the response of the app in replica {replica} cannot be read"
    NOT_REPEATABLE = "replica {replica} was lost; the outcome of {request} is unknown"
    SUSPECT = "replica {replica} stopped answering while {request} ran in it; it is not retried"
    LOST_BEFORE = "replica {replica} was lost, and another replica before it; {request} is not retried"
    BODY_DROPPED = "replica {replica} was lost; the body of {request} is no longer held"
    BUDGET = "replica {replica} was lost; the retry budget of {deployment} is spent"


ERRORS: Mapping[Reason, type[RequestError]] = {
    Reason.DEADLINE: DeadlineExceeded,
    Reason.QUEUE_WAIT: QueueTimeout,
    Reason.SLOW_WAIT: QueueTimeout,
    Reason.CROWDED: TooManyWebSockets,
    Reason.CROWDED_OR_GONE: NoReplica,
    Reason.UNREADABLE: BadResponse,
}
"""The class of the error by reason; `ReplicaLost` for every other reason."""


def failure(reason: Reason, replica: ReplicaId, *, request: str, deployment: str, refusal: str = "") -> RequestError:
    """Return the error for a client.

    `request`: names the request, as in `this POST`. `refusal`: the reason that the replica gave, if it refused it.
    """
    kind = ERRORS.get(reason, ReplicaLost)
    return kind(reason.value.format(replica=replica, request=request, deployment=deployment, refusal=refusal))


def is_repeatable(policy: Retry, idempotent: bool) -> bool:
    """Return whether a request may run twice."""
    return policy == "all" or (policy == "idempotent" and idempotent)


@dataclass(frozen=True, slots=True)
class Attempt:
    """The facts about one attempt without a response."""

    replica: ReplicaId
    result: Result
    repeatable: bool = False
    """Whether the request may run twice, by its method and the policy of its deployment."""
    body_retained: bool = True
    """Whether the complete body is retained and can be sent again."""
    suspect: bool = False
    """Whether the replica was killed because it did not answer probes, and the request may have blocked it."""


class RetryBudget:
    """The retry budget of one deployment in one process. `now` is in seconds and never decreases.

    If many requests need a retry, all replicas probably have the same problem, and retries make it worse. The budget
    therefore limits retries to a share of the requests. One death of a replica costs as much as one retry, regardless
    of how many requests are lost with the replica.
    """

    __slots__ = ("_retries", "deaths", "requests")

    def __init__(self) -> None:
        self.requests = Recent()
        self._retries = Recent()
        #: When the last death of each replica was paid for, oldest first.
        self.deaths: dict[ReplicaId, float] = {}

    def affords(self, replica: ReplicaId, now: float) -> bool:
        """Return whether a request that was lost with this replica may be retried."""
        return self._is_paid(replica, now) or self.spent(now) < self.limit(now)

    def spend(self, replica: ReplicaId, now: float) -> None:
        """Pay for the retry of a request that was lost with this replica, unless the same death is already paid for."""
        if self._is_paid(replica, now):
            return
        self._retries.note(now)
        while self.deaths and not self._is_paid(oldest := next(iter(self.deaths)), now):
            del self.deaths[oldest]
        self.deaths[replica] = now

    def spent(self, now: float) -> int:
        """Return the number of deaths that were paid for in the window that ends now."""
        return self._retries.total(now)

    def limit(self, now: float) -> float:
        """Return the maximum number of deaths that can be paid for in the window that ends now."""
        return max(SHARE * self.requests.total(now), FLOOR_PER_S * WINDOW_S)

    def _is_paid(self, replica: ReplicaId, now: float) -> bool:
        paid = self.deaths.get(replica)
        return paid is not None and now - paid < ONE_DEATH_S


class Attempts:
    """The attempts of one request. Times are in seconds on one monotonic clock."""

    __slots__ = ("avoid", "count", "crowded", "deadline", "losses", "lost_replicas", "since", "slow")

    def __init__(self, since: float, deadline: float | None = None) -> None:
        #: When the request began to wait for a permit. A retry resets it, because the request did not cause the loss.
        self.since = since
        #: The deadline of the request; None: no deadline.
        self.deadline = deadline
        self.count = 0
        self.losses = 0
        #: Replicas to use only if there is no other replica, or not at all if `NO_OTHER` is among them.
        self.avoid: tuple[ReplicaId, ...] = ()
        #: Replicas that had no room for another WebSocket.
        self.crowded: tuple[ReplicaId, ...] = ()
        #: Replicas that had no room for a slow body since the last `DELAY`.
        self.slow: tuple[ReplicaId, ...] = ()
        self.lost_replicas: tuple[ReplicaId, ...] = ()

    def after(
        self,
        attempt: Attempt,
        now: float,
        max_queue_wait_s: float,
        budget: RetryBudget | None = None,
        ready: Collection[ReplicaId] = (),
    ) -> Action | Reason:
        """Add the attempt to the history, and return the next step.

        `budget` pays for a retry; None: no retries. `ready`: the replicas that serve.
        """
        if attempt.result is Result.LOST:
            self.losses += 1
            self.lost_replicas = _with(self.lost_replicas, attempt.replica)
        affordable = budget is not None and budget.affords(attempt.replica, now)
        step = next_step(self, attempt, now, max_queue_wait_s, affordable=affordable)
        if attempt.result is Result.CROWDED:
            self.crowded = _with(self.crowded, attempt.replica)
        if attempt.result is Result.SLOW:
            self.slow = _with(self.slow, attempt.replica)
        if step is Action.REASSIGN or step is Action.RETRY:
            spared = last_other(self.lost_replicas, ready) if self.losses else None
            if spared is None:
                self.avoid = _with(self.avoid, attempt.replica)
            elif step is Action.RETRY:  # it may return to the replica that lost it, if that still runs
                self.avoid = spared, NO_OTHER
            else:
                self.avoid = _with(_with(_with(self.avoid, attempt.replica), spared), NO_OTHER)
        if step is Action.DELAY:
            self.avoid = tuple(replica for replica in self.avoid if replica not in self.slow)
            self.slow = ()
        if step is Action.RETRY:
            assert budget is not None, "it afforded this retry"
            self.since = now
            budget.spend(attempt.replica, now)
        return step

    def explain(self, error: Exception, request: str) -> Exception:
        """Return the error of a request that gets no permit.

        After a loss, this is `ReplicaLost` instead of an error that guarantees that the request did not run.
        """
        if self.losses and isinstance(error, NOT_TAKEN):
            return ReplicaLost(f"a replica was lost with {request}, and then {error}; the outcome is unknown")
        return error


def next_step(
    attempts: Attempts, attempt: Attempt, now: float, max_queue_wait_s: float, *, affordable: bool
) -> Action | Reason:
    """Return the next step after an attempt.

    * A request that may have run runs again only if it is repeatable and is not suspected of killing replicas.
    * A request that did not run is sent again as long as it may wait, regardless of its method.
    * Nothing is sent after the deadline, and a body that is not complete is never sent.

    Parameters:
        attempts: The history. It already includes the loss of this attempt.
        attempt: The attempt.
        now: The time in seconds.
        max_queue_wait_s: The maximum time in seconds that a request waits for a permit.
        affordable: Whether the retry budget would pay for a retry.
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
        # The same replica was tried twice, because no other replica was left.
        return Reason.CROWDED if set(attempts.avoid) <= set(attempts.crowded) else Reason.CROWDED_OR_GONE
    if late:
        return Reason.DEADLINE
    if now - attempts.since >= max_queue_wait_s:
        return Reason.SLOW_WAIT if attempt.result is Result.SLOW else Reason.QUEUE_WAIT
    if attempt.result is Result.SLOW and attempt.replica in attempts.slow:
        return Action.DELAY  # the same replica was tried twice, because no other replica was left
    return Action.WAIT if attempt.result in (Result.BUSY, Result.MOVED) else Action.REASSIGN


def last_other(lost: Collection[ReplicaId], ready: Collection[ReplicaId]) -> ReplicaId | None:
    """Return the last replica, which must not get a request that was lost; None: there are several, or none.

    The request may have ended the process of the replica that lost it. If this replica served until then, and only one
    other serves, the request waits for a replica that starts. `lost`: the replicas that lost the request. `ready`: the
    replicas that serve, as far as the caller knows, with those that have just been lost.
    """
    others = [replica for replica in ready if replica not in lost]
    was_ready = len(others) < len(ready)
    return others[0] if was_ready and len(others) == 1 else None


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
