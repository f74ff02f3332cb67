"""The next step after an attempt, over random histories; and the retry budget, in random worlds."""

from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.errors import DeadlineExceeded, NoReplica, QueueFull, QueueTimeout, ReplicaLost, TooManyWebSockets
from app_toolkit.exchange.attempts import (
    DEATHS,
    ERRORS,
    FLOOR_PER_S,
    LOSSES,
    NO_OTHER,
    ONE_DEATH_S,
    SHARE,
    Action,
    Attempt,
    Attempts,
    Reason,
    Result,
    RetryBudget,
    failure,
    is_repeatable,
    last_other,
    next_step,
    result_of_refusal,
)
from app_toolkit.exchange.recent import WINDOW_S
from app_toolkit.types import ReplicaId

NOTHING_RAN = frozenset(
    {Result.BUSY, Result.MOVED, Result.DRAINING, Result.CROWDED, Result.UNREACHED, Result.UNREAD, Result.SLOW}
)
LOST = frozenset(
    {Reason.NOT_REPEATABLE, Reason.SUSPECT, Reason.LOST_BEFORE, Reason.BODY_DROPPED, Reason.BUDGET, Reason.DEADLINE}
)
"""Why a request fails that was lost."""


@dataclass
class Step:
    """One attempt with what was known before it, and what came of it."""

    attempt: Attempt
    now: float
    waiting_since: float
    avoided: tuple[ReplicaId, ...]
    lost_by: frozenset[ReplicaId]
    losses: int
    affordable: bool
    paid: int
    next: Action | Reason


@dataclass
class History:
    """One request from its start until it fails, or until the story ends."""

    began: float
    deadline: float | None
    max_queue_wait_s: float
    steps: list[Step]

    def sends(self) -> list[tuple[Step, Attempt]]:
        """Each step after which the request was sent again, and that attempt."""
        return [(step, later.attempt) for step, later in pairwise(self.steps)]


@st.composite
def histories(draw: Any) -> History:
    """The request is played to its end against the decisions; the record is kept apart from `Attempts`."""
    began = draw(st.floats(0, 1_000))
    deadline = draw(st.none() | st.floats(0.01, 20).map(lambda seconds: began + seconds))
    max_queue_wait_s = draw(st.sampled_from((0.05, 1.0, 30.0)))
    repeatable = draw(st.booleans())
    replicas = [ReplicaId(f"r{number}") for number in range(draw(st.integers(1, 4)))]
    budget = RetryBudget()
    for number in range(draw(st.sampled_from((0, 0, FLOOR_PER_S * WINDOW_S - 1, FLOOR_PER_S * WINDOW_S)))):
        budget.spend(ReplicaId(f"other-{number}"), began)
    attempts = Attempts(began, deadline)
    history = History(began, deadline, max_queue_wait_s, [])
    now, since, retained = began, began, True
    lost_by: frozenset[ReplicaId] = frozenset()
    losses = 0
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from((0.0, 0.001, 0.04, 0.6, 5.0)))
        retained = retained and draw(st.sampled_from((True, True, True, False)))
        attempt = Attempt(
            replica=draw(st.sampled_from(replicas)),
            result=draw(st.sampled_from(Result)),
            repeatable=repeatable,
            body_retained=retained,
            suspect=draw(st.sampled_from((False, False, False, True))),
        )
        if attempt.result is Result.LOST:
            losses += 1
            lost_by |= {attempt.replica}
        affordable, paid = budget.affords(attempt.replica, now), budget.spent(now)
        avoided = attempts.avoid
        found = attempts.after(attempt, now, max_queue_wait_s, budget)
        paid = budget.spent(now) - paid
        history.steps.append(Step(attempt, now, since, avoided, lost_by, losses, affordable, paid, found))
        if isinstance(found, Reason):
            break
        if found is Action.RETRY:
            since = now
        assert attempts.since == since
    return history


# The decision


@given(histories())
def test_a_request_that_may_have_run_runs_again_only_if_it_is_repeatable(history: History) -> None:
    for step, _ in history.sends():
        if step.attempt.result not in NOTHING_RAN:
            assert step.attempt.result is Result.LOST
            assert step.attempt.repeatable
            assert not step.attempt.suspect
            assert step.next is Action.RETRY


