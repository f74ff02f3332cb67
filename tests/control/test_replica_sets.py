"""Each replica set is looked after by itself, when something happened to it or it came due."""

import logging

import pytest

from app_toolkit.clock import ManualClock
from app_toolkit.control.notifier import Notifier
from app_toolkit.control.reconcile import Kill, Probe, Retire, Start
from app_toolkit.control.replica_sets import ReplicaSets
from app_toolkit.control.replica_state import Drained, Exited, Found, Phase, Placed, ProbeFailed, ProbePassed, Started
from app_toolkit.interfaces import Location
from app_toolkit.observability.event_log import EventLog
from app_toolkit.types import Address, ReplicaId
from tests.control.specs import HOME
from tests.control.worlds import LIVE, replica_set_spec
from tests.keys import key

WEB, MODEL = key("shop/web"), key("shop/model")
SPECS = {WEB: replica_set_spec(key=WEB, target=1), MODEL: replica_set_spec(key=MODEL, target=2)}


class Bench:
    def __init__(self):
        clock = ManualClock()
        self.event_log, self.changes = EventLog(clock.now), Notifier(clock)
        self.replica_sets = ReplicaSets(1, self.event_log, self.changes)

    def specify(self, specs):
        self.replica_sets.specify(specs, proxies_linger=False)

    def orders(self):
        orders = list(self.replica_sets.actions)
        self.replica_sets.actions.clear()
        return orders

    def logged(self, what):
        return [entry for entry in self.event_log.entries() if entry.name == what]

    def comes_up(self, id, now):
        assert self.replica_sets.take(Placed(id), now)
        assert self.replica_sets.take(Started(id, Location(Address(f"unix:/{id}"), HOME)), now)


def started(orders):
    """The replica sets of which replicas are started."""
    return [order.replica_set for order in orders if isinstance(order, Start)]


@pytest.fixture
def b():
    return Bench()


@pytest.mark.parametrize("reported_first", [False, True])
def test_requests_that_were_lost_are_named_with_the_end_of_their_replica(b, reported_first):
    b.specify({WEB: SPECS[WEB]})
    b.replica_sets.plan(0.0)
    (web,) = b.orders()
    b.comes_up(web.replica, 1.0)
    steps = [
        lambda: b.replica_sets.take(Exited(web.replica, "SIGSEGV ended it"), 2.0),
        lambda: b.replica_sets.requests_lost(web.replica, "1 request ran in it: GET /die"),
    ]
    for step in reversed(steps) if reported_first else steps:
        step()
    b.replica_sets.requests_lost(web.replica, "another caller")
    assert b.replica_sets.by_key[WEB].record.last_error == "SIGSEGV ended it; 1 request ran in it: GET /die"
    assert [entry.cause for entry in b.logged("RequestsLost")] == ["1 request ran in it: GET /die", "another caller"]
    b.replica_sets.requests_lost(ReplicaId("gone.web-1-1"), "its application was deleted")


def test_desired_replicas_are_started_and_next_checked_when_due(b):
    b.specify(SPECS)
    assert b.replica_sets.plan(0.0) == [WEB, MODEL]
    starts = b.orders()
    assert [(type(start), start.replica_set) for start in starts] == [(Start, WEB), (Start, MODEL), (Start, MODEL)]
    assert b.replica_sets.plan(0.0) == []
    assert b.replica_sets.due == SPECS[WEB].config.startup_timeout_s
    for start in starts:
        b.comes_up(start.replica, 1.0)
    assert b.replica_sets.moved
    assert b.replica_sets.plan(1.0) == [WEB, MODEL]
    assert b.orders() == [Probe(start.replica, SPECS[WEB].config.health_check_timeout_s) for start in starts]
    for start in starts:
        b.replica_sets.take(ProbePassed(start.replica), 1.5)
    assert b.replica_sets.plan(1.5) == [WEB, MODEL]
    assert b.replica_sets.due == 1.5 + SPECS[WEB].config.health_check_period_s
    assert b.replica_sets.plan(2.0) == []


def test_each_failed_health_check_is_logged_with_its_exception(b, caplog):
    caplog.set_level(logging.WARNING, "app_toolkit.controller")
    b.specify({WEB: SPECS[WEB]})
    b.replica_sets.plan(0.0)
    [start] = b.orders()
    b.comes_up(start.replica, 1.0)
    b.replica_sets.take(ProbeFailed(start.replica, "Traceback\nRuntimeError: no database", answered=True), 2.0)
    b.replica_sets.take(ProbeFailed(start.replica, "no answer within 5 s"), 3.0)
    assert caplog.messages == [
        f"{start.replica} failed its health check 1: Traceback\nRuntimeError: no database",
        f"{start.replica} failed its health check 2: no answer within 5 s",
    ]


