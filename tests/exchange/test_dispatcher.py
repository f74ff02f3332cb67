"""The dispatcher without I/O: each event in each stage, the errors, and random histories of one request."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app_toolkit.config.models import Policy
from app_toolkit.errors import (
    BadResponse,
    DeadlineExceeded,
    NoReplica,
    NotRead,
    QueueTimeout,
    ReplicaGone,
    ReplicaLost,
    ResponseUnreadable,
    TooManyWebSockets,
)
from app_toolkit.exchange.attempts import FLOOR_PER_S, Action, Result, RetryBudget
from app_toolkit.exchange.call_request import CallRequest
from app_toolkit.exchange.dispatcher import TRANSITIONS, Dispatcher, IllegalStage, Stage
from app_toolkit.exchange.preference import Outcome
from app_toolkit.exchange.recent import WINDOW_S
from app_toolkit.interfaces import Call, Endpoint
from app_toolkit.observability.records import FailedAttempt
from app_toolkit.types import Address, ReplicaId

GONE = ReplicaGone("the connection broke")


@dataclass(eq=False)
class Permit:
    endpoint: Endpoint
    affinity: Outcome | None = None


@dataclass
class Router:
    """Grants permits at replicas in turn, and keeps those that were not released."""

    replicas: list[str] = field(default_factory=lambda: ["a", "b", "c"])
    policy: Policy = field(default_factory=lambda: Policy(max_queue_wait_s=10.0))
    name: str = "shop/web"
    full: bool = False
    held: set[Permit] = field(default_factory=set)
    results: list[Result] = field(default_factory=list)
    avoided: list[Collection[ReplicaId]] = field(default_factory=list)

    @property
    def ready(self) -> Collection[ReplicaId]:
        return [ReplicaId(name) for name in self.replicas]

    def permit(self, avoid: Collection[ReplicaId] = ()) -> Permit:
        replica = next((name for name in self.replicas if name not in avoid), self.replicas[0])
        permit = Permit(Endpoint(ReplicaId(replica), Address("local:"), 1))
        self.held.add(permit)
        return permit

    def try_acquire(self, avoid: Collection[ReplicaId], *others: object) -> Permit | None:
        self.avoided.append(avoid)
        return None if self.full else self.permit(avoid)

    def release(self, permit: Permit) -> None:
        self.held.remove(permit)

    def ended(self, permit: Permit, result: Result) -> None:
        self.held.remove(permit)
        self.results.append(result)

    def waited_too_long(self) -> Exception:
        return QueueTimeout("the queue is too slow")


def request(idempotent: bool = False, **options: Any) -> CallRequest:
    return CallRequest(Call("this GET", (), {}, **options), "id-1", lambda method: idempotent)


def dispatcher(
    stage: Stage = Stage.IDLE, router: Router | None = None, deadline: float | None = None, **options: Any
) -> Dispatcher[Permit]:
    """Return a dispatcher that has gone the shortest way to this stage. `options`: those of its request."""
    new: Dispatcher[Permit] = Dispatcher(request(**options), 0.0, deadline)
    new.assign(router or Router(), RetryBudget())
    if stage is Stage.WAITING:
        new.router.full = True  # type: ignore[attr-defined]
        assert new.acquire(0.0) is None
    if stage in (Stage.CONNECTING, Stage.SENT, Stage.RESPONDING, Stage.FAILED):
        assert new.acquire(0.0) is new.permit is not None
    if stage in (Stage.SENT, Stage.RESPONDING, Stage.FAILED):
        new.sent()
    if stage is Stage.RESPONDING:
        new.response_started(0.0)
    if stage is Stage.FAILED:
        assert isinstance(new.refused("secret", 0.0), ReplicaLost)
    if stage is Stage.DONE:
        new.end()
    assert new.stage is stage
    return new


# The stages

EVENTS: dict[str, tuple[Callable[[Dispatcher[Permit]], object], dict[Stage, Stage]]] = {
    "acquire": (lambda each: each.acquire(1.0), {Stage.IDLE: Stage.CONNECTING}),
    "asks_elsewhere": (lambda each: each.asks_elsewhere(1.0), {Stage.WAITING: Stage.IDLE}),
    "granted": (lambda each: each.granted(each.router.permit(), 1.0), {Stage.WAITING: Stage.CONNECTING}),  # type: ignore[attr-defined]
    "sent": (lambda each: each.sent(), {Stage.CONNECTING: Stage.SENT}),
    "response_started": (lambda each: each.response_started(1.0), {Stage.SENT: Stage.RESPONDING}),
    "unreached": (lambda each: each.lost(GONE, 1.0), {Stage.CONNECTING: Stage.IDLE, Stage.SENT: Stage.FAILED}),
    "busy": (lambda each: each.refused("busy", 1.0), {Stage.SENT: Stage.IDLE}),
    "unknown": (lambda each: each.refused("secret", 1.0), {Stage.SENT: Stage.FAILED}),
    "end": (lambda each: each.end(), {stage: Stage.DONE for stage in Stage if stage is not Stage.DONE}),
}


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_has_one_effect_in_each_stage_or_is_refused(event: str, stage: Stage) -> None:
    happen, stages = EVENTS[event]
    router = Router()
    each = dispatcher(stage, router)
    if stage in stages:
        happen(each)
        assert each.stage is stages[stage]
    else:
        with pytest.raises(IllegalStage, match=f"a request that is {stage.name} cannot become "):
            happen(each)
        assert each.stage is stage
    holds = each.stage in (Stage.CONNECTING, Stage.SENT, Stage.RESPONDING)
    assert router.held == ({each.permit} if holds else set())


def reachable(begin: Stage) -> set[Stage]:
    found, left = {begin}, [begin]
    while left:
        for stage in TRANSITIONS[left.pop()]:
            if stage not in found:
                found.add(stage)
                left.append(stage)
    return found


def test_every_stage_is_listed_and_comes_after_idle() -> None:
    assert set(TRANSITIONS) == reachable(Stage.IDLE) == set(Stage)


@pytest.mark.parametrize("stage", [Stage.RESPONDING, Stage.FAILED])
def test_a_response_that_has_begun_and_a_failure_are_final(stage: Stage) -> None:
    assert reachable(stage) == {stage, Stage.DONE}


# Decisions


@pytest.mark.parametrize(
    ("word", "action", "avoided"),
    [
        ("busy", Action.WAIT, ()),
        ("moved", Action.WAIT, ()),
        ("draining", Action.REASSIGN, ("a",)),
        ("websockets", Action.REASSIGN, ("a",)),
        ("slow_bodies", Action.REASSIGN, ("a",)),
    ],
)
def test_a_refused_request_is_sent_again_whether_or_not_it_may_run_twice(
    word: str, action: Action, avoided: tuple[str, ...]
) -> None:
    router = Router()
    each = dispatcher(Stage.SENT, router, idempotent=False)
    assert each.refused(word, 1.0) is action
    each.acquire(1.0)
    assert router.avoided == [(), avoided]


@pytest.mark.parametrize(
    ("error", "head_only", "result"),
    [
        (GONE, False, Result.LOST),
        (GONE, True, Result.LOST),
        (NotRead("it ended"), False, Result.LOST),
        (NotRead("it ended"), True, Result.UNREAD),
        (ResponseUnreadable("no HTTP"), True, Result.UNREADABLE),
    ],
)
def test_the_result_of_a_lost_connection_depends_on_what_was_sent(
    error: ReplicaGone, head_only: bool, result: Result
) -> None:
    router = Router()
    dispatcher(Stage.SENT, router).lost(error, 1.0, head_only=head_only)
    dispatcher(Stage.CONNECTING, router).lost(error, 1.0, head_only=head_only)
    assert router.results == [result, Result.UNREACHED]


def lose(each: Dispatcher[Permit]) -> Action | Exception:
    return each.lost(GONE, 1.0)


@pytest.mark.parametrize(
    ("event", "options", "error", "message"),
    [
        (lose, {"idempotent": False}, ReplicaLost, "replica a was lost; the outcome of this GET is unknown"),
        (
            lose,
            {"deadline": 1.0, "retry": "all"},
            DeadlineExceeded,
            "this GET of shop/web did not respond before",
        ),
        (lambda each: each.lost(ResponseUnreadable("!"), 1.0), {}, BadResponse, "the response of the app in replica a"),
        (
            lambda each: each.refused("busy", 1.0),
            {"deadline": 0.5},
            DeadlineExceeded,
            "this GET of shop/web did not respond before",
        ),
        (lambda each: each.refused("busy", 10.0), {}, QueueTimeout, "the queue is too slow"),
        (lambda each: each.refused("slow_bodies", 10.0), {}, QueueTimeout, "the body of this GET arrives slowly"),
        (
            lambda each: each.refused("secret", 1.0),
            {},
            ReplicaLost,
            r"replica a rejected the caller's credentials or protocol version \(secret\); this GET did not run",
        ),
    ],
)
def test_a_request_that_is_not_attempted_again_has_an_error_that_names_the_cause(
    event: Callable[[Dispatcher[Permit]], Action | Exception],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    found = event(dispatcher(Stage.SENT, **options))
    with pytest.raises(error, match=message):
        raise found if isinstance(found, Exception) else AssertionError(found)


def test_a_websocket_that_every_replica_refuses_fails() -> None:
    each = dispatcher(router=Router(replicas=["a", "b"]))
    found: list[Action | Exception] = []
    while not found or isinstance(found[-1], Action):
        each.acquire(1.0)
        each.sent()
        found.append(each.refused("websockets", 1.0))
    assert isinstance(found.pop(), TooManyWebSockets)
    assert found == [Action.REASSIGN, Action.REASSIGN]


def test_after_a_loss_no_error_says_that_the_request_did_not_run() -> None:
    each = dispatcher(Stage.SENT, retry="all")
    assert lose(each) is Action.RETRY
    assert str(each.explain(NoReplica("the router is closed"))) == (
        "a replica was lost with this GET, and then the router is closed; the outcome is unknown"
    )


# The times of the stages


def test_the_stages_of_a_request_that_waits_and_is_retried_add_up() -> None:
    router = Router(full=True)
    each = dispatcher(router=router, retry="all")
    each.acquire(1.0)
    each.granted(router.permit(), 3.0)
    each.sent()
    assert each.lost(GONE, 4.5) is Action.RETRY
    each.acquire(4.5)
    assert each.stage_times(5.0) == (2.5, None, 3.0, (FailedAttempt("a", 3.0, 1.5, "lost"),)), "it waits again"
    each.granted(router.permit(("a",)), 6.0)
    each.sent()
    each.response_started(7.0)
    each.end()
    assert each.stage_times(9.0) == (3.5, 7.0, 6.0, (FailedAttempt("a", 3.0, 1.5, "lost"),))


def test_a_request_that_finds_a_free_replica_does_not_wait() -> None:
    each = dispatcher(Stage.RESPONDING)
    assert each.stage_times(9.0) == (0.0, 0.0, 0.0, ())


def test_a_request_that_leaves_the_queue_has_waited_and_has_no_attempt() -> None:
    each = dispatcher(Stage.WAITING)
    each.end()
    assert each.stage_times(9.0) == (9.0, None, None, ())


def test_a_suspect_is_not_retried() -> None:
    each = dispatcher(Stage.SENT, retry="all")
    assert each.permit is not None
    each.permit.endpoint = Endpoint(
        ReplicaId("a"), Address("local:"), 1, unresponsive=True, running=frozenset({"id-1"})
    )
    assert "stopped answering while this GET ran in it" in str(lose(each))


# Random histories


class Histories(RuleBasedStateMachine):
    """One request after the other, with one router and one retry budget."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.router = Router()
        self.budget = RetryBudget()
        self.done = True

    @precondition(lambda self: self.done)
    @rule(
        idempotent=st.booleans(),
        retry=st.sampled_from((None, "all", "none")),
        timeout=st.sampled_from((None, 2.0)),
        spent=st.booleans(),
    )
    def begin(self, idempotent: bool, retry: Any, timeout: float | None, spent: bool) -> None:
        if spent:
            for number in range(FLOOR_PER_S * WINDOW_S):
                self.budget.spend(ReplicaId(f"other-{number}"), self.now)
        deadline = None if timeout is None else self.now + timeout
        self.each: Dispatcher[Permit] = Dispatcher(request(idempotent=idempotent, retry=retry), self.now, deadline)
        self.each.assign(self.router, self.budget)
        self.stages = [Stage.IDLE]
        self.may_have_run = False
        self.done = False

    @precondition(lambda self: not self.done)
    @rule(event=st.sampled_from([name for name in EVENTS if name != "granted"]), full=st.booleans())
    def happen(self, event: str, full: bool) -> None:
        """Report an event, whether or not it is expected in this stage."""
        self.router.full = full
        before, spent = self.each.stage, self.budget.spent(self.now)
        try:
            found = EVENTS[event][0](self.each)
        except IllegalStage:
            assert self.each.stage is before, "an event that is refused changes nothing"
            return
        if self.each.stage is Stage.SENT and self.may_have_run:
            assert self.each.may_run_twice, "a request runs twice only if it may"
        if event == "unreached" and before is Stage.SENT:
            self.may_have_run = True
            assert (found is Action.RETRY) is (self.each.stage is Stage.IDLE)
            if found is Action.RETRY:
                assert self.budget.spent(self.now) - spent <= 1
                assert self.budget.spent(self.now) <= self.budget.limit(self.now)
        self.stages.append(self.each.stage)
        self.done = self.each.stage is Stage.DONE

    @precondition(lambda self: not self.done and self.each.stage is Stage.WAITING)
    @rule()
    def grant(self) -> None:
        self.each.granted(self.router.permit(self.each.attempts.avoid), self.now)
        self.stages.append(self.each.stage)

    @precondition(lambda self: not self.done)
    @rule()
    def grant_unasked(self) -> None:
        if self.each.stage is not Stage.WAITING:
            with pytest.raises(IllegalStage):
                self.each.granted(self.router.permit(), self.now)

    @rule(seconds=st.sampled_from((0.1, 1.5, 20.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def holds_a_permit_only_during_an_attempt(self) -> None:
        if self.done:
            assert not self.router.held
        else:
            attempt = self.each.stage in (Stage.CONNECTING, Stage.SENT, Stage.RESPONDING)
            assert self.router.held == ({self.each.permit} if attempt else set())

    @invariant()
    def ends_once(self) -> None:
        if hasattr(self, "stages"):
            assert Stage.DONE not in self.stages[:-1]
            assert Stage.IDLE not in [after for before, after in pairwise(self.stages) if before is Stage.RESPONDING]

    def teardown(self) -> None:
        if not self.done:
            self.each.end()
        assert not self.router.held


TestHistories = Histories.TestCase