@given(st.sets(st.sampled_from("abcd")), st.lists(st.sampled_from("abcd"), unique=True))
def test_the_last_other_is_the_only_ready_replica_besides_those_that_were_ready_and_lost_the_request(
    lost: set[str], ready: list[str]
) -> None:
    spared = last_other([ReplicaId(id) for id in lost], [ReplicaId(id) for id in ready])
    others = set(ready) - lost
    assert (spared is not None) == (len(others) == 1 and bool(lost & set(ready)))
    assert spared is None or others == {spared}


@given(st.lists(st.sampled_from([Result.LOST, Result.UNREACHED, Result.DRAINING]), min_size=1, max_size=5))
def test_a_request_that_may_have_ended_one_of_two_replicas_never_goes_to_the_other(results: list[Result]) -> None:
    first, other = ReplicaId("first"), ReplicaId("other")
    attempts, budget = Attempts(0.0), RetryBudget()
    for result in (Result.LOST, *results):
        attempts.after(Attempt(first, result, repeatable=True), 0.0, 30.0, budget, ready=[first, other])
        assert {other, NO_OTHER} <= set(attempts.avoid)


@pytest.mark.parametrize("ready", [["first"], ["other"], ["first", "second", "third"], []])
def test_a_lost_request_goes_to_any_replica_if_that_is_not_the_last_one_of_several(ready: list[str]) -> None:
    first = ReplicaId("first")
    attempts = Attempts(0.0)
    lost = Attempt(first, Result.LOST, repeatable=True)
    assert attempts.after(lost, 0.0, 30.0, RetryBudget(), [ReplicaId(id) for id in ready]) is Action.RETRY
    assert attempts.avoid == (first,)


@given(histories())
def test_only_a_retry_costs_budget_and_never_more_than_one_death(history: History) -> None:
    for step in history.steps:
        if step.next is Action.RETRY:
            assert step.attempt.result is Result.LOST
            assert step.affordable
            assert step.paid in (0, 1)
        else:
            assert step.paid == 0


@given(histories())
def test_retries_are_bounded_by_deaths_and_losses(history: History) -> None:
    retries = [step for step in history.steps if step.next is Action.RETRY]
    assert len(retries) < LOSSES
    assert all(len(step.lost_by) < DEATHS for step in retries)


@given(histories())
def test_nothing_is_sent_after_the_deadline_or_the_longest_wait(history: History) -> None:
    for step, _ in history.sends():
        assert history.deadline is None or step.now < history.deadline
        if step.next is not Action.RETRY:
            assert step.now - step.waiting_since < history.max_queue_wait_s


@given(histories())
def test_a_body_that_is_no_longer_retained_is_never_sent_again(history: History) -> None:
    for step, _ in history.sends():
        assert step.attempt.body_retained


@given(histories())
def test_a_request_goes_on_unless_something_forbids_it(history: History) -> None:
    for step in history.steps:
        attempt = step.attempt
        late = history.deadline is not None and step.now >= history.deadline
        waited = step.now - step.waiting_since >= history.max_queue_wait_s
        spent = len(step.lost_by) >= DEATHS or step.losses >= LOSSES
        if late or not attempt.body_retained:
            assert isinstance(step.next, Reason)
        elif attempt.result is Result.LOST and attempt.repeatable and not (attempt.suspect or spent):
            assert step.next is (Action.RETRY if step.affordable else Reason.BUDGET)
        elif attempt.result in {Result.BUSY, Result.MOVED} and not waited:
            assert step.next is Action.WAIT
        elif attempt.result is Result.SLOW and not waited:
            assert step.next in (Action.REASSIGN, Action.DELAY)
        elif attempt.result in NOTHING_RAN - {Result.BUSY, Result.MOVED, Result.CROWDED} and not waited:
            assert step.next is Action.REASSIGN


@given(histories())
def test_the_reason_names_the_cause(history: History) -> None:
    last = history.steps[-1]
    attempt = last.attempt
    late = history.deadline is not None and last.now >= history.deadline
    if isinstance(last.next, Action):
        return
    if attempt.result is Result.LOST:
        assert last.next in LOST
    holds = {
        Reason.DEADLINE: late,
        Reason.QUEUE_WAIT: last.now - last.waiting_since >= history.max_queue_wait_s,
        Reason.SLOW_WAIT: attempt.result is Result.SLOW,
        Reason.REFUSED: attempt.result is Result.REFUSED,
        Reason.BODY_TAKEN: attempt.result in NOTHING_RAN and not attempt.body_retained,
        Reason.CROWDED: attempt.result is Result.CROWDED,
        Reason.CROWDED_OR_GONE: attempt.result is Result.CROWDED,
        Reason.UNREADABLE: attempt.result is Result.UNREADABLE,
        Reason.NOT_REPEATABLE: not attempt.repeatable,
        Reason.SUSPECT: attempt.suspect,
        Reason.LOST_BEFORE: last.losses > 1,
        Reason.BODY_DROPPED: not attempt.body_retained,
        Reason.BUDGET: not last.affordable,
    }
    assert holds.keys() == set(Reason)
    assert holds[last.next]


