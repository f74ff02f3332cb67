"""The dispatcher: the state machine of one request or call from the first permit to the end of the response.

It does no I/O. Its owner does what the dispatcher asks for, and reports what happened:

| the owner reports | the request is then | the owner does next |
|---|---|---|
| `acquire` | waiting | waits for a permit of the router, if there was none at once |
| `asks_elsewhere` | idle | `acquire` at another router |
| `granted` | connecting | connects to `replica` |
| `sent` | sent | reads the response |
| `response_started` | responding | passes on the response, then `end` |
| `refused`, `lost` | idle | `acquire`, at once or after a `DELAY` |
| `refused`, `lost` | failed | fails with the error that was returned, then `end` |
| `end` | done | nothing |

Design: docs/design/retries.md
"""

from collections.abc import Callable, Collection, Mapping
from enum import IntEnum, auto
from typing import Any, Generic, Protocol, TypeVar

from app_toolkit.config.models import Policy
from app_toolkit.errors import DeadlineExceeded, NotRead, ReplicaGone, ResponseUnreadable
from app_toolkit.exchange.attempts import (
    Action,
    Attempt,
    Attempts,
    Reason,
    Result,
    RetryBudget,
    failure,
    result_of_refusal,
)
from app_toolkit.exchange.preference import NO_PREFERENCE, Outcome, Preference
from app_toolkit.interfaces import Endpoint
from app_toolkit.observability.records import FailedAttempt
from app_toolkit.types import ReplicaId, Retry


class Stage(IntEnum):
    """The stage of a request or call. An int, because it is looked up several times for each request."""

    IDLE = auto()
    """The request does not ask for a permit: its body arrives, or it begins another attempt, at once or later."""
    WAITING = auto()
    """The request asks or waits for a permit at a replica."""
    CONNECTING = auto()
    """The request has a permit, and waits for a connection to the replica."""
    SENT = auto()
    """The request was sent to the replica, and no part of a response was passed on."""
    RESPONDING = auto()
    """The response has begun, and is passed on as it arrives."""
    FAILED = auto()
    """The last attempt ended without a response, and there is no other attempt."""
    DONE = auto()


# An attribute of an enum class takes longer to read than a name of a module.
IDLE, WAITING, CONNECTING, SENT, RESPONDING, FAILED, DONE = Stage

TRANSITIONS: Mapping[Stage, tuple[Stage, ...]] = {
    IDLE: (WAITING, DONE),
    WAITING: (CONNECTING, IDLE, DONE),
    CONNECTING: (SENT, IDLE, FAILED, DONE),
    SENT: (RESPONDING, IDLE, FAILED, DONE),
    RESPONDING: (DONE,),
    FAILED: (DONE,),
    DONE: (),
}
"""A request returns to IDLE after an attempt without a response, and if it asks elsewhere. Every stage except DONE may
lead to DONE."""


class IllegalStage(AssertionError):
    """A transition that is not listed in `TRANSITIONS`: a bug in the owner of the dispatcher."""

    def __init__(self, stage: Stage, after: Stage) -> None:
        super().__init__(f"a request that is {stage.name} cannot become {after.name}")


class Steps(dict[tuple[Stage, Stage], Stage]):
    """By stage and next stage: the next stage. Any other pair raises `IllegalStage`."""

    def __missing__(self, key: tuple[Stage, Stage]) -> Stage:
        raise IllegalStage(*key)


# A dict, because a function would be called five times for each request.
STEPS = Steps({(stage, after): after for stage, following in TRANSITIONS.items() for after in following})


class Permit(Protocol):
    """The right to use a slot of a replica."""

    @property
    def endpoint(self) -> Endpoint: ...

    affinity: Outcome | None


P = TypeVar("P", bound=Permit)


class Router(Protocol):
    """The router interface that a dispatcher and its owner use.

    Permits and waiters are returned to the router that created them.
    """

    name: str
    policy: Policy

    @property
    def waiting(self) -> int: ...

    @property
    def ready(self) -> Collection[ReplicaId]: ...

    def try_acquire(self, avoid: Collection[ReplicaId], preference: Preference) -> Any: ...

    def wait(
        self,
        granted: Callable[[Any], None],
        since: float,
        *,
        avoid: Collection[ReplicaId],
        preference: Preference,
        again: bool,
        failed: Callable[[Exception], None],
    ) -> Any: ...

    def leave(self, waiter: Any) -> None: ...

    def open(self, permit: Any) -> None: ...

    def release(self, permit: Any) -> None: ...

    def ended(self, permit: Any, result: Result) -> None: ...

    def waited_too_long(self) -> Exception: ...