def test_only_replica_sets_with_another_spec_are_planned_again(b):
    b.specify(SPECS)
    b.replica_sets.plan(0.0)
    b.specify({**SPECS, WEB: replica_set_spec(key=WEB, target=2)})
    assert b.replica_sets.touched == {WEB}
    assert b.replica_sets.plan(0.0) == [WEB]
    b.specify({WEB: replica_set_spec(key=WEB, target=2)})
    assert b.replica_sets.touched == {MODEL}


def test_an_event_touches_its_own_replica_set(b):
    b.specify(SPECS)
    b.replica_sets.plan(0.0)
    [web, *_] = b.orders()
    b.replica_sets.take(Exited(web.replica, "killed"), 1.0)
    assert b.replica_sets.plan(1.0) == [WEB]


@pytest.mark.parametrize(
    ("event", "ended"),
    [
        (lambda id: Found(id, WEB, "v1", "running", None, LIVE), True),
        (lambda id: Started(id, Location(Address("unix:/a"), HOME)), True),
        (lambda id: Placed(id), True),
        (lambda id: Exited(id), False),
        (lambda id: Drained(id), False),
    ],
)
def test_unknown_replica_is_killed_if_it_runs(b, event, ended):
    stranger = ReplicaId("shop.web-1-99")
    assert not b.replica_sets.take(event(stranger), 0.0)
    assert [type(order) for order in b.orders()] == [Kill] * ended
    assert b.replica_sets.by_key == {}


def test_replica_set_that_fails_is_quarantined_until_it_is_lifted_and_no_other(b):
    b.specify(SPECS)
    b.replica_sets.plan(0.0)
    [web, *models] = b.orders()
    for model in models:
        b.comes_up(model.replica, 0.5)
    before = b.changes.number
    assert b.replica_sets.take(Drained(web.replica), 1.0)  # it was not ordered to
    assert "IllegalTransition" in b.replica_sets.by_key[WEB].quarantine
    assert b.logged("Quarantined")
    assert b.changes.number > before
    b.replica_sets.take(Exited(web.replica), 2.0)
    b.replica_sets.take(Exited(models[0].replica), 2.0)
    assert b.replica_sets.plan(2.0) == [WEB, MODEL]
    assert started(b.orders()) == [MODEL]
    b.replica_sets.lift(WEB)
    b.replica_sets.plan(2.0)
    assert started(b.orders()) == [WEB]
    b.replica_sets.lift(key("shop/unknown"))


def test_snapshot_is_not_published_without_a_change(b):
    b.specify({WEB: SPECS[WEB]})
    b.replica_sets.plan(0.0)
    [web] = b.orders()
    b.comes_up(web.replica, 1.0)
    b.replica_sets.plan(1.0)
    assert b.replica_sets.take(ProbePassed(web.replica), 1.0)
    b.replica_sets.plan(1.0)
    b.replica_sets.plan(b.replica_sets.due)
    entries, number = len(b.event_log), b.changes.number
    assert b.replica_sets.take(ProbePassed(web.replica), 5.0)
    assert (len(b.event_log), b.changes.number) == (entries, number)


def test_replica_set_that_comes_back_never_uses_an_id_twice(b):
    b.specify(SPECS)
    b.replica_sets.plan(0.0)
    first = {order.replica for order in b.orders()}
    b.specify({})
    assert b.replica_sets.drop_gone(WEB) is False
    for id in first:
        b.replica_sets.take(Exited(id), 1.0)
    b.replica_sets.plan(1.0)
    b.orders()
    assert all(b.replica_sets.drop_gone(name) for name in SPECS)
    assert b.replica_sets.by_key == {}
    b.specify(SPECS)
    b.replica_sets.plan(100.0)
    again = {order.replica for order in b.orders() if isinstance(order, Start)}
    assert len(again) == 3
    assert not first & again


def test_found_replica_recovers_and_is_left_over_without_spec(b):
    id = ReplicaId("shop.web-1-1")
    b.replica_sets.find(WEB, [id], 0.0)
    b.specify({})
    b.replica_sets.plan(0.0)
    assert b.orders() == []
    assert b.logged("Recovering")[0].cause == "epoch 1 began"
    b.replica_sets.take(Found(id, WEB, "v1", "running", Location(Address("unix:/a"), HOME), LIVE), 1.0)
    b.replica_sets.plan(1.0)
    assert b.orders() == [], "to retire somebody is no order to a launcher"
    assert [entry.name for entry in b.event_log.entries()][-1] == Retire.__name__
    assert b.replica_sets.by_key[WEB].record.replica(id).phase is Phase.DRAINING


def test_remaining_replicas_are_killed_at_the_end(b):
    b.specify(SPECS)
    b.replica_sets.plan(0.0)
    left = {order.replica for order in b.orders()}
    b.replica_sets.kill_all("it is time")
    assert {(type(order), order.replica, order.why) for order in b.orders()} == {
        (Kill, id, "it is time") for id in left
    }
