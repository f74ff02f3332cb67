"""The snapshots that the controller publishes, and their encoding."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.models import Policy, Route, SplitSpec
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.routes import RoutedApplication, strip_prefix
from app_toolkit.contract.snapshots import (
    ReplicaSetSnapshot,
    RouteSnapshot,
    StartBlocked,
    decode_replica_set,
    decode_routes,
    decode_split,
    encode,
)
from app_toolkit.contract.targets import Target
from app_toolkit.control.backoff import Failure, not_before, noted
from app_toolkit.control.publication import (
    PublishedRevision,
    replica_set_snapshot,
    route_snapshot,
    split_members,
    unrouting,
)
from app_toolkit.control.replica_state import Phase, Unplaceable
from tests import published
from tests.control.specs import HOME, application, proxies_spec, replica
from tests.keys import app, key, proxies_of, sets_of

WEB = sets_of(application(max_ongoing_requests=7, max_queued_requests=9))[key("shop/web")]
seconds = st.floats(0.001, 86_400)
policies = st.builds(
    Policy,
    max_queued_requests=st.integers(0, 1_000_000),
    max_queue_wait_s=seconds,
    request_timeout_s=st.none() | seconds,
    max_body_size=st.none() | st.integers(0),
)
routes = st.builds(Route, owner=st.none() | st.sampled_from(["web", "chat"]))
keys = st.sampled_from([key("shop/web"), key("shop@13/web")])
targets = st.builds(Target, st.text(), keys, st.floats(0, 1), st.none() | st.text(), st.floats(0, 1))
applications = st.builds(RoutedApplication, target=targets, routes=st.lists(routes, max_size=3).map(tuple))
snapshots = (
    st.builds(RouteSnapshot, applications=st.lists(applications, max_size=3).map(tuple))
    | st.builds(ReplicaSetSnapshot, policy=policies)
    | st.lists(targets, max_size=3).map(tuple)
)
DECODERS = {RouteSnapshot: decode_routes, ReplicaSetSnapshot: decode_replica_set, tuple: decode_split}
prefixes = st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(snapshots)
def test_a_snapshot_survives_its_encoding_as_json(snapshot):
    value = json.loads(json.dumps(encode(snapshot)))
    assert value == encode(snapshot)
    after = DECODERS[type(snapshot)](value)
    assert after == snapshot
    if isinstance(snapshot, tuple):
        assert {type(target.replica_set) for target in after} <= {ReplicaSetKey}


@given(st.lists(st.none() | prefixes, max_size=6), prefixes)
def test_the_first_application_above_a_path_is_the_one_with_the_longest_prefix(wished, path):
    taken = dict.fromkeys(wished)
    served = [application(f"app{n}", prefix=prefix) for n, prefix in enumerate(taken)]
    published_routes = route_snapshot(PublishedRevision(app(spec.name), spec) for spec in served).applications
    assert {each.prefix for each in published_routes} == taken.keys() - {None}
    above = [each.prefix for each in published_routes if strip_prefix(each.prefix, path) is not None]
    assert above[:1] == sorted(above, key=len, reverse=True)[:1]


def test_an_application_is_published_with_its_routes_in_the_apps_order():
    spec = application()
    shown = RoutedApplication("/", Target("shop", key("shop/web")), spec.routes)
    assert route_snapshot([PublishedRevision(app(spec.name), spec)]) == RouteSnapshot((shown,))


@pytest.mark.parametrize(("prefix", "root_path"), [("/", "/api"), ("/api", "")])
def test_a_root_path_is_published_unless_the_route_prefix_is_removed_from_paths(prefix, root_path):
    spec = application(prefix=prefix).model_copy(update={"root_path": "/api"})
    assert route_snapshot([PublishedRevision(app(spec.name), spec)]).applications[0].root_path == root_path


@given(st.lists(st.tuples(st.sampled_from(list(Phase)), st.booleans(), st.booleans()), max_size=5))
def test_snapshot_has_serving_replicas_and_no_leaving_ones(rows):
    replicas = [
        replica(key("shop/web"), number, phase, HOME if placed else None, unrouted=unrouted)
        for number, (phase, placed, unrouted) in enumerate(rows)
    ]
    snapshot = replica_set_snapshot(WEB, reversed(replicas), 0.0)
    shown = [each.id for each in snapshot.replicas]
    serving = {r.id for r in replicas if r.phase in (Phase.RUNNING, Phase.RECOVERING) and r.location}
    assert shown == sorted(serving)
    leaving = {each.id for each in unrouting(replicas)}
    assert leaving == {r.id for r in replicas if r.phase is Phase.DRAINING and not r.unrouted}
    assert not leaving & set(shown)


def test_snapshot_has_the_options_of_callers():
    snapshot = replica_set_snapshot(WEB, [replica(key("shop/web"), 1, Phase.RUNNING, HOME)], 0.0)
    assert snapshot.policy.max_queued_requests == 9
    assert snapshot.reported is False
    assert snapshot.replicas == (published.replica("shop.web-1-1", "unix:/shop.web-1-1", 7, node=HOME),)


def test_snapshot_has_the_requests_in_an_unresponsive_replica():
    fine, silent, unknown, ill = [
        replace(replica(key("shop/web"), number, Phase.RUNNING, HOME), **facts)
        for number, facts in enumerate(
            [
                {},
                {"failed_probes": 1, "running": ("a", "b")},
                {"failed_probes": 2},
                {"failed_probes": 1, "answered": True},
            ]
        )
    ]
    snapshot = replica_set_snapshot(WEB, [fine, silent, unknown, ill], 0.0)
    shown = [(each.unresponsive, each.running) for each in snapshot.replicas]
    assert shown == [(False, None), (True, ("a", "b")), (True, None), (False, None)]


def test_snapshot_says_that_no_replica_starts_with_only_the_class_of_the_exception():
    failures = (Failure(5.0, WEB.template_hash, served=False, raised=True),)
    error = "Traceback\nRuntimeError: the password hunter2 is wrong"

    def blocked(*replicas, spec=WEB, now=7.0):
        return replica_set_snapshot(spec, replicas, now, failures, error).cannot_start

    raised = StartBlocked("starts_fail", "RuntimeError")
    assert blocked() == raised
    assert replica_set_snapshot(WEB, [], 0.0).cannot_start is None
    assert blocked(replica(key("shop/web"), 1, Phase.RUNNING, HOME, WEB.template_hash)) is None
    assert blocked(replica(key("shop/web"), 1, Phase.RECOVERING, template_hash="")) is None
    assert blocked(replica(key("shop/web"), 1, Phase.STARTING, template_hash=WEB.template_hash)) is None, (
        "it began before that failed"
    )
    again = replace(replica(key("shop/web"), 2, Phase.STARTING, template_hash=WEB.template_hash), since=6.0)
    assert blocked(again) == raised
    assert blocked(spec=replace(WEB, target=0)) is None
    assert blocked(again, now=86_400.0) is None, "it failed a day ago"


def test_snapshot_says_that_the_next_start_is_far_away_unless_one_is_in_progress():
    failures = ()
    for at in (0.0, 2.0, 4.0, 7.0, 12.0):
        failures = noted(failures, Failure(at, WEB.template_hash, served=True, ended=True, lived_s=0.1))
    held = not_before(failures, WEB.template_hash)

    def blocked(*replicas, now=13.0):
        return replica_set_snapshot(WEB, replicas, now, failures, "signal 11").cannot_start

    assert blocked() == StartBlocked("held_back")
    assert blocked(replica(key("shop/web"), 9, Phase.STOPPING, template_hash=WEB.template_hash)) == StartBlocked(
        "held_back"
    )
    assert blocked(now=held) is None
    assert blocked(replica(key("shop/web"), 9, Phase.STARTING, template_hash=WEB.template_hash)) is None
    assert blocked(replica(key("shop/web"), 9, Phase.RUNNING, HOME, WEB.template_hash)) is None


def test_snapshot_says_that_no_node_has_the_resources():
    starting = replica(key("shop/web"), 1, Phase.STARTING, template_hash=WEB.template_hash)
    waits = replace(starting, unplaceable=Unplaceable(starting.id, "1 GPU", "0 GPU"))
    never = replace(starting, unplaceable=Unplaceable(starting.id, "1 GPU", "0 GPU", for_ever=True))
    assert replica_set_snapshot(WEB, [never], 0.0).cannot_start == StartBlocked("no_room")
    assert replica_set_snapshot(WEB, [waits], 0.0).cannot_start is None
    assert replica_set_snapshot(WEB, [never, replace(starting, id="shop.web-1-2")], 0.0).cannot_start is None


def test_snapshot_asks_for_the_load_of_autoscaled_deployments():
    followed = sets_of(application(num_replicas="auto"))[key("shop/web")]
    assert replica_set_snapshot(followed, [], 0.0).reported is True


def test_snapshot_has_no_proxies_and_no_replica_sets_without_spec():
    assert replica_set_snapshot(proxies_spec(), [replica(proxies_of(HOME), 1, Phase.RUNNING, HOME)], 0.0) is None
    assert replica_set_snapshot(None, [replica(key("shop/web"), 1, Phase.RUNNING, HOME)], 0.0) is None


def test_splits_are_published_by_application_and_the_current_revision_counts():
    def spec(name, **splits):
        found = tuple(
            SplitSpec(name=each, shares=shares, mirrors=dict.fromkeys(shares, 0.5)) for each, shares in splits.items()
        )
        return application(name).model_copy(update={"splits": found})

    outgoing = spec("shop", writer={"a": 1.0}, old={"a": 1.0})
    other = app("shop@2"), spec("shop", writer={"c": 1.0})
    shop = [(app("shop"), revision) for revision in (outgoing, spec("shop", writer={"b": 1.0}))]
    assert split_members([*shop, other]) == {
        key("shop/writer"): (Target("b", key("shop/b"), mirror=0.5),),
        key("shop/old"): (Target("a", key("shop/a"), mirror=0.5),),
        key("shop@2/writer"): (Target("c", key("shop@2/c"), mirror=0.5),),
    }
