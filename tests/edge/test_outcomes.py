"""Deadlines, retries, body limits, access records and counts of requests at the proxy."""

import json
import logging
import re
from typing import Any

import pytest

from app_toolkit.edge.state import COUNTED_S
from app_toolkit.exchange import attempts as policy
from app_toolkit.observability.access import AccessLog
from tests.docs.pages import page
from tests.edge.wire import Wire, detail
from tests.edge.world import World, eventually, on_both
from tests.patience import PATIENCE_S

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
BEGUN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nbegun\r\n"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\r\n"
WS = (
    b"GET /ws HTTP/1.1\r\nhost: a\r\nx-request-id: it\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def get(path: str, *fields: str, id: str = "it", method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: a", f"x-request-id: {id}", *fields]
    return "\r\n".join([*lines, "", ""]).encode()


def timeout_field(seconds: object) -> str:
    return f"X-Request-Timeout-Seconds: {seconds}"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Any:
    """The messages of the proxy in the ordinary log."""
    caplog.set_level(logging.WARNING, "app_toolkit.proxy")
    return lambda: [each.getMessage() for each in caplog.records if each.name == "app_toolkit.proxy"]


@pytest.fixture
def no_retry_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FLOOR_PER_S", 0)
    monkeypatch.setattr(policy, "SHARE", 0.0)


# Deadlines


def test_a_request_that_waits_beyond_its_deadline_gets_504(wire: Wire, warnings: Any) -> None:
    wire.route(request_timeout_s=2.0)
    client = wire.client().send(get("/"))
    wire.advance(1.9)
    assert client.buffer == b""
    wire.advance(0.1)
    got = client.response()
    assert (got.status, got.error) == (504, "deadline_exceeded")
    assert detail(got) == "no replica took the request within its 2 s"
    record = wire.record()
    assert (record.status, record.outcome, record.tries) == (504, "deadline_exceeded", 0)
    assert record.seconds == pytest.approx(2.0)
    assert len(warnings()) == 1


def test_a_request_without_a_response_at_its_deadline_gets_504_and_frees_its_permit(wire: Wire) -> None:
    replica = wire.one(request_timeout_s=60.0)
    client = wire.client().send(get("/", timeout_field(2)))
    wire.advance(2.0)
    got = client.response()
    assert (got.status, got.error) == (504, "deadline_exceeded")
    assert wire.load == (0, 0, 0, 0)
    assert replica.last.transport.closed
    replica.says(OK)
    assert client.send(get("/", id="next")).response().status == 200
    assert wire.record().replica == replica.name


@pytest.mark.parametrize("seconds", ["nan", "1\r\nx-request-timeout-seconds: 2"])
def test_a_timeout_that_is_no_number_above_0_gets_400(wire: Wire, seconds: str) -> None:
    replica = wire.one(OK)
    client = wire.client()
    got = client.send(get("/", timeout_field(seconds))).response()
    assert (got.status, got.error) == (400, "bad_request")
    assert "must be a decimal number above 0" in detail(got)
    assert replica.received == []
    assert client.send(get("/", id="next")).response().status == 200
    assert wire.record().outcome == "bad_request"


@pytest.mark.parametrize("id", ["../../x", "é", "x" * 129])
def test_an_id_with_other_characters_than_letters_digits_dots_and_dashes_is_replaced(wire: Wire, id: str) -> None:
    wire.one(OK)
    client = wire.client()
    new = client.send(get("/", id=id)).response().header("x-request-id")
    assert new is not None
    assert new != id
    assert re.fullmatch(r"[a-f0-9-]+", new)
    assert client.send(get("/", id="5f1c_A.2-a")).response().header("x-request-id") == "5f1c_a.2-a"