@given(histories())
def test_replicas_that_did_not_take_it_are_avoided_and_busy_ones_are_not(history: History) -> None:
    avoided: tuple[ReplicaId, ...] = ()
    slow: set[ReplicaId] = set()
    for step in history.steps:
        assert step.avoided == avoided
        if step.attempt.result is Result.SLOW:
            slow.add(step.attempt.replica)
        if step.next in (Action.REASSIGN, Action.RETRY) and step.attempt.replica not in avoided:
            avoided = (*avoided, step.attempt.replica)
        if step.next is Action.DELAY:
            avoided = tuple(replica for replica in avoided if replica not in slow)
            slow.clear()


def test_the_histories_see_every_action_and_every_reason() -> None:
    """Else the tests above would hold of nothing."""
    missing: set[Action | Reason] = {*Action, *Reason}
    rng = Random(0)
    for _ in range(3_000):
        attempts = Attempts(0.0, rng.choice((None, 2.0)))
        for at in range(4):
            attempt = Attempt(
                ReplicaId(rng.choice("abc")),
                rng.choice(list(Result)),
                repeatable=rng.random() < 0.8,
                body_retained=rng.random() < 0.9,
                suspect=rng.random() < 0.1,
            )
            found = attempts.after(attempt, float(at), 2.5, RetryBudget() if rng.random() < 0.8 else None)
            missing.discard(found)
            if isinstance(found, Reason):
                break
    assert not missing


def test_the_decision_changes_nothing() -> None:
    attempts = Attempts(0.0)
    lost = Attempt(ReplicaId("a"), Result.LOST, repeatable=True)
    for _ in range(10):
        assert next_step(attempts, lost, 1.0, 5.0, affordable=True) is Action.RETRY
    assert (attempts.avoid, attempts.losses, attempts.since) == ((), 0, 0.0)


@pytest.mark.parametrize(
    ("others", "found"),
    [((), Reason.CROWDED), ((Result.DRAINING,), Reason.CROWDED_OR_GONE), ((Result.UNREACHED,), Reason.CROWDED_OR_GONE)],
)
def test_a_websocket_fails_once_every_replica_has_refused_it(others: tuple[Result, ...], found: Reason) -> None:
    attempts = Attempts(0.0)
    crowded = Attempt(ReplicaId("a"), Result.CROWDED)
    for number, result in enumerate(others):
        assert attempts.after(Attempt(ReplicaId(f"b{number}"), result), 0.0, 5.0) is Action.REASSIGN
    assert attempts.after(crowded, 0.1, 5.0) is Action.REASSIGN
    assert attempts.after(crowded, 0.2, 5.0) is found


def test_a_slow_body_asks_every_replica_before_it_is_delayed() -> None:
    attempts = Attempts(0.0)
    first, second = (Attempt(ReplicaId(name), Result.SLOW) for name in "ab")
    for began in (0.0, 1.0):
        assert attempts.after(first, began, 5.0) is Action.REASSIGN
        assert attempts.after(second, began, 5.0) is Action.REASSIGN
        assert attempts.avoid == ("a", "b")
        assert attempts.after(first, began, 5.0) is Action.DELAY
        assert attempts.avoid == ()
    assert attempts.after(first, 5.0, 5.0) is Reason.SLOW_WAIT


@pytest.mark.parametrize(
    ("word", "result"),
    [
        ("busy", Result.BUSY),
        ("draining", Result.DRAINING),
        ("websockets", Result.CROWDED),
        ("slow_bodies", Result.SLOW),
        ("secret", Result.REFUSED),
        ("", Result.REFUSED),
    ],
)
def test_the_words_of_replicas(word: str, result: Result) -> None:
    assert result_of_refusal(word) is result


@pytest.mark.parametrize(
    ("policy", "idempotent", "found"),
    [("all", False, True), ("idempotent", False, False), ("idempotent", True, True), ("none", True, False)],
)
def test_retry_policy_decides_if_a_call_is_repeatable(policy: Any, idempotent: bool, found: bool) -> None:
    assert is_repeatable(policy, idempotent) is found


