"""Several replica sets when the desired state changes, and the nodes of their processes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.contract.identity import are_proxies
from app_toolkit.control.backoff import Failure
from app_toolkit.control.reconcile import ReplicaSetRecord
from app_toolkit.control.replica_set import ReplicaSet, active_proxies, lifted, occupied, recovering, specified
from app_toolkit.control.replica_state import Phase
from tests.control.specs import HOME, NEXT, proxies_spec, replica_set
from tests.control.worlds import replica_set_spec
from tests.keys import key, proxies_of

PROXY = proxies_of(HOME)
NAMES = [key("shop/web"), key("shop/model"), key("other/web"), PROXY, proxies_of(NEXT)]


def spec_of(name, target=2):
    return proxies_spec(target=target) if are_proxies(name) else replica_set_spec(key=name, target=target)


@st.composite
def some_groups(draw):
    """Some that are desired, some that were, some that were found; with replicas or without, quarantined or not."""
    replica_sets = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        phases = draw(st.lists(st.sampled_from([phase for phase in Phase if phase is not Phase.STOPPED]), max_size=3))
        was = draw(st.sampled_from(["desired", "left over", "found"]))
        spec = {"desired": spec_of(name), "left over": spec_of(name, 0), "found": None}[was]
        quarantine = draw(st.sampled_from([None, "it failed"]))
        node = draw(st.sampled_from([HOME, NEXT]))
        replica_sets[name] = replica_set(
            name, *phases, node=node, spec=spec, desired=was == "desired", quarantine=quarantine
        )
    return replica_sets


some_names = st.lists(st.sampled_from(NAMES), unique=True)


@given(before=some_groups(), names=some_names, starts=st.integers(0, 9), linger=st.booleans())
def test_desired_replica_sets_are_those_of_the_spec_and_none_is_forgotten(before, names, starts, linger):
    desired = {name: spec_of(name) for name in names}
    after = specified(before, desired, starts=starts, proxies_linger=linger)
    assert list(after) == [*before, *(name for name in names if name not in before)]
    assert {name: each.spec for name, each in after.items() if each.desired} == desired
    assert {name: each.record for name, each in after.items() if name in before} == {
        name: each.record for name, each in before.items()
    }, "what is known does not hang on what is desired"
    for name in after.keys() - before.keys():
        assert after[name].record == ReplicaSetRecord(name, starts=starts), "its ids go on where the last ones ended"
    for name in after.keys() - desired.keys():
        left = after[name].spec
        assert left is None or (left.target, left.lingers) == (0, linger and are_proxies(name))
    again = specified(after, desired, starts=starts, proxies_linger=linger)
    assert all(again[name] is each for name, each in after.items()), "to want the same again is nothing new to anybody"


@pytest.mark.parametrize(
    ("failures", "kept"),
    [((), None), ((Failure(1.0, "v1", served=True),), None), ((Failure(1.0, "v1", served=False),), "why")],
)
def test_a_change_forgets_the_last_error_unless_it_is_of_a_failed_start_of_the_desired_template(failures, kept):
    before = replica_set(key("shop/web"), Phase.RUNNING, spec=replica_set_spec(key=key("shop/web"), target=2))
    before = replace(before, record=replace(before.record, failures=failures, last_error="why"))
    unchanged = specified({key("shop/web"): before}, {key("shop/web"): before.spec}, starts=0)[key("shop/web")]
    assert unchanged.record.last_error == "why"
    desired = replace(before.spec, target=3, template_hash="v1")
    assert (
        specified({key("shop/web"): before}, {key("shop/web"): desired}, starts=0)[key("shop/web")].record.last_error
        == kept
    )


@given(before=some_groups(), names=some_names)
def test_quarantine_ends_if_the_replica_set_is_no_longer_desired(before, names):
    after = specified(before, {name: spec_of(name) for name in names}, starts=0)
    for name, each in before.items():
        ends = each.desired and name not in names
        assert after[name].quarantine == (None if ends else each.quarantine)


def test_removed_replica_set_has_no_spec_and_no_replicas():
    assert replica_set(key("shop/web"), desired=False).gone
    assert not replica_set(key("shop/web")).gone
    assert not replica_set(key("shop/web"), Phase.STOPPING, desired=False).gone


def test_lifted_replica_set_starts_at_once_and_keeps_its_replicas():
    failures = (Failure(1.0, "v1", served=False),)
    held = replica_set(key("shop/web"), Phase.RUNNING, quarantine="it failed")
    held = replace(held, record=replace(held.record, failures=failures, deaths=4, last_error="ImportError"))
    free = lifted(held)
    assert (free.quarantine, free.record.failures) == (None, ())
    assert (free.record.replicas, free.record.deaths) == (held.record.replicas, 4)
    assert free.record.last_error == "ImportError", "until the next start says otherwise"


def test_replica_set_recovers_until_all_replicas_have_reported():
    assert recovering({key("shop/web"): replica_set(key("shop/web"), Phase.RUNNING, Phase.RECOVERING)})
    assert not recovering(
        {
            key("shop/web"): replica_set(key("shop/web"), Phase.RUNNING, Phase.DRAINING),
            key("shop/model"): ReplicaSet(ReplicaSetRecord(key("shop/model"))),
        }
    )


@given(known=some_groups())
def test_node_is_occupied_by_running_replicas_and_its_proxies_are_counted(known):
    nodes, living = occupied(known), active_proxies(known)
    for node in (HOME, NEXT):
        there = [
            each.phase
            for name, one in known.items()
            if not are_proxies(name)
            for each in one.record.replicas
            if each.location.node == node
        ]
        assert (node in nodes) == any(phase in (Phase.RUNNING, Phase.DRAINING) for phase in there)
        proxies = known[proxies_of(node)].record.replicas if proxies_of(node) in known else ()
        assert living[node] == sum(each.phase not in (Phase.DRAINING, Phase.STOPPING) for each in proxies)


def test_replica_without_location_occupies_no_node():
    assert occupied({key("shop/web"): replica_set(key("shop/web"), Phase.RUNNING)}) == set()