def test_the_replica_gets_the_remaining_time_if_there_is_a_deadline(wire: Wire) -> None:
    replica = wire.one(OK)
    client = wire.client().send(get("/a", timeout_field(100)) + get("/b", id="next"))
    wire.route()
    client.send(get("/c", timeout_field(100), id="third"))
    wire.advance(10.0)
    wire.route(replica)
    assert [each.hop.timeout_ms for each in replica.received] == [100_000, None, 90_000]


def test_a_begun_response_is_cut_at_the_deadline(wire: Wire, warnings: Any) -> None:
    replica = wire.one(BEGUN, request_timeout_s=1.5)
    client = wire.client().send(get("/"))
    wire.advance(1.5)
    assert client.rest().endswith(b"begun\r\n")
    assert client.closed()
    assert replica.last.transport.closed
    record = wire.record()
    assert (record.status, record.outcome) == (200, "cut")
    assert warnings() == [
        "the response to request it was cut off: the request was not answered in full within its 1.5 s"
    ]


def test_the_deadline_of_a_websocket_ends_with_its_handshake(wire: Wire) -> None:
    replica = wire.one(SWITCHING, request_timeout_s=1.0)
    client = wire.client().send(WS)
    wire.advance(30.0)
    replica.last.respond(b"\x81\x02hi")
    assert client.response().status == 101
    assert client.rest() == b"\x81\x02hi"


def test_a_handshake_without_a_response_at_its_deadline_gets_504(wire: Wire) -> None:
    wire.one(request_timeout_s=1.0)
    client = wire.client().send(WS)
    wire.advance(1.0)
    got = client.response()
    assert (got.status, got.error) == (504, "deadline_exceeded")


def test_all_attempts_have_one_deadline(wire: Wire) -> None:
    wire.route(nowhere=True, request_timeout_s=1.0)
    client = wire.client().send(get("/"))
    wire.advance(1.0)
    assert client.response().error == "deadline_exceeded"
    assert wire.record().tries > 1


# Retries


@pytest.mark.parametrize(("retry", "method", "status"), [("none", "GET", 502), ("all", "POST", 200)])
def test_the_retry_policy_decides_if_a_lost_request_is_retried(
    wire: Wire, warnings: Any, retry: str, method: str, status: int
) -> None:
    replicas = [wire.replica() for _ in range(3)]
    wire.route(*replicas, retry=retry)
    client = wire.client().send(get("/", "content-length: 0", method=method))
    (first,) = [each for each in replicas if each.received]
    for each in replicas:
        each.says(OK)
    first.last.lose()
    assert client.response().status == status
    assert wire.record().tries == sum(len(each.received) for each in replicas) == (2 if status == 200 else 1)
    assert len(warnings()) == 1, "one loss is one line"


@pytest.mark.usefixtures("no_retry_budget")
def test_a_lost_request_gets_502_if_the_retry_budget_is_spent(wire: Wire, warnings: Any) -> None:
    replica = wire.one()
    client = wire.client().send(get("/"))
    replica.last.lose()
    got = client.response()
    assert (got.status, got.error) == (502, "replica_lost")
    assert detail(got).endswith("was lost; the retry budget of shop/web is spent")
    (line,) = warnings()
    assert line.startswith(f"request it: 502, replica {replica.name}")
    assert line.endswith("ended before the response did"), "why it was lost"


@pytest.mark.usefixtures("no_retry_budget")
def test_a_refused_request_goes_to_another_replica_although_the_budget_is_spent(wire: Wire) -> None:
    draining = wire.replica().says(REFUSED % b"draining")
    free = wire.replica().says(OK)
    wire.route(draining, free, nowhere=True)
    client = wire.client()
    for number in range(10):
        request = get("/", "content-length: 2", method="POST", id=str(number)) + b"hi"
        assert client.send(request).response().body == b"ok"
        wire.advance(0.5)
    assert draining.received


REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nx-app-toolkit-refused: %b\r\ncontent-length: 0\r\n\r\n"

# Retry-After


