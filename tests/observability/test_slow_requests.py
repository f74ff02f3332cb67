"""The slowest requests of one process, as plain data."""

import time

import pytest

from app_toolkit.observability.records import NOT_OWNED, FailedAttempt, Record
from app_toolkit.observability.slow_requests import MOST_DEPLOYMENTS, SlowRequests, slow_request
from app_toolkit.observability.slowest import KEPT, SlowAttempt


def record(seconds: float, deployment: str = "shop/web", **fields: object) -> Record:
    whole = Record(time.monotonic() - seconds, seconds, "http", deployment, "shop.web-1-2", 1, "ok", b"GET", b"a")
    return whole._replace(**{"path": b"/items/7?token=secret", "status": 200, "attempt_s": 0.0, **fields})  # type: ignore[arg-type]


def test_the_stages_of_a_request_add_up() -> None:
    lost = FailedAttempt("shop.web-1-1", 1.0, 0.5, "lost")
    found = slow_request(
        record(7.0, tries=2, queued_s=1.5, attempt_s=3.25, first_byte_s=5.25, failed=(lost,)), offset=0.0
    )
    stages = found.body_s, found.queued_s, found.attempts, found.app_s, found.response_s
    assert stages == (1.25, 1.5, (SlowAttempt("shop.web-1-1", 0.5, "lost"),), 2.0, 1.75)
    assert (found.path, found.until_response_s) == ("/items/7", 5.25)


@pytest.mark.parametrize(
    ("fields", "body_s", "queued_s", "app_s"),
    [
        ({"tries": 0, "queued_s": 4.0, "attempt_s": None}, 0.0, 4.0, 0.0),
        ({"tries": 1, "failed": (FailedAttempt("a", 0.0, 4.0, "lost"),)}, 0.0, 0.0, 0.0),
        ({"tries": 1, "attempt_s": 1.0}, 1.0, 0.0, 3.0),
    ],
)
def test_the_stages_of_a_request_without_a_response_add_up(
    fields: dict[str, object], body_s: float, queued_s: float, app_s: float
) -> None:
    found = slow_request(record(4.0, **fields), offset=0.0)
    assert (found.body_s, found.queued_s, found.app_s, found.response_s) == (body_s, queued_s, app_s, 0.0)


def test_each_deployment_has_its_slowest_requests() -> None:
    requests = SlowRequests()
    for _ in range(KEPT + 1):
        requests.add(record(1.0))
    requests.add(record(0.1, "shop/api"))
    requests.add(record(9.0, NOT_OWNED))
    assert [each.deployment for each in requests.slowest(None, 100)] == ["shop/web"] * KEPT + ["shop/api"]
    assert len(requests.slowest("shop/api", 100)) == 1
    assert len(requests.slowest(None, 5)) == 5


def test_calls_are_found_by_the_ids_of_their_requests() -> None:
    requests = SlowRequests()
    requests.add(record(1.0, "shop/model", kind="call"))
    requests.add(record(1.0, "shop/model", kind="call", id=b"b"))
    assert [each.request_id for each in requests.calls_of({"b", "c"})] == ["b"]


def test_the_number_of_deployments_is_bounded() -> None:
    requests = SlowRequests()
    for number in range(MOST_DEPLOYMENTS + 1):
        requests.add(record(1.0, f"shop/web-{number}"))
    assert len(requests.slowest(None, 1_000)) == MOST_DEPLOYMENTS
    hour = 3_600.0
    later = record(1.0, "shop/later")
    requests.add(later._replace(arrived=later.arrived + hour))
    assert [each.deployment for each in requests.slowest(None, 1_000)] == ["shop/later"], "the others are too old"