# Errors


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_an_error_of_its_kind_without_gaps(reason: Reason) -> None:
    error = failure(reason, ReplicaId("shop-1"), request="this POST", deployment="shop/web")
    assert type(error) is ERRORS.get(reason, ReplicaLost)
    assert "{" not in str(error)


def test_the_error_of_a_lost_call_names_the_replica_and_the_method() -> None:
    error = failure(Reason.NOT_REPEATABLE, ReplicaId("shop-1"), request="predict", deployment="m")
    assert str(error) == "replica shop-1 was lost; the outcome of predict is unknown"


@pytest.mark.parametrize("error", [QueueTimeout("no room"), QueueFull("no room"), NoReplica("no room")])
def test_after_a_loss_no_error_says_that_nothing_ran(error: Exception) -> None:
    attempts = Attempts(0.0)
    assert attempts.explain(error, "this PUT") is error
    attempts.after(Attempt(ReplicaId("a"), Result.LOST, repeatable=True), 1.0, 5.0, RetryBudget())
    explained = attempts.explain(error, "this PUT")
    assert isinstance(explained, ReplicaLost)
    assert str(explained) == "a replica was lost with this PUT, and then no room; the outcome is unknown"


@pytest.mark.parametrize("error", [DeadlineExceeded("late"), TooManyWebSockets("full")])
def test_after_a_loss_other_errors_stay_as_they_are(error: Exception) -> None:
    attempts = Attempts(0.0)
    attempts.after(Attempt(ReplicaId("a"), Result.LOST, repeatable=True), 1.0, 5.0, RetryBudget())
    assert attempts.explain(error, "this PUT") is error


# The budget


def take(budget: RetryBudget, replica: str, now: float) -> bool:
    """Retry a request that this replica has lost, if the budget affords it."""
    affordable = budget.affords(ReplicaId(replica), now)
    if affordable:
        budget.spend(ReplicaId(replica), now)
    return affordable


class World:
    """Requests come at some rate, and replicas die with some of them. Everything that happens is kept."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = self.rng.uniform(0, 100_000)
        self.budget = RetryBudget()
        self.asked: list[float] = []
        self.paid: list[float] = []
        self.granted = self.denied = 0
        self.last_death: dict[str, float] = {}

    def run(self, steps: int) -> None:
        rng = self.rng
        per_s = rng.choice((2, 50, 1_000, 5_000))
        loss = rng.choice((0.0, 0.01, 0.3, 1.0))
        replicas = [f"r{number}" for number in range(rng.choice((1, 3, 500)))]
        for _ in range(steps):
            self.now += rng.expovariate(per_s)
            if rng.random() < 0.001:
                self.now += rng.uniform(0, 30)
            self.asked.append(self.now)
            self.budget.requests.note(self.now)
            if rng.random() < loss:
                self.lose(rng.choice(replicas))

    def lose(self, replica: str) -> None:
        paid = self.last_death.get(replica)
        free = paid is not None and self.now - paid < ONE_DEATH_S
        before = len(self.lately(self.paid))
        limit = max(SHARE * len(self.lately(self.asked)), FLOOR_PER_S * WINDOW_S)
        granted = take(self.budget, replica, self.now)
        assert granted is (free or before < limit)
        if not granted:
            self.denied += 1
            return
        self.granted += 1
        if not free:
            self.last_death[replica] = self.now
            self.paid.append(self.now)

    def lately(self, times: list[float]) -> list[float]:
        return [at for at in times[-20_000:] if int(at) > int(self.now) - WINDOW_S]


@pytest.mark.parametrize("seed", range(8))
def test_in_a_random_world_it_pays_fordeaths_and_never_for_more_than_it_has(seed: int) -> None:
    world = World(seed)
    world.run(steps=1_000)
    bound = FLOOR_PER_S * WINDOW_S + SHARE * len(world.asked)
    for start in world.paid:
        assert sum(start <= at < start + WINDOW_S - 1 for at in world.paid) <= bound


def test_thedeaths_that_are_remembered_are_those_of_a_moment() -> None:
    budget = RetryBudget()
    for number in range(5_000):
        take(budget, f"r{number}", number / FLOOR_PER_S)
    assert len(budget.deaths) <= FLOOR_PER_S * ONE_DEATH_S + 1