def test_retry_after_is_estimated_from_the_queue(wire: Wire, warnings: Any) -> None:
    wire.route(queued=3)
    for number in range(3):
        wire.client().send(get("/", id=f"w{number}"))
    assert wire.load == (3, 0, 0, 0)
    for number in range(5):
        got = wire.client().send(get("/", id=f"r{number}")).response()
        assert (got.status, got.error, got.header("retry-after")) == (503, "queue_full", "30")
    assert len(warnings()) == 1, "under load not every refusal is a line"
    assert [wire.record(f"r{number}").outcome for number in range(5)] == ["queue_full"] * 5


def test_late_requests_do_not_count_as_responses_for_retry_after(wire: Wire) -> None:
    wire.one(OK[:-2])
    for number in range(3):
        client = wire.client().send(get("/", timeout_field(0.5), id=f"late{number}"))
        wire.advance(0.5)
        assert client.response().status == 504
    wire.route(queued=2)
    for number in range(2):
        wire.client().send(get("/", id=f"w{number}"))
    got = wire.client().send(get("/")).response()
    assert (got.error, got.header("retry-after")) == ("queue_full", "20")


# Bodies


def test_a_body_whose_announced_length_is_too_long_is_refused_before_it_arrives(wire: Wire) -> None:
    wire.one(OK, max_body_size=10)
    client = wire.client()
    got = client.send(get("/", "content-length: 11", method="POST")).response()
    assert (got.status, got.error) == (413, "content_too_large")
    assert detail(got) == "the body has 11 bytes, the max_body_size of shop/web is 10"
    client.send(b"01234567890")
    assert client.send(get("/", "content-length: 10", method="POST", id="next") + b"0123456789").response().body
    assert wire.record().tries == 0


def test_a_client_that_expects_100_gets_413_if_its_body_is_too_long(wire: Wire) -> None:
    wire.one(OK, max_body_size=10)
    client = wire.client().send(get("/", "content-length: 11", "expect: 100-continue", method="POST"))
    assert client.response().status == 413
    assert client.closed()


@pytest.mark.parametrize("together", [True, False])
def test_a_body_without_a_length_is_refused_once_too_much_has_arrived(wire: Wire, together: bool) -> None:
    replica = wire.one(b"HTTP/1.1 100 Continue\r\n\r\n", max_body_size=10)
    head, piece = get("/", "transfer-encoding: chunked", method="POST"), b"6\r\nabcdef\r\n"
    client = wire.client()
    if together:
        client.send(head + piece + piece)
    else:
        client.send(head + piece)
        wire.advance(0.5)
        assert replica.last.body == piece
        client.send(piece)
    got = client.response()
    assert (got.status, got.error) == (413, "content_too_large")
    assert len(replica.received) == (0 if together else 1)
    replica.says(OK)
    client.send(b"0\r\n\r\n")
    assert client.send(get("/", id="next")).response().status == 200


def test_a_body_that_grows_too_long_during_the_response_cuts_it(wire: Wire) -> None:
    wire.one(BEGUN, max_body_size=10)
    client = wire.client().send(get("/", "transfer-encoding: chunked", method="POST") + b"6\r\nabcdef\r\n")
    wire.advance(0.5)
    client.until(b"begun\r\n")
    client.send(b"6\r\nabcdef\r\n")
    assert client.closed()
    assert wire.record().outcome == "cut"


def test_max_body_size_does_not_limit_websocket_messages(wire: Wire) -> None:
    replica = wire.one(SWITCHING, max_body_size=1)
    client = wire.client().send(WS)
    client.send(b"a long message")
    assert replica.last.body == b"a long message"
    assert client.response().status == 101


# Access records


