"""Deadlines, retries, body limits, access records and counts of requests at the proxy."""

import contextlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from app_toolkit.core import attempts as policy
from app_toolkit.core.publication import PublishedReplica
from app_toolkit.proxy.exchange import Exchange
from app_toolkit.transport import hop
from tests import published
from tests.docs.pages import page
from tests.patience import PATIENCE_S

from .app import SECRET
from .test_choosing import NOWHERE, attempts
from .world import RunningProxy, World, eventually

WS = (
    b"GET %s HTTP/1.1\r\nhost: a\r\nx-request-id: it\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def get(path: str, *fields: str, id: str = "it", method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: a", f"x-request-id: {id}", *fields]
    return "\r\n".join([*lines, "", ""]).encode()


def asking(seconds: object) -> str:
    return f"X-Request-Timeout-Seconds: {seconds}"


@pytest.fixture(autouse=True)
def _no_timer_is_left(own: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    begun: list[Exchange] = []
    begin = Exchange.__init__

    def remembered(exchange: Exchange, *arguments: Any, **options: Any) -> None:
        begin(exchange, *arguments, **options)
        begun.append(exchange)

    monkeypatch.setattr(Exchange, "__init__", remembered)
    yield
    eventually(own.settled)
    assert not [each for each in begun if each.has_deadline]


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Any:
    """What the proxy says in the ordinary log."""
    caplog.set_level(logging.WARNING, "app_toolkit.proxy")
    return lambda: [each.getMessage() for each in caplog.records if each.name == "app_toolkit.proxy"]


# Deadlines


def test_a_request_that_waits_beyond_its_deadline_is_answered_504(own: World, warnings: Any) -> None:
    own.route(request_timeout_s=0.1)
    with own.raw() as raw:
        got = raw.send(get("/hello")).answer()
        assert (got.status, got.error) == (504, "deadline_exceeded")
        assert got.json()["detail"] == "no replica took the request within its 0.1 s"
    assert own.edge.statistics().waiting == 0
    record = own.record("it")
    assert (record["status"], record["outcome"], record["tries"]) == (504, "deadline_exceeded", 0)
    assert record["ms"] >= 95
    assert len(warnings()) == 1


def test_a_request_not_answered_before_its_deadline_is_504_and_frees_its_permit(own: World) -> None:
    replica = own.replica()
    own.route(replica.endpoint(), request_timeout_s=60.0)
    with own.raw() as raw:
        began = time.monotonic()
        got = raw.send(get("/wait", asking(0.3))).answer()
        assert (got.status, got.error) == (504, "deadline_exceeded")
        assert 0.25 < time.monotonic() - began < 30.0
        assert own.edge.statistics().ongoing == 0
        assert raw.send(get("/hello", id="next")).answer().status == 200
    assert own.record("it")["replica"] == replica.name
    replica.release()


@pytest.mark.parametrize("asked", ["nan", "1\r\nx-request-timeout-seconds: 2"])
def test_a_timeout_that_is_no_number_above_0_is_400(own: World, asked: str) -> None:
    replica = own.one()
    with own.raw() as raw:
        got = raw.send(get("/wait", asking(asked))).answer()
        assert (got.status, got.error) == (400, "bad_request")
        assert "must be a decimal number above 0" in got.json()["detail"]
        assert raw.send(get("/hello", id="next")).answer().status == 200
    assert replica.journal.events == []
    assert own.record("it")["outcome"] == "bad_request"


@pytest.mark.parametrize("asked", ["../../x", "é", "x" * 129])
def test_an_id_with_other_characters_than_letters_digits_dots_and_dashes_is_replaced(own: World, asked: str) -> None:
    own.one()
    with own.raw() as raw:
        id = raw.send(get("/hello", id=asked)).answer().header("x-request-id")
        assert id is not None
        assert id != asked
        assert re.fullmatch(r"[a-f0-9-]+", id)
        assert raw.send(get("/hello", id="5f1c_A.2-a")).answer().header("x-request-id") == "5f1c_a.2-a"


def test_the_replica_gets_the_remaining_time_if_there_is_a_deadline(own: World) -> None:
    with Listening(own.folder / "replica.sock") as listening:
        own.route(listening.endpoint())
        with own.raw() as raw:
            raw.send(get("/a", asking(100))).answer()
        with own.raw() as raw:
            raw.send(get("/b", id="next")).answer()
        own.route()
        with own.raw() as raw:
            raw.send(get("/c", asking(100), id="third"))
            eventually(lambda: own.edge.statistics().waiting == 1)
            time.sleep(0.05)  # the time that it waits is what is asked about
            own.route(listening.endpoint())
            raw.answer()
    first, second, third = listening.heads
    assert 50_000 < timeout_ms(first) <= 100_000
    assert timeout_ms(second) is None
    assert 50_000 < timeout_ms(third) <= 99_950


def timeout_ms(head: str) -> Any:
    (line,) = [line for line in head.split("\r\n") if line.startswith("x-app-toolkit-hop: ")]
    said = hop.decode(line.partition(": ")[2].encode(), hop.token(SECRET))
    assert isinstance(said, hop.Hop)
    return said.timeout_ms


def test_a_begun_response_is_cut_at_the_deadline(own: World, warnings: Any) -> None:
    replica = own.replica()
    own.route(replica.endpoint(), request_timeout_s=1.5)
    with own.raw() as raw:
        raw.send(get("/quiet")).until(b"first\n")
        assert not raw.rest().endswith(b"0\r\n\r\n")
    eventually(lambda: replica.journal.events == ["quiet began", "quiet ended"])
    record = own.record("it")
    assert (record["status"], record["outcome"]) == (200, "cut")
    (said,) = warnings()
    assert said == "the response to request it was cut off: the request was not answered in full within its 1.5 s"


def test_the_deadline_of_a_websocket_ends_with_its_handshake(own: World) -> None:
    replica = own.replica()
    for seconds in (0.3, 3.0, 30.0):
        own.route(replica.endpoint(), request_timeout_s=seconds)
        with contextlib.suppress(InvalidStatus):  # this machine is too slow for so short a deadline
            ws = connect(f"ws://127.0.0.1:{own.port}/ws")
            break
    with ws:
        time.sleep(seconds + 0.2)  # nothing tells that a timer did not fire
        ws.send("still here")
        assert ws.recv() == "ws:still here"


def test_a_handshake_that_is_not_answered_in_time_is_504(own: World) -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "websocket.disconnect":
            pass

    own.route(own.replica(app=silent).endpoint(), request_timeout_s=0.2)
    with own.raw() as raw:
        got = raw.send(WS % b"/ws").answer()
        assert (got.status, got.error) == (504, "deadline_exceeded")


def test_all_tries_are_under_one_deadline(own: World) -> None:
    own.route(NOWHERE, request_timeout_s=1.0)
    with own.raw() as raw:
        assert raw.send(get("/hello")).answer().error == "deadline_exceeded"
    assert own.record("it")["tries"] > 1


# Trying again


@pytest.mark.parametrize(("retry", "method", "status"), [("none", "GET", 502), ("all", "POST", 200)])
def test_the_retry_policy_decides_if_a_lost_request_is_retried(
    own: World, warnings: Any, retry: str, method: str, status: int
) -> None:
    replicas = own.killable()
    own.route(*(each.endpoint() for each in replicas), retry=retry)
    with own.raw() as raw:
        assert raw.send(get("/die/at-once", "content-length: 0", method=method)).answer().status == status
    assert attempts(replicas) == (2 if status == 200 else 1)
    assert own.record("it")["tries"] == (2 if status == 200 else 1)
    assert len(warnings()) == 1, "one death is one line"


def test_a_lost_request_is_502_if_the_retry_budget_is_spent(
    own: World, warnings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "FLOOR_PER_S", 0)
    monkeypatch.setattr(policy, "SHARE", 0.0)
    replicas = own.killable()
    own.route(*(each.endpoint() for each in replicas))
    with own.raw() as raw:
        got = raw.send(get("/die/at-once")).answer()
        assert (got.status, got.error) == (502, "replica_lost")
        assert got.json()["detail"].endswith("was lost; the retry budget of shop/web is spent")
    assert attempts(replicas) == 1
    (said,) = warnings()
    assert said.startswith("request it: 502, replica killable-")
    assert said.endswith("ended before the response did"), "why it was lost"


def test_a_refused_request_goes_to_another_replica_although_the_budget_is_spent(
    own: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "FLOOR_PER_S", 0)
    monkeypatch.setattr(policy, "SHARE", 0.0)
    draining, free = own.replica(), own.replica()
    draining.admission.draining = True
    own.route(NOWHERE, draining.endpoint(), free.endpoint())
    with own.raw() as raw:
        for _ in range(10):
            assert raw.send(get("/echo", "content-length: 2", method="POST") + b"hi").answer().body == b"hi"


# Retry-After


def test_retry_after_is_estimated_from_the_queue(own: World, warnings: Any) -> None:
    own.route(queued=3)
    with contextlib.ExitStack() as stack:
        for waiting in range(1, 4):
            stack.enter_context(own.raw()).send(get("/hello", id=f"w{waiting}"))
            eventually(lambda waiting=waiting: own.edge.statistics().waiting == waiting)
        for number in range(5):
            got = stack.enter_context(own.raw()).send(get("/hello", id=f"r{number}")).answer()
            assert (got.status, got.error, got.header("retry-after")) == (503, "queue_full", "30")
    assert len(warnings()) < 5, "under load not every refusal is a line"
    assert [own.record(f"r{number}")["outcome"] for number in range(5)] == ["queue_full"] * 5


def test_late_requests_do_not_count_as_answered_for_retry_after(own: World) -> None:
    own.says(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
    with contextlib.ExitStack() as stack:
        for number in range(3):
            raw = stack.enter_context(own.raw())
            assert raw.send(get("/late", asking(0.1), id=f"late{number}")).answer().status == 504
        own.route(queued=2)
        for waiting in range(1, 3):
            stack.enter_context(own.raw()).send(get("/hello", id=f"w{waiting}"))
            eventually(lambda waiting=waiting: own.edge.statistics().waiting == waiting)
        got = stack.enter_context(own.raw()).send(get("/hello")).answer()
        assert (got.error, got.header("retry-after")) == ("queue_full", "20")


# Bodies


def test_a_body_that_is_announced_too_long_is_refused_before_it_comes(own: World) -> None:
    replica = own.replica()
    own.route(replica.endpoint(), max_body_size=10)
    with own.raw() as raw:
        got = raw.send(get("/echo", "content-length: 11", method="POST")).answer()
        assert (got.status, got.error) == (413, "content_too_large")
        assert got.json()["detail"] == "the body has 11 bytes, the max_body_size of shop/web is 10"
        raw.send(b"01234567890")
        assert raw.send(get("/echo", "content-length: 10", method="POST", id="next") + b"0123456789").answer().body
    assert own.record("it")["tries"] == 0


def test_a_client_that_expects_100_gets_413_if_its_body_is_too_long(own: World) -> None:
    own.route(own.replica().endpoint(), max_body_size=10)
    with own.raw() as raw:
        raw.send(get("/echo", "content-length: 11", "expect: 100-continue", method="POST"))
        assert raw.answer().status == 413
        assert raw.closed()


@pytest.mark.parametrize("together", [True, False])
def test_a_body_without_a_length_is_refused_once_too_much_has_come(own: World, together: bool) -> None:
    replica = own.replica()
    own.route(replica.endpoint(), max_body_size=10)
    head, piece = get("/digest", "transfer-encoding: chunked", method="POST"), b"6\r\nabcdef\r\n"
    with own.raw() as raw:
        if together:
            raw.send(head + piece + piece)
        else:
            raw.send(head + piece)
            eventually(lambda: replica.journal.consumed == 6)
            raw.send(piece)
        got = raw.answer()
        assert (got.status, got.error) == (413, "content_too_large")
        raw.send(b"0\r\n\r\n")
        assert raw.send(get("/hello", id="next")).answer().status == 200
    eventually(lambda: replica.admission.statistics().running == 0)


def test_a_body_that_grows_too_long_under_a_response_cuts_it(own: World) -> None:
    async def answering(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive()).get("more_body"):
            pass

    own.route(own.replica(app=answering).endpoint(), max_body_size=10)
    with own.raw() as raw:
        raw.send(get("/", "transfer-encoding: chunked", method="POST") + b"6\r\nabcdef\r\n").until(b"begun")
        raw.send(b"6\r\nabcdef\r\n")
        assert not raw.rest().endswith(b"0\r\n\r\n")
    assert own.record("it")["outcome"] == "cut"


def test_max_body_size_does_not_limit_websocket_messages(own: World) -> None:
    own.route(own.replica().endpoint(), max_body_size=1)
    with connect(f"ws://127.0.0.1:{own.port}/ws") as ws:
        ws.send("a long message")
        assert ws.recv() == "ws:a long message"


# Access records


def test_a_request_is_one_access_record_without_its_query(own: World) -> None:
    replica = own.one()
    with own.raw() as raw:
        port = raw.socket.getsockname()[1]
        got = raw.send(get("/hello?token=secret")).answer()
        raw.send(get("/-/healthz", id="own")).answer()
    record = own.record("it")
    assert record.pop("time").endswith("Z")
    assert 0 < record.pop("ms") < 60_000
    assert record == {
        "client": "127.0.0.1",
        "port": port,
        "method": "GET",
        "path": "/hello",
        "status": 200,
        "outcome": "ok",
        "bytes": len(got.body),
        "request_id": "it",
        "ingress": "shop/web",
        "replica": replica.name,
        "tries": 1,
    }
    own_record = own.record("own")
    assert (own_record["status"], own_record["ingress"], own_record["replica"]) == (200, "-", "-")


def test_the_pages_show_a_refusal_and_an_access_record(own: World) -> None:
    (refusal,) = map(masked, page("docs/troubleshooting.md").shown("json"))
    (line,) = map(masked, page("docs/outcomes.md").shown("json"))
    own.says(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
    with own.raw() as raw, own.raw() as waiting:
        raw.send(get("/chat")).answer()
        assert masked(json.dumps(own.record("it"), separators=(",", ":"))) == line
        own.route(queued=1)
        waiting.send(get("/chat", id="waiting"))
        eventually(lambda: own.edge.statistics().waiting == 1)
        assert masked(raw.send(get("/chat", id="refused")).answer().body.decode()) == refusal


def masked(said: str) -> str:
    """Without what is another in each run: times, numbers, and names."""
    said = re.sub(r'("(?:client|replica|request_id|time)": ?)"[^"]*"', r'\1"…"', said.strip())
    return re.sub(r"\b\d+(\.\d+)?\b", "0", re.sub(r"shop/\w+", "shop/…", said))


def test_the_page_shows_how_a_client_asks_for_less_time(own: World) -> None:
    (field,) = page("docs/outcomes.md").shown("http")
    with Listening(own.folder / "replica.sock") as listening, own.raw() as raw:
        own.route(listening.endpoint())
        raw.send(get("/a", field.strip())).answer()
    assert 0 < timeout_ms(listening.heads[0]) <= 2_500


def test_an_invalid_request_is_one_access_record_without_its_content(own: World) -> None:
    own.one()
    with own.raw() as raw:
        assert raw.send(b"GET http://user:word@a/x?secret HTTP/1.1\r\nhost: a\r\n\r\n").answer().status == 400
    (record,) = eventually(own.edge.records)
    assert (record["status"], record["outcome"], record["path"], record["method"]) == (400, "bad_request", "-", "-")


@pytest.mark.parametrize("when", ["waiting", "dialling", "sent", "answered"])
def test_a_client_that_disconnects_is_one_access_record(own: World, when: str) -> None:
    with contextlib.ExitStack() as stack:
        if when == "dialling":
            own.route(stack.enter_context(nobody_accepts()))
        elif when == "waiting":
            own.route()
        else:
            replica = own.one()
        with own.raw() as raw:
            raw.send(get("/quiet" if when == "answered" else "/wait", asking(60)))
            if when == "waiting":
                eventually(lambda: own.edge.statistics().waiting == 1)
            elif when == "dialling":
                eventually(lambda: "1 dialling" in repr(own.edge.proxy.pool))
            elif when == "sent":
                eventually(lambda: replica.journal.events == ["wait began"])
            else:
                raw.until(b"first\n")
        record = own.record("it")
        assert (record["status"], record["outcome"]) == (499, "client_gone")
        assert record["tries"] == (0 if when == "waiting" else 1)
    if when == "sent":
        replica.release()
        eventually(lambda: replica.admission.statistics().running == 0)
    assert len([each for each in own.edge.records() if each["request_id"] == "it"]) == 1


def test_a_websocket_is_one_access_record_at_its_end(own: World) -> None:
    own.one()
    with own.raw() as raw:
        assert raw.send(WS % b"/ws").answer().status == 101
        assert own.edge.records() == []
    record = own.record("it")
    assert (record["status"], record["outcome"]) == (101, "ok")
    assert sum(own.edge.statistics().requests["shop/web"].latency) == 0


def test_a_response_cut_by_a_dead_replica_is_one_record_and_one_warning(own: World, warnings: Any) -> None:
    own.route(own.killable(1)[0].endpoint())
    with own.raw() as raw:
        raw.send(get("/die/in-chunks")).until(b"yyyyyyyyyy")
        raw.rest()
    record = own.record("it")
    assert (record["status"], record["outcome"], record["bytes"] > 0) == (200, "cut", True)
    assert len(warnings()) == 1


def test_a_request_that_runs_when_the_proxy_ends_is_in_the_access_log(own: World) -> None:
    replica = own.one()
    with own.raw() as raw:
        raw.send(get("/wait"))
        eventually(lambda: replica.journal.events)
        own.edge.stop(timeout=0.1).result(PATIENCE_S)
        (record,) = eventually(own.edge.written)
    replica.release()
    assert (record["request_id"], record["outcome"]) == ("it", "no_replica")


@pytest.mark.parametrize("end", [RunningProxy.drain, RunningProxy.stop])
@pytest.mark.parametrize(
    ("method", "when", "status", "outcome", "detail"),
    [
        ("GET", "runs", 503, "no_replica", "the proxy is shutting down"),
        ("POST", "runs", 502, "replica_lost", "the proxy is shutting down; the outcome of this POST is unknown"),
        ("POST", "waits", 503, "no_replica", "the proxy is shutting down"),
    ],
)
def test_unanswered_requests_get_an_error_when_the_proxy_stops(
    own: World, end: Any, method: str, when: str, status: int, outcome: str, detail: str
) -> None:
    replica = own.replica()
    own.route(*([replica.endpoint()] if when == "runs" else []))
    with own.raw() as raw:
        raw.send(get("/wait", "content-length: 500000", method=method) + b"x" * 500_000)
        eventually(lambda: replica.journal.events if when == "runs" else own.edge.statistics().waiting)
        ending = end(own.edge, 0.1)
        got = raw.answer()
        assert (got.status, got.error, got.json()["detail"]) == (status, outcome, detail)
        assert got.header("connection") == "close"
        ending.result(PATIENCE_S)
    record = own.record("it")
    assert (record["status"], record["outcome"]) == (status, outcome)
    replica.release()


def test_a_response_that_has_begun_when_the_proxy_stops_is_cut(own: World) -> None:
    own.one()
    with own.raw() as raw:
        raw.send(get("/quiet")).until(b"first\n")
        own.edge.drain(0.1).result(PATIENCE_S)
        assert not raw.rest().endswith(b"0\r\n\r\n")
    record = own.record("it")
    assert (record["status"], record["outcome"]) == (200, "cut")


def test_requests_are_counted_by_ingress_and_outcome_as_long_as_it_is_served(own: World) -> None:
    own.one()
    with own.raw() as raw:
        for path in ("/hello", "/hello", "/nothing/there"):
            raw.send(get(path)).answer()
        raw.send(get("/hello", asking("never"))).answer()
        raw.send(get("/-/healthz")).answer()
    requests = own.edge.statistics().requests
    assert requests["shop/web"].outcomes == {"ok": 3, "bad_request": 1}
    assert sum(requests["shop/web"].latency) == 4
    assert requests["-"].outcomes == {"ok": 1}
    own.edge.post({"routes": published.routes(), "replicas/shop/web": None})
    assert own.edge.statistics().requests.keys() == {"-"}
    own.one()
    with own.raw() as raw:
        raw.send(get("/hello")).answer()
    assert own.edge.statistics().requests["shop/web"].outcomes == {"ok": 1}


def test_a_request_that_outlives_its_ingress_leaves_no_counts(own: World) -> None:
    replica = own.one()
    with own.raw() as raw:
        raw.send(get("/wait"))
        eventually(lambda: replica.journal.events)
        own.edge.post({"routes": published.routes(), "replicas/shop/web": None})
        replica.release()
        assert raw.answer().status == 200
    assert own.record("it")["ingress"] == "shop/web"
    assert own.edge.statistics().requests.keys() <= {"-"}


class Listening:
    """A replica that keeps the heads it gets, internal fields included, and answers each."""

    def __init__(self, path: Path) -> None:
        self.heads: list[str] = []
        self._path = path
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Listening":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(PATIENCE_S)

    def endpoint(self) -> PublishedReplica:
        return published.replica("listening", f"unix:{self._path}", 1)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection:
                    head = b""
                    while not head.endswith(b"\r\n\r\n"):
                        head += connection.recv(65_536)
                    self.heads.append(head.decode())
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


@contextlib.contextmanager
def nobody_accepts() -> Iterator[PublishedReplica]:
    """An address whose queue of connections is full: who dials it hears nothing."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(server.getsockname())
        yield published.replica("mute", f"tcp:127.0.0.1:{server.getsockname()[1]}", 1)
