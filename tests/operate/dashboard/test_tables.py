"""The rows that the page shows, and the difference between two states of them."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.control.facts import Facts, Frozen
from app_toolkit.control.status import ApplicationStatus, InstanceStatus, ReplicaSetStatus, ReplicaStatus, TrafficStatus
from app_toolkit.observability.event_log import LoggedEvent
from app_toolkit.operate.dashboard.tables import LONGEST_ERROR, Moments, difference, event_row, layout, status_tables
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


def test_row_of_an_application_has_its_facts_in_words() -> None:
    (only,) = STATUS.applications
    assert tables(STATUS)["applications"]["shop"]["facts"] == []
    noted = replace(only, facts=Facts(Frozen("the sale", 5.0)))
    row = tables(replace(STATUS, applications=(noted,)))["applications"]["shop"]
    assert row["facts"] == [{"name": "frozen", "text": "the sale", "since": 5.0}]


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


def test_live_revisions_and_what_a_promotion_has_replaced_have_rows_of_their_own() -> None:
    main, other, former, old = (replace(WEB, created=created) for created in (2, 3, 1, 2))
    traffic = (TrafficStatus(2, 0.9, 0.9), TrafficStatus(3, 0.1, 0.1, deployments=(other,), created=3))
    shop = replace(STATUS.applications[0], deployments=(main,), revision=2, created=2, traffic=traffic)
    leaving = (former, replace(old, name="shop/old"), replace(WEB, name="gone/web"))
    rows = tables(replace(STATUS, applications=(shop,), leaving=leaving))
    assert {name: row["deployments"] for name, row in rows["applications"].items()} == {
        "shop": ["shop/web"],
        "shop@3": ["shop@3/web"],
    }
    assert {name: (row["key"], row["leaving"]) for name, row in rows["deployments"].items()} == {
        "shop/web": ("shop@2/web", False),
        "shop@3/web": ("shop@3/web", False),
        "shop@1/web": ("shop/web", True),
        "shop/old": ("shop@2/old", True),
        "gone/web": ("gone/web", True),
    }
    assert rows["deployments"]["shop@3/web"]["calls"] == ["shop@3/m0"]