def test_a_request_is_one_access_record_without_its_query(wire: Wire) -> None:
    replica = wire.one(OK)
    lines: list[str] = []
    access = AccessLog(lines.append, lambda: (0.0, wire.loop.now))
    wire.proxy.records.subscribe(access.add)
    wire.client(("192.0.2.1", 4_711)).send(get("/hello?token=secret") + get("/-/healthz", id="own"))
    access.flush()
    record, own_record = map(json.loads, "".join(lines).splitlines())
    assert record == {
        "time": "1970-01-01T00:00:00.000Z",
        "client": "192.0.2.1",
        "port": 4_711,
        "method": "GET",
        "path": "/hello",
        "status": 200,
        "outcome": "ok",
        "bytes": 2,
        "ms": 0.0,
        "request_id": "it",
        "ingress": "shop/web",
        "replica": replica.name,
        "tries": 1,
    }
    assert (own_record["status"], own_record["ingress"], own_record["replica"]) == (200, "-", "-")


def test_the_pages_show_a_refusal_and_an_access_record(wire: Wire) -> None:
    (refusal,) = map(masked, page("docs/troubleshooting.md").shown("json"))
    (line,) = map(masked, page("docs/requests.md").shown("json"))
    wire.one(OK)
    lines: list[str] = []
    access = AccessLog(lines.append)
    wire.proxy.records.subscribe(access.add)
    client = wire.client().send(get("/chat"))
    access.flush()
    assert masked(lines[0]) == line
    wire.route(queued=1)
    wire.client().send(get("/chat", id="waiting"))
    client.response()
    assert masked(client.send(get("/chat", id="refused")).response().body.decode()) == refusal


def masked(text: str) -> str:
    """Without the values that differ in each run: times, numbers, and names."""
    text = re.sub(r'("(?:client|replica|request_id|time)": ?)"[^"]*"', r'\1"…"', text.strip())
    return re.sub(r"\b\d+(\.\d+)?\b", "0", re.sub(r"shop/\w+", "shop/…", text))


def test_the_page_shows_how_a_client_asks_for_less_time(wire: Wire) -> None:
    (field,) = page("docs/requests.md").shown("http")
    replica = wire.one(OK)
    wire.client().send(get("/a", field.strip()))
    assert replica.last.hop.timeout_ms == 2_500


def test_an_invalid_request_is_one_access_record_without_its_content(wire: Wire) -> None:
    assert wire.client().send(b"GET http://user:word@a/x?secret HTTP/1.1\r\nhost: a\r\n\r\n").response().status == 400
    lines: list[str] = []
    access = AccessLog(lines.append)
    access.add(wire.records[0])
    access.flush()
    record = json.loads(lines[0])
    assert (record["status"], record["outcome"], record["path"], record["method"]) == (400, "bad_request", "-", "-")


@pytest.mark.parametrize("when", ["waiting", "dialling", "sent", "responding"])
def test_a_client_that_disconnects_is_one_access_record(wire: Wire, when: str) -> None:
    replica = wire.replica()
    if when == "dialling":
        replica.dialled.clear()
    if when == "responding":
        replica.says(BEGUN)
    wire.route(*([] if when == "waiting" else [replica]))
    wire.client().send(get("/", timeout_field(60))).leave()
    record = wire.record()
    assert (record.status, record.outcome) == (499, "client_gone")
    assert record.tries == (0 if when == "waiting" else 1)
    wire.loop.call(replica.dialled.set)
    assert len(replica.received) == (when in ("sent", "responding")), "a connection that comes too late is kept"


def test_a_websocket_is_one_access_record_at_its_end(wire: Wire) -> None:
    wire.one(SWITCHING)
    client = wire.client().send(WS)
    assert client.response().status == 101
    assert wire.records == []
    client.leave()
    record = wire.record()
    assert (record.status, record.outcome) == (101, "ok")
    assert sum(wire.proxy.counts()["shop/web"].latency) == 0


def test_a_response_cut_by_a_lost_replica_is_one_record_and_one_warning(wire: Wire, warnings: Any) -> None:
    wire.one(BEGUN, close=True)
    client = wire.client().send(get("/"))
    assert client.rest().endswith(b"begun\r\n")
    assert client.closed()
    record = wire.record()
    assert (record.status, record.outcome, record.size > 0) == (200, "cut", True)
    assert len(warnings()) == 1


