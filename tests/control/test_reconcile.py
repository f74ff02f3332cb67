"""The control plane as arithmetic: no clock, no sleep; a thousand ways to be wrong at every step."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app_toolkit.config.models import RecyclingConfig
from app_toolkit.control.backoff import failed_starts, has_failed
from app_toolkit.control.reconcile import Probe, Reconfigure, ReplicaSetRecord, Start, due, forgiven, noted, plan, take
from app_toolkit.control.replica_state import (
    Exited,
    Phase,
    ProbeFailed,
    ProbePassed,
    Reconfigured,
    ReconfigureFailed,
    ReplicaRecord,
    RetireBegun,
    Started,
    Unplaceable,
)
from app_toolkit.interfaces import Location
from app_toolkit.types import Address, NodeId, ReplicaId
from tests.control.specs import proxies_spec
from tests.control.worlds import LIVE, REPLICA_SET, World, replica_set_spec

WORLDS = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def another_spec(rng):
    if rng.random() < 0.15:
        return None
    template_hash, spread = rng.choice(["v1", "v2", "v3"]), rng.random() < 0.3
    surge, unavailable = rng.choice([(1, 0), (2, 0), ("25%", 0), (0, 1), ("0%", "30%"), ("50%", "50%"), (1, 2)])
    waves = {"max_surge": surge, "max_unavailable": unavailable}
    limits = RecyclingConfig(max_requests=100, max_memory=100, max_age_s=60, jitter=0.5)
    waves["recycling"] = rng.choice([None, limits])
    waves["min_healthy_s"] = rng.choice([0.0, 4.5])
    return replica_set_spec(template_hash, rng.randint(0, 5), another_live(rng), spread=spread, **waves)


def another_live(rng):
    return replace(LIVE, user_config={"tone": rng.choice(["dry", "warm", "cold"])})


@WORLDS
@example(seed=925159)  # one that had to go was to take up options, too
@example(seed=4669)  # one that starts was not to be reached by callers on other nodes
@given(seed=st.integers(0, 2**32))
def test_in_any_world_every_step_is_safe_and_calm_brings_exactly_the_spec(seed):
    world = World(seed, replica_set_spec())
    for _ in range(120):
        if world.chance(0.05):
            world.spec = another_spec(world.rng)
        elif world.spec is not None and world.chance(0.1):
            template = replace(world.spec.template, reloadable=another_live(world.rng))
            world.spec = replace(world.spec, template=template)
        if world.chance(0.03):
            world.full = not world.full
        if world.chance(0.03):
            world.stubborn = not world.stubborn
        world.step()
    world.settle()


@settings(WORLDS, max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_proxies_of_different_options_are_never_there_at_once(seed):
    world = World(seed, replica_set_spec(target=2, apart=True, routed=False))
    for _ in range(120):
        if world.chance(0.05):
            template_hash, target = world.rng.choice(["v1", "v2"]), world.rng.choice([0, 1, 1, 3])
            world.spec = replica_set_spec(template_hash, target, apart=True, routed=False)
        world.step()
    world.settle()


@settings(WORLDS, max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_a_replacement_does_not_wait_for_the_period_of_the_health_checks(seed):
    world = World(seed, replica_set_spec("v1", 4, health_check_period_s=3_600))
    world.settle()
    world.spec = replica_set_spec("v2", 4, health_check_period_s=3_600)
    world.settle()


# By hand: the cases that people ask about.

RUN, START, RECOVER = Phase.RUNNING, Phase.STARTING, Phase.RECOVERING


def replica_set(*rows, **facts):
    """Replicas r1, r2, … by (revision, phase), each ready, probed and unrouted by nobody at time 0."""
    replicas = tuple(
        ReplicaRecord(
            ReplicaId(f"r{n}"),
            REPLICA_SET,
            template_hash,
            phase,
            since=0.0,
            serving_since=0.0,
            ready=phase is RUN,
            probed_at=0.0 if phase is RUN else None,
            reloadable=LIVE,
        )
        for n, (template_hash, phase) in enumerate(rows, 1)
    )
    return ReplicaSetRecord(REPLICA_SET, replicas, **facts)


def planned(spec, record, now=1.0):
    """Each action in short: its name and its replica; starts get what they start."""
    return [
        f"Start {action.template_hash}" if isinstance(action, Start) else f"{type(action).__name__} {action.replica}"
        for action in plan(spec, record, now, 1)
    ]


@pytest.mark.parametrize(
    ("why", "target", "have", "expected"),
    [
        ("empty", 2, [], ["Start v2", "Start v2"]),
        ("steady", 2, [("v2", RUN)] * 2, []),
        ("one that starts counts", 2, [("v2", RUN), ("v2", START)], []),
        ("the target is lower: the newest goes", 1, [("v2", RUN)] * 2, ["Retire r2"]),
        ("the target is lower: one that is not ready goes first", 1, [("v2", START), ("v2", RUN)], ["Stop r1"]),
        ("a new revision comes up first", 2, [("v1", RUN)] * 2, ["Start v2"]),
        ("the old stays while the new is not ready", 2, [("v1", RUN)] * 2 + [("v2", START)], []),
        ("one old goes for one new that runs", 2, [("v1", RUN)] * 2 + [("v2", RUN)], ["Retire r2"]),
        (
            "who drains uses up the surge",
            2,
            [("v1", RUN), ("v1", Phase.DRAINING), ("v2", RUN)],
            [],
        ),
        ("who drains holds up no replacement", 2, [("v2", RUN), ("v2", Phase.DRAINING)], ["Start v2"]),
        ("an outdated one that starts serves nobody", 1, [("v1", START)], ["Stop r1", "Start v2"]),
        ("who recovers counts, and is left alone", 1, [("", RECOVER), ("", RECOVER)], []),
        ("who recovers serves, and takes nobody's place", 1, [("", RECOVER), ("v1", RUN)], []),
        ("who recovers may be of any revision: nobody leaves for it", 1, [("", RECOVER), ("v2", RUN)], []),
        ("nor is one that starts given up for it", 2, [("", RECOVER), ("v2", RUN), ("v2", START)], []),
        ("who is one too many in any case leaves", 1, [("", RECOVER), ("v2", RUN), ("v2", RUN)], ["Retire r3"]),
        ("the target is 0", 0, [("v2", RUN), ("v2", START)], ["Retire r1", "Stop r2"]),
    ],
)
def test_a_plan(why, target, have, expected):
    assert planned(replica_set_spec("v2", target), replica_set(*have)) == expected, why


def test_the_replica_with_the_fewest_connections_leaves_first():
    record = replica_set(("v2", RUN), ("v2", RUN), ("v2", RUN))
    for number, connections in ((1, 5), (2, 1), (3, 4)):
        record = take(record, ProbePassed(ReplicaId(f"r{number}"), connections), 1.0)
    assert planned(replica_set_spec("v2", 2), record) == ["Retire r2"]
    assert planned(replica_set_spec("v2", 1), record) == ["Retire r3", "Retire r2"]


@pytest.mark.parametrize(
    ("phase", "facts", "now", "expected"),
    [
        (START, {}, 19.9, []),
        (START, {}, 20.0, ["Kill r1"]),
        (START, {"unplaceable": Unplaceable(ReplicaId("r1"), "1 GPU", "0 GPU")}, 59.9, []),
        (
            START,
            {"unplaceable": Unplaceable(ReplicaId("r1"), "1 GPU", "0 GPU")},
            60.0,
            ["Kill r1", "Start v1"],
        ),
        (RECOVER, {}, 59.9, []),
        (RECOVER, {}, 60.0, ["Kill r1", "Start v1"]),
        (RUN, {}, 2.9, []),
        (RUN, {}, 3.0, ["Probe r1"]),
        (RUN, {"probing_since": 3.0}, 6.9, []),
        (RUN, {"probing_since": 3.0}, 7.0, ["Probe r1"]),
        (RUN, {"probing_since": 3.0, "failed_probes": 2}, 7.0, ["Kill r1", "Start v1"]),
        (RUN, {"failed_probes": 3}, 0.0, ["Kill r1", "Start v1"]),
        (RUN, {"failed_probes": 3, "answered": True}, 0.0, ["Retire r1", "Start v1"]),
        (Phase.DRAINING, {}, 59.9, ["Start v1"]),
        (Phase.DRAINING, {"unrouted": True}, 0.0, ["Drain r1", "Start v1"]),
        (Phase.DRAINING, {"unrouted": True, "drain_sent": 1.0}, 7.9, ["Start v1"]),
        (Phase.DRAINING, {"unrouted": True, "drain_sent": 1.0}, 8.0, ["Kill r1", "Start v1"]),
        (Phase.STOPPING, {}, 0.0, ["Stop r1", "Start v1"]),
        (Phase.STOPPING, {"stop_sent": 1.0}, 7.9, ["Start v1"]),
        (Phase.STOPPING, {"stop_sent": 1.0}, 8.0, ["Kill r1", "Start v1"]),
        (Phase.STOPPING, {"kill_sent": 1.0}, 6.0, ["Kill r1", "Start v1"]),
    ],
)
def test_deadlines(phase, facts, now, expected):
    record = replica_set(("v1", phase))
    record = replace(record, replicas=(replace(record.replicas[0], **facts),))
    assert planned(replica_set_spec("v1", 1), record, now) == expected


@pytest.mark.parametrize(
    ("max_surge", "max_unavailable", "target", "surge", "unavailable"),
    [
        ("25%", 0, 1, 1, 0),
        ("25%", 0, 8, 2, 0),
        ("25%", 0, 9, 3, 0),
        (3, "50%", 5, 3, 2),
        (0, 1, 5, 0, 1),
        (0, "25%", 3, 0, 1),
        (0, "25%", 9, 0, 2),
        ("100%", "100%", 4, 4, 4),
    ],
)
def test_how_many_may_be_there_and_may_be_missing(max_surge, max_unavailable, target, surge, unavailable):
    spec = replica_set_spec(target=target, max_surge=max_surge, max_unavailable=max_unavailable)
    assert (spec.surge, spec.unavailable) == (surge, unavailable)


@pytest.mark.parametrize(
    ("why", "waves", "have", "expected"),
    [
        ("as many come as may be there", {"max_surge": 2}, [("v1", RUN)] * 4, ["Start v2"] * 2),
        (
            "as many go as may be missing",
            {"max_surge": 0, "max_unavailable": 2},
            [("v1", RUN)] * 4,
            ["Retire r4", "Retire r3"],
        ),
        (
            "without a surge the new wait until the old have gone",
            {"max_surge": 0, "max_unavailable": 1},
            [("v1", RUN)] * 3 + [("v1", Phase.STOPPING)],
            ["Stop r4"],
        ),
        ("and then come", {"max_surge": 0, "max_unavailable": 1}, [("v1", RUN)] * 3, ["Start v2"]),
        (
            "what died is replaced whoever leaves",
            {"max_surge": 0, "max_unavailable": 1},
            [("v1", RUN)] * 2 + [("v1", Phase.STOPPING)],
            ["Stop r3", "Start v2"],
        ),
    ],
)
def test_a_wave(why, waves, have, expected):
    assert planned(replica_set_spec("v2", 4, **waves), replica_set(*have)) == expected, why


def test_an_old_replica_leaves_once_a_new_one_has_been_ready_for_long_enough():
    spec, record = replica_set_spec("v2", 2, min_healthy_s=2.5), replica_set(("v1", RUN), ("v1", RUN), ("v2", RUN))
    assert planned(spec, record, 2.4) == []
    assert due(spec, record) == 2.5
    assert planned(spec, record, 2.5) == ["Retire r2"]
    failing = take(record, ProbeFailed(ReplicaId("r3"), "ill"), 2.4)
    assert planned(spec, failing, 2.5) == []
    served_longer = replace(record, replicas=(*record.replicas[:2], replace(record.replicas[2], serving_since=-1.0)))
    assert planned(spec, served_longer, 1.5) == ["Retire r2"]


def test_the_first_probe_of_a_replica_is_due_when_it_has_started():
    spec, record = replica_set_spec("v1", 1), replica_set(("v1", START))
    record = take(record, Started(ReplicaId("r1"), Location(Address("unix:/r"), NodeId("n"))), 2.0)
    assert due(spec, record) == 2.0
    [probe] = plan(spec, record, 2.0, 1)
    assert isinstance(probe, Probe)
    passed = take(noted(record, probe, 2.0), ProbePassed(ReplicaId("r1")), 2.5)
    assert passed.replicas[0].ready
    assert due(spec, passed) == 2.5 + spec.config.health_check_period_s
    failed = take(noted(record, probe, 2.0), ProbeFailed(ReplicaId("r1"), "no answer"), 2.5)
    assert due(spec, failed) == 3.5, "soon, as after each failure"


def test_unresponsive_replica_is_published_for_a_second_before_it_is_killed():
    spec, record = replica_set_spec("v1", 1, health_check_failure_threshold=1), replica_set(("v1", RUN))
    failed = take(record, ProbeFailed(ReplicaId("r1"), "no answer", running=("a",)), 7.0)
    assert planned(spec, failed, 7.0) == []
    assert due(spec, failed) == 8.0
    assert failed.replicas[0].unresponsive, "so it is published"
    assert planned(spec, failed, 8.0) == ["Kill r1", "Start v1"]

    asked = noted(record, Probe(ReplicaId("r1"), 5.0), 10.0)
    [again] = plan(spec, asked, 17.0, 1)
    assert isinstance(again, Probe), "it never answered"
    silent = noted(asked, again, 17.0)
    assert silent.replicas[0].unresponsive
    assert planned(spec, silent, 17.0) == []
    assert planned(spec, silent, 18.0) == ["Kill r1", "Start v1"]


def test_once_one_of_the_new_has_died_the_next_has_to_be_well_for_longer_than_that_one_was():
    spec, record, now = replica_set_spec("v2", 1, health_check_failure_threshold=1), replica_set(("v1", RUN)), 1.0
    for passed, never_ready in (([True], False), ([False, False], True)):
        [start] = [action for action in plan(spec, record, now, 1) if isinstance(action, Start)]
        record = take(noted(record, start, now), Started(start.replica, Location(Address("unix:/r"), NodeId("n"))), now)
        for second, ready in enumerate(passed, 1):
            record = take(record, ProbePassed(start.replica), now + second)
            assert record.replica(start.replica).ready is ready
        record = take(record, RetireBegun(start.replica, "RuntimeError: I have a cold"), now + 3.5)
        record = take(record, Exited(start.replica), now + 4)
        assert has_failed(record.failures, "v2") is never_ready, "a second one falls ill at the same age"
        now += 10

    [start] = [action for action in plan(spec, record, now, 1) if isinstance(action, Start)]
    record = take(noted(record, start, now), Started(start.replica, Location(Address("unix:/r"), NodeId("n"))), now)
    assert not take(record, ProbePassed(start.replica), now + 3.5).replica(start.replica).ready
    assert take(record, ProbePassed(start.replica), now + 3.6).replica(start.replica).ready


def test_a_start_that_takes_too_long_says_how_to_give_it_more_time():
    spec = replica_set_spec("v1", 1, startup_timeout_s=20.0)
    record = replica_set(("v1", START))
    assert plan(spec, record, 19.9, 1) == []
    [kill] = plan(spec, record, 20.0, 1)
    assert kill.why == (
        "it was not ready after 20 s: if it needs longer to import and start the app, set a larger startup_timeout_s "
        "for its deployment"
    )
    [kill] = plan(replace(proxies_spec(), template_hash="v1"), record, 60.0, 1)
    assert kill.why == "it was not ready after 60 s", "the start of a proxy runs no user code"


def test_while_starts_fail_one_at_a_time_is_tried():
    spec, record, now = replica_set_spec("v1", 5), ReplicaSetRecord(REPLICA_SET), 0.0
    assert len(plan(spec, record, now, 1)) == 5
    for _ in range(3):
        for action in plan(spec, record, now, 1):
            record = noted(record, action, now)
        for replica in record.replicas:
            record = take(record, Exited(replica.id, "ImportError"), now)
        assert plan(spec, record, now, 1) == []
        now = due(spec, record)
        assert len(plan(spec, record, now, 1)) == 1
    assert failed_starts(record.failures, "v1") == 3
    [again] = plan(spec, record, now, 1)
    record = take(noted(record, again, now), Started(again.replica, Location(Address("unix:/r"), NodeId("n"))), now)
    assert planned(spec, record, now) == [f"Probe {again.replica}"] + ["Start v1"] * 4


def test_changed_options_restart_nothing():
    warm = replace(LIVE, user_config={"tone": "warm"})
    spec, record = replica_set_spec("v1", 2, warm), replica_set(("v1", RUN), ("v1", START))
    [reconfigure] = plan(spec, record, 1.0, 1)
    assert reconfigure == Reconfigure(ReplicaId("r1"), warm, spec.config.startup_timeout_s)
    record = noted(record, reconfigure, 1.0)
    assert planned(spec, record) == []
    record = take(record, Reconfigured(ReplicaId("r1"), warm), 1.5)
    assert planned(spec, record, 1.5) == []
    # What started with the old ones takes the new ones up as soon as it runs.
    record = take(record, Started(ReplicaId("r2"), Location(Address("unix:/r"), NodeId("n"))), 2.0)
    assert planned(spec, record, 2.0) == ["Probe r2", "Reconfigure r2"]


def test_one_that_cannot_take_up_its_options_is_asked_again_and_then_replaced_the_new_first():
    warm = replace(LIVE, user_config={"tone": "warm"})
    spec, record, now = replica_set_spec("v1", 1, warm, health_check_period_s=3_600), replica_set(("v1", RUN)), 1.0
    for wait in (1.0, 2.0):
        [reconfigure] = plan(spec, record, now, 1)
        record = take(noted(record, reconfigure, now), ReconfigureFailed(ReplicaId("r1"), warm, "no such model"), now)
        assert due(spec, record) == now + wait
        now += wait
    [reconfigure] = plan(spec, record, now, 1)
    record = take(noted(record, reconfigure, now), ReconfigureFailed(ReplicaId("r1"), warm, "no such model"), now)
    [start] = plan(spec, record, now, 1)
    assert (type(start), start.spec.reloadable) == (Start, warm)
    record = noted(record, start, now)
    assert planned(spec, record, now) == [], "the old one serves until the new one does"
    failed = take(record, Exited(start.replica, "no such model"), now)
    assert planned(spec, failed, now) == [], "what nobody can take up ends nothing"
    assert planned(replace(spec, template=replace(spec.template, reloadable=LIVE)), failed, now) == ["Reconfigure r1"]
    record = take(record, Started(start.replica, Location(Address("unix:/r"), NodeId("n"))), now)
    assert planned(spec, record, now) == [f"Probe {start.replica}"], "it has not passed a health check"
    record = take(record, ProbePassed(start.replica), now)
    assert planned(spec, record, now) == ["Retire r1"]


def test_unobserved_time_makes_nothing_due():
    record = replica_set(("v1", RUN), ("v1", START))
    late = forgiven(record, 100.0)
    assert planned(replica_set_spec("v1", 2), late, 101.0) == []
    assert due(replica_set_spec("v1", 2), late) == due(replica_set_spec("v1", 2), record) + 100.0


@pytest.mark.parametrize("raised", [False, True])
def test_a_replica_that_waited_for_resources_has_failed_only_if_its_app_or_environment_has(raised):
    record = take(replica_set(("v1", START)), Unplaceable(ReplicaId("r1"), "1 GPU", "0 GPU"), 0.0)
    record = take(record, Exited(ReplicaId("r1"), "no such package", raised), 1.0)
    assert record.last_error == ("no such package" if raised else None)
    assert planned(replica_set_spec("v1", 1), record, 1.0) == ([] if raised else ["Start v1"]), "failures delay it"


def test_the_last_words_of_a_replica_are_cut_to_their_end():
    record = take(replica_set(("v1", START)), Exited(ReplicaId("r1"), "x" * 100_000 + "ImportError"), 1.0)
    assert len(record.last_error) < 10_000
    assert record.last_error.endswith("ImportError")
