"""One replica's life, row by row."""

from dataclasses import replace

import pytest

from app_toolkit.control.replica_state import (
    FOUND_AS,
    TRANSITIONS,
    Drained,
    DrainSent,
    Exited,
    Found,
    KillSent,
    Phase,
    Placed,
    ProbeFailed,
    ProbePassed,
    ProbeSent,
    Reconfigured,
    ReconfigureFailed,
    ReconfigureSent,
    ReplicaRecord,
    RetireBegun,
    Started,
    StopSent,
    Unplaceable,
    Unrouted,
    apply,
)
from app_toolkit.errors import IllegalTransition
from app_toolkit.interfaces import Location, ReloadableOptions
from app_toolkit.types import Address, NodeId, ReplicaId
from tests.keys import key

R = ReplicaId("shop.chat-1-1")
OLD, NEW = ReloadableOptions(10), ReloadableOptions(20)
HERE = Location(Address("unix:/r"), NodeId("n"))


def record(phase=Phase.STARTING, **facts):
    return replace(ReplicaRecord(R, key("shop/chat"), "v1", phase, since=0.0), **facts)


def test_one_that_does_not_answer_is_unresponsive_until_it_does():
    life = record(Phase.RUNNING)
    assert not life.unresponsive
    life = apply(apply(life, ProbeSent(R), 1.0), ProbeFailed(R, "blocked", running=("a",)), 2.0)
    assert (life.unresponsive, life.running) == (True, ("a",))
    overdue = apply(apply(life, ProbeSent(R), 3.0), ProbeSent(R), 9.0)
    assert (overdue.unresponsive, overdue.running) == (True, None), "nobody knows what runs in it by now"
    said = apply(life, ProbeFailed(R, "no database", answered=True), 3.0)
    assert not said.unresponsive
    assert not apply(apply(life, ProbeSent(R), 3.0), ProbePassed(R), 4.0).unresponsive


def test_a_life_without_incidents():
    life = record()
    phases = []
    for now, event in enumerate(
        [
            Placed(R),
            Started(R, HERE),
            ProbeSent(R),
            ProbePassed(R),
            RetireBegun(R),
            Unrouted(R),
            DrainSent(R),
            Drained(R),
            StopSent(R),
            Exited(R),
        ]
    ):
        life = apply(life, event, float(now))
        phases.append(life.phase.value)
    assert phases == ["starting", *["running"] * 3, *["draining"] * 3, *["stopping"] * 2, "stopped"]
    assert (life.location, life.unrouted, life.drain_sent, life.stop_sent) == (HERE, True, 6.0, 8.0)


def test_no_event_follows_an_exit_in_any_phase():
    for phase in Phase:
        if phase is not Phase.STOPPED:
            assert TRANSITIONS[phase, Exited] is Phase.STOPPED
    assert not [phase for phase, _ in TRANSITIONS if phase is Phase.STOPPED]


def test_every_phase_but_the_last_can_be_killed():
    for phase in Phase:
        if phase is not Phase.STOPPED:
            assert TRANSITIONS[phase, KillSent] is Phase.STOPPING


@pytest.mark.parametrize(
    ("phase", "event"),
    [
        (Phase.RUNNING, Drained(R)),
        (Phase.RUNNING, Unrouted(R)),
        (Phase.STARTING, ProbePassed(R)),
        (Phase.STARTING, RetireBegun(R)),
        (Phase.RECOVERING, RetireBegun(R)),
        (Phase.RECOVERING, StopSent(R)),
        (Phase.RECOVERING, Found(R, key("shop/chat"), "v1", "dancing")),
        (Phase.STOPPED, Started(R, HERE)),
    ],
)
def test_an_impossible_event_raises_and_names_both(phase, event):
    with pytest.raises(IllegalTransition, match=f"is {phase.value} and cannot take {type(event).__name__}"):
        apply(record(phase), event, 1.0)


def test_a_late_event_changes_nothing():
    running = record(Phase.RUNNING, location=HERE, serving_since=1.0)
    for event in [
        Started(R, Location(Address("unix:/other"), NodeId("n"))),
        Placed(R),
        Unplaceable(R, "1 GPU", "0 GPU"),
        Found(R, key("shop/chat"), "v9", "stopping"),
    ]:
        assert apply(running, event, 9.0) == running
    stopping = record(Phase.STOPPING, location=HERE)
    assert apply(stopping, Started(R, HERE), 9.0) == stopping
    assert apply(stopping, Drained(R), 9.0) == stopping


@pytest.mark.parametrize("name", sorted(FOUND_AS))
def test_found_replica_has_the_state_that_it_reports_and_new_deadlines(name):
    found = apply(record(Phase.RECOVERING, template_hash=""), Found(R, key("shop/chat"), "v7", name, HERE, OLD), 50.0)
    assert (found.phase.value, found.template_hash, found.location, found.reloadable) == (name, "v7", HERE, OLD)
    assert (found.since, found.probed_at) == (50.0, 50.0)
    assert found.unrouted == (name == "draining")


@pytest.mark.parametrize("name", sorted(FOUND_AS))
def test_a_replica_that_is_found_running_has_run_as_long_as_its_process_says(name):
    event = Found(R, key("shop/chat"), "v7", name, HERE, OLD, running_s=3_600.0)
    found = apply(record(Phase.RECOVERING, template_hash=""), event, 50.0)
    running = name == "running"
    assert found.since == (-3_550.0 if running else 50.0)
    assert found.serving_since == (-3_550.0 if running else None)


def test_a_probe_that_was_never_answered_counts_when_the_next_is_sent():
    running = apply(record(Phase.RUNNING), ProbeSent(R), 1.0)
    assert running.failed_probes == 0
    running = apply(running, ProbeSent(R), 8.0)
    assert (running.failed_probes, running.probing_since) == (1, 8.0)
    running = apply(running, ProbeFailed(R, "no answer"), 9.0)
    assert (running.failed_probes, running.probing_since, running.last_failure) == (2, None, "no answer")
    assert apply(running, ProbePassed(R), 10.0).failed_probes == 0


def test_options_are_taken_up_one_try_after_the_other():
    running = apply(record(Phase.RUNNING, reloadable=OLD), ReconfigureSent(R, NEW), 1.0)
    assert (running.reloadable, running.reconfiguration.sent) == (None, 1.0)
    running = apply(running, ReconfigureSent(R, NEW), 9.0)
    assert (running.reconfiguration.failures, running.reconfiguration.why) == (
        1,
        "the previous attempt was never answered",
    )
    running = apply(running, ReconfigureFailed(R, NEW, "no such model"), 10.0)
    tried = running.reconfiguration
    assert (tried.failures, tried.sent, tried.failed_at, tried.why) == (2, None, 10.0, "no such model")
    running = apply(running, ReconfigureSent(R, OLD), 11.0)
    assert (running.reloadable, running.reconfiguration.failures) == (None, 0), "what a failure has left, nobody knows"
    for late in (Reconfigured(R, NEW), ReconfigureFailed(R, NEW, "no such model")):
        assert apply(running, late, 12.0) == running
    running = apply(running, Reconfigured(R, OLD), 13.0)
    assert (running.reloadable, running.reconfiguration) == (OLD, None)
    assert apply(running, Reconfigured(R, OLD), 14.0) == running


def test_the_start_up_clock_begins_when_there_is_room():
    waiting = apply(record(), Unplaceable(R, "1 GPU", "0 GPU"), 5.0)
    assert waiting.unplaceable
    placed = apply(waiting, Placed(R), 70.0)
    assert (placed.unplaceable, placed.since) == (None, 70.0)
