"""The reported status."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.models import Faults
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.control.application import Application, applied
from app_toolkit.control.backoff import Failure
from app_toolkit.control.reconcile import ReplicaSetRecord
from app_toolkit.control.replica_state import Phase, Reconfiguration, ReplicaRecord, Unplaceable
from app_toolkit.control.status import WORST_FIRST, instance_status, replica_set_status, worst
from app_toolkit.errors import ConfigError
from app_toolkit.operate.progress import Row
from app_toolkit.types import ReplicaId
from tests.control.specs import HOME, NEXT, application, replica_set
from tests.control.worlds import LIVE, REPLICA_SET, replica_set_spec
from tests.keys import key, proxies_of, sets_of

RUN, START = Phase.RUNNING, Phase.STARTING


def record(*rows, **facts):
    replicas = tuple(
        ReplicaRecord(ReplicaId(f"r{n}"), REPLICA_SET, revision, phase, since=10.0, reloadable=LIVE)
        for n, (revision, phase) in enumerate(rows)
    )
    return ReplicaSetRecord(REPLICA_SET, replicas, **facts)


@pytest.mark.parametrize(
    ("word", "target", "rows"),
    [
        ("starting", 1, []),
        ("starting", 1, [("v1", START)]),
        ("healthy", 1, [("v1", RUN)]),
        ("healthy", 1, [("v1", RUN), ("v0", Phase.STOPPING)]),
        ("starting", 2, [("v1", RUN), ("v1", START)]),
        ("updating", 1, [("v0", RUN), ("v1", START)]),
        ("updating", 1, [("v0", RUN), ("v1", RUN)]),
        ("updating", 1, [("v0", Phase.DRAINING), ("v1", RUN)]),
        ("starting", 1, [("", Phase.RECOVERING)]),
        ("stopping", 0, [("v1", Phase.DRAINING)]),
        ("healthy", 0, []),
    ],
)
def test_one_word(word, target, rows):
    assert replica_set_status(replica_set_spec("v1", target), record(*rows), 20.0).status == word


def test_replica_set_without_spec_is_stopping():
    assert replica_set_status(None, record(("v1", RUN)), 20.0).status == "stopping"


def test_three_failed_starts_in_a_row_are_a_failure_of_that_revision_only():
    failures = tuple(Failure(float(at), "v1", served=False) for at in range(3))
    failed = record(("v0", RUN), failures=failures, last_error="ImportError")
    assert replica_set_status(replica_set_spec("v1", 1), failed, 20.0).status == "failed"
    assert replica_set_status(replica_set_spec("v1", 1), failed, 20.0).last_error == "ImportError"
    assert replica_set_status(replica_set_spec("v0", 1), failed, 20.0).status == "healthy"


@pytest.mark.parametrize(("for_ever", "word"), [(False, "waiting_for_resources"), (True, "failed")])
def test_status_shows_requested_and_free_resources_of_a_waiting_replica(for_ever, word):
    there = record(("v1", START))
    lacks = replace(there.replicas[0], unplaceable=Unplaceable(ReplicaId("r0"), "1 GPU", "0 GPU", for_ever))
    found = replica_set_status(replica_set_spec("v1", 1), replace(there, replicas=(lacks,)), 20.0)
    assert found.status == word
    assert (found.replicas[0].asks, found.replicas[0].free) == ("1 GPU", "0 GPU")
    assert found.last_error == ("r0 asks for 1 GPU; the instance has 0 GPU" if for_ever else None)


def test_a_revision_that_is_about_to_be_rolled_back_is_updating_and_not_failed():
    old, new = application(), application(prefix="/new")
    [spec] = sets_of(new).values()
    failures = tuple(Failure(float(at), spec.template_hash, served=False) for at in range(3))
    there = replica_set(key("shop/web"), RUN)
    failed = replace(there, spec=spec, record=replace(there.record, failures=failures, last_error="ImportError"))
    [first] = shown_of([new], {key("shop/web"): failed}).applications
    assert first.status == "failed", "there is no stable revision to return to"
    [updated] = shown_of([applied(stable(old), new)], {key("shop/web"): failed}).applications
    assert (updated.status, updated.deployments[0].status) == ("updating", "updating")


@pytest.mark.parametrize(
    ("facts", "unhealthy"),
    [
        ({}, None),
        ({"probing_since": 19.0}, None),
        ({"probing_since": 17.0}, "has not answered a health check for 3 s"),
        ({"failed_probes": 1}, "did not answer 1 health check"),
        ({"failed_probes": 2, "probing_since": 10.0}, "did not answer 2 health checks"),
        (
            {"failed_probes": 1, "answered": True, "last_failure": "Traceback\nRuntimeError: I have a cold"},
            "is unhealthy: RuntimeError: I have a cold",
        ),
    ],
)
def test_a_replica_that_does_not_answer_health_checks_is_marked(facts, unhealthy):
    there = record(("v1", RUN), ("v1", RUN))
    ill = replace(there.replicas[1], **facts)
    found = replica_set_status(replica_set_spec("v1", 2), replace(there, replicas=(there.replicas[0], ill)), 20.0)
    assert [each.unhealthy for each in found.replicas] == [None, unhealthy]
    assert found.status == ("healthy" if unhealthy is None else "unhealthy")
    assert found.reason == ("" if unhealthy is None else f"r1 {unhealthy}")
    spare = replica_set_status(replica_set_spec("v1", 1), replace(there, replicas=(there.replicas[0], ill)), 20.0)
    assert spare.status == "healthy", "the other one is enough"


probes = st.fixed_dictionaries(
    {"failed_probes": st.integers(0, 3), "answered": st.booleans(), "probing_since": st.none() | st.floats(0, 20)}
)


@given(st.lists(st.tuples(st.sampled_from([RUN, START]), probes), max_size=5), st.integers(1, 5))
def test_replica_set_is_unhealthy_only_if_too_few_replicas_answer(rows, target):
    there = record(*(("v1", phase) for phase, _ in rows))
    replicas = tuple(replace(r, **facts) for r, (_, facts) in zip(there.replicas, rows, strict=True))
    found = replica_set_status(replica_set_spec("v1", target), replace(there, replicas=replicas), 20.0)
    marked = sum(each.unhealthy is not None for each in found.replicas)
    well = found.running - marked
    assert found.status == ("healthy" if well >= target else "unhealthy" if marked else "starting")
    assert bool(found.reason) == (found.status == "unhealthy")


def test_the_faults_of_a_deployment_are_shown_unless_there_is_worse():
    faults = Faults(abort_status=503, abort_percent=5)
    spec = replica_set_spec("v1", 1, faults=faults)
    found = replica_set_status(spec, record(("v1", RUN), last_error="it died, once"), 20.0)
    assert (found.status, found.faults) == ("healthy", f"faults are injected: {faults.summary}")
    assert found.reason == asdict(found)["faults"]
    assert str(Row("web", found)) == f"web: healthy, 1 of 1 running ({found.faults})"
    assert replica_set_status(spec, record(), 20.0, "it fails").reason == "it fails"
    assert replica_set_status(replica_set_spec(faults=Faults()), record(), 20.0).faults is None


def test_quarantined_replica_set_has_failed_with_a_reason():
    found = replica_set_status(replica_set_spec("v1", 1), record(("v1", RUN)), 20.0, "it is not looked after")
    assert (found.status, found.last_error) == ("failed", "it is not looked after")


def test_replica_set_is_updating_until_all_replicas_have_changed_options():
    warm = replace(LIVE, user_config={"tone": "warm"})
    there = record(("v1", RUN), ("v1", RUN), last_error="long ago")
    done, tried = replace(there.replicas[0], reloadable=warm), there.replicas[1]
    assert replica_set_status(replica_set_spec("v1", 2, warm), there, 20.0).status == "updating"
    failed = Reconfiguration(warm, sent=None, failed_at=15.0, failures=1, why="no such model")
    found = replica_set_status(
        replica_set_spec("v1", 2, warm),
        replace(there, replicas=(done, replace(tried, reloadable=None, reconfiguration=failed))),
        20.0,
    )
    assert (found.status, found.last_error) == ("updating", "r1 could not be reconfigured: no such model")
    all_done = replace(there, replicas=(done, replace(tried, reloadable=warm)))
    assert replica_set_status(replica_set_spec("v1", 2, warm), all_done, 20.0).status == "healthy"


def test_a_status_is_plain_data():
    found = replica_set_status(replica_set_spec("v1", 2), record(("v1", RUN), ("v0", Phase.DRAINING), deaths=3), 20.0)
    plain = json.loads(json.dumps(asdict(found)))
    assert plain["counts"] == {"running": 1, "draining": 1}
    assert plain["restarts"] == 3
    assert plain["replicas"][0]["age_s"] == 10.0


def test_the_worst_word_speaks_for_all():
    assert worst(["healthy", "updating", "failed"]) == "failed"
    assert worst(["healthy", "starting"]) == "starting"
    assert worst([]) == "healthy"


def test_a_draining_replica_of_the_last_revision_counts_until_callers_know_of_it():
    there = record(("v0", Phase.DRAINING), ("v1", RUN))
    known = replace(there, replicas=(replace(there.replicas[0], unrouted=True), there.replicas[1]))
    assert replica_set_status(replica_set_spec("v1", 1), known, 20.0).status == "healthy"


def stable(spec):
    shop = applied(None, spec)
    return shop.replaced(shop.main.but(stable=shop.main.desired))


def shown_of(applications, replica_sets, *, stopping=False):
    found = [each if isinstance(each, Application) else applied(None, each) for each in applications]
    return instance_status(found, replica_sets, 20.0, epoch=3, change=7, home=NEXT, stopping=stopping)


names = st.sampled_from([key("a/web"), key("b/web"), key("c/web"), proxies_of(HOME), proxies_of(NEXT)])
phases = st.lists(st.sampled_from([RUN, START, Phase.DRAINING, Phase.STOPPING]), max_size=2)


def application_of(key):
    return key.application if isinstance(key, ReplicaSetKey) else None


@given(there=st.dictionaries(names, phases), applied=st.lists(st.sampled_from("abc"), unique=True))
def test_status_shows_every_replica_set_once_and_the_worst_status(there, applied):
    replica_sets = {
        name: replica_set(name, *rows, desired=application_of(name) in applied) for name, rows in there.items()
    }
    found = shown_of([application(name) for name in applied], replica_sets)
    assert [each.name for each in found.applications] == sorted(applied)
    shown = [*(each for app in found.applications for each in app.deployments), *found.proxies, *found.leaving]
    assert sorted(each.name for each in shown) == sorted(each.name for each in there)
    assert {each.name for each in found.leaving} == {
        each.name for each in there if application_of(each) not in (None, *applied)
    }
    assert all(WORST_FIRST.index(found.status) <= WORST_FIRST.index(each.status) for each in shown)
    assert found.status in {"healthy", *(each.status for each in shown)}
    assert shown_of([application(name) for name in applied], replica_sets, stopping=True) == replace(
        found, status="stopping", stopping=True
    )


def test_status_shows_the_proxies_of_the_controllers_node_first():
    replica_sets = {name: replica_set(name, RUN) for name in map(proxies_of, ("a", "next", "home"))}
    assert [each.name for each in shown_of([], replica_sets).proxies] == ["proxy@next", "proxy@a", "proxy@home"]


def test_status_shows_an_application_before_it_has_replica_sets():
    found = shown_of([application(prefix="/x")], {})
    assert (found.epoch, found.change, found.status) == (3, 7, "healthy")
    [app] = found.applications
    assert (app.name, app.route_prefix, app.revision, app.deployments) == ("shop", "/x", 1, ())


def test_a_name_is_known_if_it_is_that_of_an_application_or_a_replica_set():
    there = (key("shop/web"), key("shop/model"), key("other/web"), proxies_of("home"))
    found = shown_of([application()], {name: replica_set(name, RUN) for name in there})
    for name in ("shop", *map(str, there)):
        found.check_name(name)
    for name in ("nope", "nope/web", "admin@home"):
        with pytest.raises(ConfigError, match=f"^there is no application '{name.partition('/')[0]}'$"):
            found.check_name(name)
    with pytest.raises(ConfigError, match=r"^application 'shop' has no deployment 'nope'; it has web$"):
        found.check_name("shop/nope")


def test_rolled_back_revision_is_shown_until_another_is_applied():
    bad = applied(stable(application()), application(num_replicas=3))
    replica_sets = {
        key("shop/web"): replica_set(key("shop/web"), RUN),
        key("shop/model"): replica_set(key("shop/model"), Phase.DRAINING),
    }
    updating = shown_of([bad], replica_sets)
    assert [(app.status, app.revision, app.last_error) for app in updating.applications] == [("updating", 2, None)]
    assert [each.name for each in updating.leaving] == ["shop/model"], "what only the version before has"
    back = shown_of([bad.replaced(bad.main.but(failure="shop/web: ImportError"))], replica_sets)
    [app] = back.applications
    assert (app.status, app.last_error) == ("rolled_back", "shop/web: ImportError")
    assert (app.revision, app.serving_revision) == (2, 1)
    assert back.status == "rolled_back"