class Dispatchable(Protocol):
    """The request or call of a dispatcher. The dispatcher reads it only if an attempt has failed."""

    @property
    def name(self) -> str:
        """The name of the request in error messages: `this POST`, or the method of a call."""

    @property
    def request_id(self) -> str: ...

    @property
    def body_retained(self) -> bool:
        """Whether the complete body is retained and can be sent again."""

    def is_repeatable(self, policy: Retry) -> bool:
        """Return whether the request may run twice. `policy`: that of its deployment."""

    def late(self, stage: Stage, timeout: float, deployment: str) -> DeadlineExceeded:
        """Return the error for a deadline that passes in this stage, `timeout` seconds after the request began."""


StageTimes = tuple[float, float | None, float | None, tuple[FailedAttempt, ...]]
"""The last fields of a `Record`: `queued_s`, `first_byte_s`, `attempt_s` and `failed`."""


class Dispatcher(Generic[P]):
    """Dispatches one request or call to the replicas of one deployment.

    * The dispatcher has the permit of the request, and releases it when an attempt fails and at the end.
    * The request ends once, by `end`: when its response is complete, when it fails, when its deadline passes, and when
      its client disconnects.
    * After an attempt without a response, `exchange.attempts` decides: another attempt follows, or the request fails.

    Times are in seconds on one monotonic clock.
    """

    __slots__ = (
        "_attempt_began",
        "_failed",
        "_queued_s",
        "_response_began",
        "_waiting_since",
        "affinity",
        "attempts",
        "began",
        "budget",
        "permit",
        "replica",
        "request",
        "router",
        "stage",
    )

    def __init__(self, request: Dispatchable, now: float, deadline: float | None = None) -> None:
        """`deadline`: when the request must have ended. None: it has no deadline, or sets it later."""
        self.request = request
        self.began = now
        self.stage = IDLE
        self.attempts = Attempts(now, deadline)
        #: The replica of the current or last attempt.
        self.replica = ReplicaId("-")
        #: What became of the affinity key, or of the routing policy's preference, in that attempt. None: there is none.
        self.affinity: Outcome | None = None
        #: The permit of the current attempt. None: there is no attempt.
        self.permit: P | None = None
        #: The router and the retry budget of the deployment. Set by `assign`.
        self.router: Router
        self.budget: RetryBudget | None = None
        # The times of the stages.
        self._queued_s = 0.0
        self._waiting_since: float | None = None
        self._attempt_began: float | None = None
        self._response_began: float | None = None
        self._failed: tuple[FailedAttempt, ...] = ()

    def assign(self, router: Router, budget: RetryBudget | None) -> None:
        """Set the deployment that serves the request. `budget`: pays for a retry; None: no retries."""
        self.router = router
        self.budget = budget
        if budget is not None:
            budget.requests.note(self.attempts.since)

    # Events

    def acquire(self, now: float, preference: Preference = NO_PREFERENCE) -> P | None:
        """Begin an attempt: acquire a permit, avoiding the replicas that have failed for this request.

        Return None if the request has to wait for a permit. Then report it by `granted`.
        """
        self.stage = STEPS[self.stage, WAITING]
        permit: P | None = self.router.try_acquire(self.attempts.avoid, preference)
        if permit is None:
            self._waiting_since = now
        else:
            self._begin_attempt(permit, now)
        return permit

    def granted(self, permit: P, now: float) -> None:
        """Take the permit for which the request has waited. The next action is to connect to its replica."""
        if self.stage is not WAITING:
            self.router.release(permit)
        self._begin_attempt(permit, now)
        self._end_wait(now)

    def _end_wait(self, now: float) -> None:
        if self._waiting_since is not None:
            self._queued_s += now - self._waiting_since
            self._waiting_since = None

    def asks_elsewhere(self, now: float) -> None:
        """Note that the request waits no longer at its router. At another one, it begins to wait now."""
        if self.stage is not WAITING:
            raise IllegalStage(self.stage, IDLE)
        self.stage = STEPS[self.stage, IDLE]
        self._end_wait(now)
        self.attempts.since = now

    def begin(self, permit: P, now: float) -> None:
        """Begin an attempt with a permit that was acquired elsewhere."""
        self.stage = STEPS[self.stage, WAITING]
        self._begin_attempt(permit, now)

    def _begin_attempt(self, permit: P, now: float) -> None:
        self.stage = STEPS[self.stage, CONNECTING]
        self._attempt_began = now
        self.permit = permit
        self.replica = permit.endpoint.id
        self.affinity = permit.affinity
        self.attempts.count += 1

    def sent(self) -> None:
        """Note that the request is sent now. From now on it may run."""
        self.stage = STEPS[self.stage, SENT]

    def response_started(self, now: float) -> None:
        """Note that the response begins. From now on, the request is not attempted again."""
        self.stage = STEPS[self.stage, RESPONDING]
        self._response_began = now

    def refused(self, word: str, now: float) -> Action | Exception:
        """End an attempt that the replica refused. `word`: the reason that it gave (`hop.Refusal`).

        Return how the next attempt begins, or the error of the request if there is none.
        """
        if self.stage is not SENT:
            raise IllegalStage(self.stage, IDLE)
        return self._attempt_ended(result_of_refusal(word), now, word)

    def lost(self, error: ReplicaGone, now: float, *, head_only: bool = False) -> Action | Exception:
        """End an attempt for which there was no connection, or whose connection was lost.

        Return how the next attempt begins, or the error of the request if there is none. `head_only`: only the head was
        sent.
        """
        if self.stage is CONNECTING:
            result = Result.UNREACHED
        elif isinstance(error, ResponseUnreadable):
            result = Result.UNREADABLE
        else:
            result = Result.UNREAD if head_only and isinstance(error, NotRead) else Result.LOST
        return self._attempt_ended(result, now, cause=error)

    def late(self) -> DeadlineExceeded:
        """Return the error of the request, because its deadline has passed."""
        deadline = self.attempts.deadline
        timeout = 0.0 if deadline is None else deadline - self.began
        return self.request.late(self.stage, timeout, self.router.name)

    def end(self) -> None:
        """End the request, and release its permit."""
        self.stage = STEPS[self.stage, DONE]
        permit, self.permit = self.permit, None
        if permit is not None:
            self.router.release(permit)

    # Results

    def stage_times(self, now: float) -> StageTimes:
        """Return how long the stages took until now, for the record of the request."""
        began, queued_s, response, attempt = self.began, self._queued_s, self._response_began, self._attempt_began
        if self._waiting_since is not None:
            queued_s += now - self._waiting_since
        return (
            queued_s,
            None if response is None else response - began,
            None if attempt is None else attempt - began,
            self._failed,
        )

    def explain(self, error: Exception) -> Exception:
        """Return the error of a request that the router has failed, or that its owner fails."""
        return self.attempts.explain(error, self.request.name)

    @property
    def may_run_twice(self) -> bool:
        return self.request.is_repeatable(self.router.policy.retry)

    def _attempt_ended(
        self, result: Result, now: float, word: str = "", cause: ReplicaGone | None = None
    ) -> Action | Exception:
        if self.stage is not SENT and self.stage is not CONNECTING:
            raise IllegalStage(self.stage, IDLE)
        permit, self.permit = self.permit, None
        assert permit is not None, "an attempt has a permit"
        request, router = self.request, self.router
        attempt = Attempt(
            self.replica,
            result,
            repeatable=self.may_run_twice,
            body_retained=request.body_retained,
            suspect=permit.endpoint.may_have_failed_with(request.request_id),
        )
        router.ended(permit, result)
        if (began := self._attempt_began) is not None:
            self._failed += (FailedAttempt(self.replica, began - self.began, now - began, result.name.lower()),)
        step = self.attempts.after(attempt, now, router.policy.max_queue_wait_s, self.budget, router.ready)
        self.stage = STEPS[self.stage, IDLE if isinstance(step, Action) else FAILED]
        return step if isinstance(step, Action) else self._error(step, word, cause)

    def _error(self, reason: Reason, word: str, cause: ReplicaGone | None) -> Exception:
        router, name = self.router, self.request.name
        if reason is Reason.DEADLINE:
            return self.late()
        if reason is Reason.QUEUE_WAIT:
            return self.explain(router.waited_too_long())
        error = failure(reason, self.replica, request=name, deployment=router.name, refusal=word)
        error.__cause__ = cause
        return self.explain(error)
