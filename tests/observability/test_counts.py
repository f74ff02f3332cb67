import pytest

from app_toolkit.contract.compared import Requests, bucket_of
from app_toolkit.observability.counts import LATENCY_S, ComparedRequests, Counters
from app_toolkit.observability.records import Record
from tests.keys import app


def record(seconds: float = 0.0, kind: str = "http", outcome: str = "ok", deployment: str = "shop/web") -> Record:
    return Record(100.0, seconds, kind, deployment, "shop.web-1-1", 1, outcome, b"GET")


def test_bucket_counts_requests_that_took_at_most_its_limit() -> None:
    counters = Counters()
    for seconds in (0.0, 0.001, 0.0011, 59.9, 60.0, 1_000.0):
        counters.add(record(seconds))
    counts = counters.copy()["shop/web"]
    assert counts.latency[0] == 2
    assert counts.latency[1] == 1
    assert counts.latency[LATENCY_S.index(60.0)] == 2
    assert counts.latency[-1] == 1
    assert sum(counts.latency) == 6
    assert counts.latency_sum_s == sum((0.0, 0.001, 0.0011, 59.9, 60.0, 1_000.0))


def test_websocket_has_an_outcome_and_no_latency() -> None:
    counters = Counters()
    counters.add(record(30.0, "websocket"))
    counts = counters.copy()["shop/web"]
    assert (counts.outcomes, sum(counts.latency)) == ({"ok": 1}, 0)


def test_copy_does_not_change() -> None:
    counters = Counters()
    counters.add(record())
    copy = counters.copy()
    counters.add(record())
    counters.add(record(deployment="shop/search"))
    assert {name: counts.outcomes for name, counts in copy.items()} == {"shop/web": {"ok": 1}}


def test_counts_of_a_removed_deployment_start_at_zero() -> None:
    counters = Counters()
    counters.add(record(outcome="queue_full"))
    counters.forget("shop/web")
    counters.add(record())
    assert counters.copy()["shop/web"].outcomes == {"ok": 1}


def test_compared_requests_are_those_of_the_followed_revisions() -> None:
    compared = ComparedRequests()
    compared.follow({app("shop"), app("shop@2")})
    compared.add(record(0.1, deployment="shop@2/web")._replace(status=200))
    compared.add(record(0.1, deployment="shop@2/chat")._replace(status=404))
    compared.add(record(deployment="other/web"))
    compared.add(record(deployment="-"))
    found = compared.copy()
    assert found == {app("shop"): Requests(), app("shop@2"): Requests(2, 0, {bucket_of(0.1): 2})}
    compared.add(record(0.1, deployment="shop@2/web"))
    assert found[app("shop@2")].requests == 2, "a copy does not change"
    compared.follow({app("shop@2"), app("shop@3")})
    assert {key.name: each.requests for key, each in compared.copy().items()} == {"shop@2": 3, "shop@3": 0}


@pytest.mark.parametrize(
    ("kind", "outcome", "status", "counted"),
    [
        ("http", "ok", 499, (1, 0, 1)),
        ("http", "ok", 500, (1, 1, 1)),
        ("http", "cut", 200, (1, 1, 1)),
        ("http", "replica_lost", 502, (1, 1, 1)),
        ("http", "queue_timeout", 503, (1, 1, 1)),
        ("http", "queue_full", 503, (0, 0, 0)),
        ("websocket", "too_many_websockets", 503, (0, 0, 0)),
        ("http", "client_gone", 499, (0, 0, 1)),
        ("websocket", "ok", 101, (1, 0, 0)),
    ],
)
def test_errors_are_faults_of_the_server(kind: str, outcome: str, status: int, counted: tuple[int, int, int]) -> None:
    compared = ComparedRequests()
    compared.follow({app("shop")})
    compared.add(record(0.1, kind, outcome)._replace(status=status))
    seen = compared.copy()[app("shop")]
    assert (seen.requests, seen.errors, seen.timed) == counted
