"""Which requests were lost with a replica, as a caller reports them."""

from app_toolkit.observability.lost_requests import LONGEST_NAME, MOST_NAMES, MOST_REPLICAS, OTHERS, LostRequests
from app_toolkit.observability.records import FailedAttempt, Record


def record(path: str, *attempts: tuple[str, str], kind: str = "http", method: bytes = b"GET") -> Record:
    failed = tuple(FailedAttempt(replica, 0.0, 1.0, result) for replica, result in attempts)
    return Record(0.0, 1.0, kind, "shop/web", "b", 2, "ok", method, path=path.encode(), failed=failed)


def test_each_lost_attempt_is_counted_by_method_and_path_without_the_query() -> None:
    lost = LostRequests()
    lost.add(record("/die?token=secret", ("a", "lost"), ("b", "lost")))
    lost.add(record("/die", ("a", "lost")))
    lost.add(record("/busy", ("a", "busy"), ("a", "unreached")))
    lost.add(record("", ("a", "lost"), kind="call", method=b"predict"))
    assert lost.take() == {"a": {"GET /die": 2, "shop/web.predict": 1}, "b": {"GET /die": 1}}
    assert lost.take() == {}


def test_names_and_replicas_are_bounded_and_printable() -> None:
    lost = LostRequests()
    for number in range(MOST_NAMES + 5):
        lost.add(record(f"/{number}", ("a", "lost")))
    for number in range(MOST_REPLICAS + 5):
        lost.add(record("/\x1b[31m" + "x" * 2 * LONGEST_NAME, (f"r{number}", "lost")))
    taken = lost.take()
    assert len(taken) == MOST_REPLICAS
    assert len(taken["a"]) == MOST_NAMES + 1
    assert taken["a"][OTHERS] == 5
    (name,) = taken["r0"]
    assert name.isprintable()
    assert len(name) <= 2 * LONGEST_NAME
