"""The rows that the page shows, and the difference between two states of them."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.core.status import (
    ApplicationStatus,
    InstanceStatus,
    ReplicaSetStatus,
    ReplicaStatus,
)
from app_toolkit.dashboard.tables import LONGEST_ERROR, Moments, difference, event_row, layout, status_tables
from app_toolkit.observability.event_log import LoggedEvent
from benchmarks.simulated import application

REPLICA = ReplicaStatus("shop.web-1-1", "running", 5.0, "r", "tcp:127.0.0.1:1", 0, None, None, node="home")
WEB = ReplicaSetStatus("shop/web", "healthy", 1, "r", {"running": 1}, (REPLICA,), 0, None)
STATUS = InstanceStatus(
    epoch=1,
    change=1,
    status="healthy",
    applications=(ApplicationStatus("shop", "healthy", "/shop", (WEB,)),),
    proxies=(),
    leaving=(),
)
NOW = 1_000_000.0

KEYS = st.sampled_from("abc")
TABLES = st.dictionaries(KEYS, st.dictionaries(KEYS, st.integers(0, 3), max_size=3), max_size=3)


def apply(tables: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """What the page does with a difference."""
    result = {name: dict(rows) for name, rows in tables.items()}
    for name, rows in changed.items():
        for key, row in rows.items():
            if row is None:
                del result[name][key]
            else:
                result.setdefault(name, {})[key] = row
    return result


def tables(status: InstanceStatus, moments: Moments | None = None, at: float = NOW) -> dict[str, Any]:
    return status_tables(status, layout({"shop": application("shop", classes=1)}), moments or Moments(), at)


@given(TABLES, TABLES)
def test_difference_leads_from_one_state_to_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    same = {name: after.get(name, {}) for name in before} | after  # no table ever vanishes
    got = apply(before, difference(before, same))
    assert {name: rows for name, rows in got.items() if rows} == {name: rows for name, rows in same.items() if rows}


@given(TABLES)
def test_same_state_has_no_difference(state: dict[str, Any]) -> None:
    assert difference(state, state) == {}


def test_row_of_a_deployment_has_its_calls_limits_and_routes() -> None:
    row = tables(STATUS)["deployments"]["shop/web"]
    assert row["kind"] == "ingress"
    assert row["calls"] == ["shop/m0"]
    assert row["max_open_streams"] == 1_000
    assert row["routes"] == ["GET /shop/items", "PUT /shop/items/{item_id}"]


def test_replica_that_only_grows_older_makes_no_difference() -> None:
    moments = Moments()
    before = tables(STATUS, moments, NOW)
    (only,) = STATUS.applications
    older = replace(WEB, replicas=(replace(REPLICA, age_s=6.9),))
    after = tables(replace(STATUS, applications=(replace(only, deployments=(older,)),)), moments, NOW + 2.0)
    assert difference(before, after) == {}


def test_replica_that_changes_its_phase_has_a_new_time() -> None:
    moments = Moments()
    tables(STATUS, moments, NOW)
    (only,) = STATUS.applications
    draining = replace(WEB, replicas=(replace(REPLICA, phase="draining", age_s=0.0),))
    after = tables(replace(STATUS, applications=(replace(only, deployments=(draining,)),)), moments, NOW + 1.0)
    (row,) = after["deployments"]["shop/web"]["replicas"]
    assert (row["phase"], row["since"]) == ("draining", NOW + 1.0)


def test_replica_set_that_leaves_is_marked() -> None:
    left = replace(STATUS, applications=(), leaving=(WEB,))
    assert tables(left)["deployments"]["shop/web"]["leaving"]
    assert not tables(STATUS)["deployments"]["shop/web"]["leaving"]


def test_end_of_a_long_error_is_kept() -> None:
    long = replace(WEB, last_error="x" * 10 * LONGEST_ERROR + "ValueError: no model")
    (only,) = STATUS.applications
    row = tables(replace(STATUS, applications=(replace(only, deployments=(long,)),)))["deployments"]["shop/web"]
    assert row["error"].endswith("ValueError: no model")
    assert len(row["error"]) <= LONGEST_ERROR + 2


def test_row_of_an_event_has_its_time() -> None:
    event = LoggedEvent(2.5, "shop/web", "Scaled", None, "from 1 to 2")
    assert event_row(event, NOW, "1-7") == {
        "id": "1-7",
        "at": NOW - 2.5,
        "subject": "shop/web",
        "name": "Scaled",
        "replica": None,
        "cause": "from 1 to 2",
    }
