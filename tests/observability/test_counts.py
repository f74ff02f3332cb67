from app_toolkit.observability.counts import LATENCY_S, Counters
from app_toolkit.observability.records import Record


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