@on_both
def test_a_request_that_runs_when_the_proxy_ends_is_in_the_access_log(own: World) -> None:
    replica = own.one()
    with own.raw() as raw:
        raw.send(get("/wait"))
        eventually(lambda: replica.journal.events)
        own.edge.stop(timeout=0.1).result(PATIENCE_S)
        (record,) = eventually(own.edge.written)
    replica.release()
    assert (record["request_id"], record["outcome"]) == ("it", "no_replica")


@pytest.mark.parametrize(
    ("method", "replicas", "status", "outcome", "message"),
    [
        ("GET", 1, 503, "no_replica", "the proxy is shutting down"),
        ("POST", 1, 502, "replica_lost", "the proxy is shutting down; the outcome of this POST is unknown"),
        ("POST", 0, 503, "no_replica", "the proxy is shutting down"),
    ],
)
def test_requests_without_a_response_get_an_error_when_the_proxy_stops(
    wire: Wire, method: str, replicas: int, status: int, outcome: str, message: str
) -> None:
    wire.route(*[wire.replica() for _ in range(replicas)])
    client = wire.client().send(get("/", "content-length: 500000", method=method) + b"x" * 500_000)
    wire.advance(0.5)
    wire.proxy.draining = True
    wire.each(lambda each: each.dismiss())
    got = client.response()
    assert (got.status, got.error, detail(got)) == (status, outcome, message)
    assert got.header("connection") == "close"
    assert (wire.record().status, wire.record().outcome) == (status, outcome)


def test_a_response_that_has_begun_when_the_proxy_stops_is_cut(wire: Wire) -> None:
    wire.one(BEGUN)
    client = wire.client().send(get("/"))
    wire.each(lambda each: each.dismiss())
    assert client.rest().endswith(b"begun\r\n")
    assert client.closed()
    assert (wire.record().status, wire.record().outcome) == (200, "cut")


def test_requests_are_counted_by_ingress_and_outcome_as_long_as_it_is_served(wire: Wire) -> None:
    replica = wire.one(OK)
    client = wire.client()
    for fields in ([], [], [timeout_field("never")]):
        client.send(get("/", *fields)).response()
    client.send(get("/-/healthz"))
    counts = wire.proxy.counts()
    assert counts["shop/web"].outcomes == {"ok": 2, "bad_request": 1}
    assert sum(counts["shop/web"].latency) == 3
    assert counts["-"].outcomes == {"ok": 1}
    wire.unroute()
    wire.route(replica)
    client.send(get("/"))
    wire.advance(COUNTED_S)
    assert wire.proxy.counts()["shop/web"].outcomes == {"ok": 3, "bad_request": 1}
    wire.unroute()
    wire.advance(COUNTED_S)
    assert wire.proxy.counts().keys() == {"-"}
    wire.route(replica)
    wire.client().send(get("/"))
    assert wire.proxy.counts()["shop/web"].outcomes == {"ok": 1}


def test_a_request_that_drains_after_its_ingress_was_removed_is_counted(wire: Wire) -> None:
    replica = wire.one()
    client = wire.client().send(get("/"))
    wire.unroute()
    replica.last.respond(OK)
    assert client.response().status == 200
    assert wire.record().deployment == "shop/web"
    assert wire.proxy.counts()["shop/web"].outcomes == {"ok": 1}


def test_a_request_that_long_outlives_its_ingress_leaves_no_counts(wire: Wire) -> None:
    replica = wire.one()
    client = wire.client().send(get("/"))
    wire.unroute()
    wire.advance(COUNTED_S)
    replica.last.respond(OK)
    assert client.response().status == 200
    assert wire.proxy.counts().keys() <= {"-"}
