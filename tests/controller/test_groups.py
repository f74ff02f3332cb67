"""Each group is looked after by itself, when something happened to it or it came due."""

import logging

import pytest

from app_toolkit.clock import ManualClock
from app_toolkit.controller.changes import Changes
from app_toolkit.controller.groups import Groups
from app_toolkit.core.reconcile import Kill, Retire, Start
from app_toolkit.core.replica_state import Drained, Exited, Found, Phase, Placed, ProbeFailed, ProbePassed, Started
from app_toolkit.interfaces import Location
from app_toolkit.observability.story import Story
from app_toolkit.types import Address, ReplicaId
from tests.core.specs import HOME
from tests.core.worlds import LIVE, group_spec

WEB, MODEL = "shop/web", "shop/model"
SPECS = {WEB: group_spec(group=WEB, target=1), MODEL: group_spec(group=MODEL, target=2)}


class Bench:
    def __init__(self):
        clock = ManualClock()
        self.story, self.changes = Story(clock.now), Changes(clock)
        self.groups = Groups(1, self.story, self.changes)

    def want(self, specs):
        self.groups.specify(specs, proxies_linger=False)

    def orders(self):
        orders = list(self.groups.actions)
        self.groups.actions.clear()
        return orders

    def told(self, what):
        return [entry for entry in self.story.entries() if entry.what == what]

    def comes_up(self, id, now):
        assert self.groups.take(Placed(id), now)
        assert self.groups.take(Started(id, Location(Address(f"unix:/{id}"), HOME)), now)


@pytest.fixture
def b():
    return Bench()


def test_what_is_wanted_is_started_and_then_left_alone_until_it_comes_due(b):
    b.want(SPECS)
    assert b.groups.plan(0.0) == [WEB, MODEL]
    starts = b.orders()
    assert [(type(start), start.group) for start in starts] == [(Start, WEB), (Start, MODEL), (Start, MODEL)]
    assert b.groups.plan(0.0) == []
    assert b.groups.due == SPECS[WEB].startup_timeout_s
    for start in starts:
        b.comes_up(start.replica, 1.0)
    assert b.groups.moved
    assert b.groups.plan(1.0) == [WEB, MODEL]
    assert b.groups.due == 1.0 + SPECS[WEB].health_check_period_s
    assert b.groups.plan(2.0) == []


def test_each_failed_health_check_is_logged_with_its_exception(b, caplog):
    caplog.set_level(logging.WARNING, "app_toolkit.controller")
    b.want({WEB: SPECS[WEB]})
    b.groups.plan(0.0)
    [start] = b.orders()
    b.comes_up(start.replica, 1.0)
    b.groups.take(ProbeFailed(start.replica, "Traceback\nRuntimeError: no database", answered=True), 2.0)
    b.groups.take(ProbeFailed(start.replica, "no answer within 5 s"), 3.0)
    assert caplog.messages == [
        f"{start.replica} failed its health check 1: Traceback\nRuntimeError: no database",
        f"{start.replica} failed its health check 2: no answer within 5 s",
    ]


def test_only_those_are_looked_at_again_of_which_something_else_is_wanted(b):
    b.want(SPECS)
    b.groups.plan(0.0)
    b.want({**SPECS, WEB: group_spec(group=WEB, target=2)})
    assert b.groups.touched == {WEB}
    assert b.groups.plan(0.0) == [WEB]
    b.want({WEB: group_spec(group=WEB, target=2)})
    assert b.groups.touched == {MODEL}


def test_an_event_touches_its_own_group(b):
    b.want(SPECS)
    b.groups.plan(0.0)
    [web, *_] = b.orders()
    b.groups.take(Exited(web.replica, "killed"), 1.0)
    assert b.groups.plan(1.0) == [WEB]


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
def test_a_replica_that_nobody_knows_is_ended_if_it_lives(b, event, ended):
    stranger = ReplicaId("shop.web-1-99")
    assert not b.groups.take(event(stranger), 0.0)
    assert [type(order) for order in b.orders()] == [Kill] * ended
    assert b.groups.known == {}


def test_a_group_that_fails_is_left_alone_until_it_is_lifted_and_the_others_are_not(b):
    b.want(SPECS)
    b.groups.plan(0.0)
    [web, *models] = b.orders()
    for model in models:
        b.comes_up(model.replica, 0.5)
    before = b.changes.number
    assert b.groups.take(Drained(web.replica), 1.0)  # it was never told to
    assert "IllegalTransition" in b.groups.known[WEB].quarantine
    assert b.told("Quarantined")
    assert b.changes.number > before
    b.groups.take(Exited(web.replica), 2.0)
    b.groups.take(Exited(models[0].replica), 2.0)
    assert b.groups.plan(2.0) == [WEB, MODEL]
    assert [order.group for order in b.orders()] == [MODEL]
    b.groups.lift(WEB)
    b.groups.plan(2.0)
    assert [order.group for order in b.orders()] == [WEB]
    b.groups.lift("shop/unknown")


def test_what_changes_nothing_is_not_told(b):
    b.want({WEB: SPECS[WEB]})
    b.groups.plan(0.0)
    [web] = b.orders()
    b.comes_up(web.replica, 1.0)
    b.groups.plan(1.0)
    b.groups.plan(b.groups.due)
    told, number = len(b.story), b.changes.number
    assert b.groups.take(ProbePassed(web.replica), 5.0)
    assert (len(b.story), b.changes.number) == (told, number)


def test_a_group_that_comes_back_never_uses_an_id_twice(b):
    b.want(SPECS)
    b.groups.plan(0.0)
    first = {order.replica for order in b.orders()}
    b.want({})
    assert b.groups.drop_gone(WEB) is False
    for id in first:
        b.groups.take(Exited(id), 1.0)
    b.groups.plan(1.0)
    b.orders()
    assert all(b.groups.drop_gone(name) for name in SPECS)
    assert b.groups.known == {}
    b.want(SPECS)
    b.groups.plan(100.0)
    again = {order.replica for order in b.orders() if isinstance(order, Start)}
    assert len(again) == 3
    assert not first & again


def test_who_was_found_recovers_and_is_left_over_where_nobody_wants_it(b):
    id = ReplicaId("shop.web-1-1")
    b.groups.find(WEB, [id], 0.0)
    b.want({})
    b.groups.plan(0.0)
    assert b.orders() == []
    assert b.told("Recovering")[0].cause == "epoch 1 began"
    b.groups.take(Found(id, WEB, "v1", "running", Location(Address("unix:/a"), HOME), LIVE), 1.0)
    b.groups.plan(1.0)
    assert b.orders() == [], "to retire somebody is no order to a launcher"
    assert [entry.what for entry in b.story.entries()][-1] == Retire.__name__
    assert b.groups.known[WEB].record.replica(id).phase is Phase.DRAINING


def test_time_in_which_nobody_watched_counts_for_no_deadline(b):
    b.want({WEB: SPECS[WEB]})
    b.groups.plan(0.0)
    b.orders()
    b.groups.forgive(70.0)
    assert b.groups.plan(70.0) == [WEB]
    assert b.orders() == []
    assert b.groups.due == 70.0 + SPECS[WEB].startup_timeout_s


def test_in_the_end_everybody_who_is_left_is_killed(b):
    b.want(SPECS)
    b.groups.plan(0.0)
    left = {order.replica for order in b.orders()}
    b.groups.kill_all("it is time")
    assert {(type(order), order.replica, order.why) for order in b.orders()} == {
        (Kill, id, "it is time") for id in left
    }
