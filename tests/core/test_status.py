"""What people are told."""

import json
from dataclasses import asdict, replace

import pytest

from app_toolkit.core.reconcile import GroupRecord
from app_toolkit.core.replica_state import Phase, Reconfiguration, ReplicaRecord, Unplaceable
from app_toolkit.core.restarts import Failure
from app_toolkit.core.status import group_status, worst
from app_toolkit.types import ReplicaId
from tests.core.worlds import GROUP, LIVE, group_spec

RUN, START = Phase.RUNNING, Phase.STARTING


def record(*rows, **facts):
    replicas = tuple(
        ReplicaRecord(ReplicaId(f"r{n}"), GROUP, revision, phase, since=10.0, live=LIVE)
        for n, (revision, phase) in enumerate(rows)
    )
    return GroupRecord(GROUP, replicas, **facts)


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
    assert group_status(group_spec("v1", target), record(*rows), 20.0).status == word


def test_a_group_that_nobody_wants_is_stopping():
    assert group_status(None, record(("v1", RUN)), 20.0).status == "stopping"


def test_three_failed_starts_in_a_row_are_a_failure_of_that_revision_only():
    failures = tuple(Failure(float(at), "v1", served=False) for at in range(3))
    failed = record(("v0", RUN), failures=failures, last_error="ImportError")
    assert group_status(group_spec("v1", 1), failed, 20.0).status == "failed"
    assert group_status(group_spec("v1", 1), failed, 20.0).last_error == "ImportError"
    assert group_status(group_spec("v0", 1), failed, 20.0).status == "healthy"


@pytest.mark.parametrize(("for_ever", "word"), [(False, "waiting_for_resources"), (True, "failed")])
def test_who_has_no_room_is_told_with_what_it_asks_for_and_what_is_free(for_ever, word):
    there = record(("v1", START))
    lacks = replace(there.replicas[0], unplaceable=Unplaceable(ReplicaId("r0"), "1 GPU", "0 GPU", for_ever))
    told = group_status(group_spec("v1", 1), replace(there, replicas=(lacks,)), 20.0)
    assert told.status == word
    assert (told.replicas[0].asks, told.replicas[0].free) == ("1 GPU", "0 GPU")
    assert told.last_error == ("r0 asks for 1 GPU; the cluster has 0 GPU" if for_ever else None)


def test_a_quarantined_group_has_failed_and_says_why():
    told = group_status(group_spec("v1", 1), record(("v1", RUN)), 20.0, "it is not looked after")
    assert (told.status, told.last_error) == ("failed", "it is not looked after")


def test_until_everyone_has_taken_up_changed_options_the_group_is_updating_and_says_what_failed():
    warm = replace(LIVE, user_config={"tone": "warm"})
    there = record(("v1", RUN), ("v1", RUN), last_error="long ago")
    done, tried = replace(there.replicas[0], live=warm), there.replicas[1]
    assert group_status(group_spec("v1", 2, warm), there, 20.0).status == "updating"
    failed = Reconfiguration(warm, sent=None, failed_at=15.0, failures=1, why="no such model")
    told = group_status(
        group_spec("v1", 2, warm),
        replace(there, replicas=(done, replace(tried, live=None, reconfiguration=failed))),
        20.0,
    )
    assert (told.status, told.last_error) == ("updating", "r1 could not be reconfigured: no such model")
    all_done = replace(there, replicas=(done, replace(tried, live=warm)))
    assert group_status(group_spec("v1", 2, warm), all_done, 20.0).status == "healthy"


def test_a_status_is_plain_data():
    told = group_status(group_spec("v1", 2), record(("v1", RUN), ("v0", Phase.DRAINING), deaths=3), 20.0)
    plain = json.loads(json.dumps(asdict(told)))
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
    assert group_status(group_spec("v1", 1), known, 20.0).status == "healthy"
