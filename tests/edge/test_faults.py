"""Faults that requests get on purpose, through a proxy."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from app_toolkit.exchange.filters.faults import FAULTS
from app_toolkit.exchange.request import KEPT_BODY
from app_toolkit.wire.hop import SLOW_BODY
from tests import published
from tests.edge.test_mirroring import STREAM, counts, serve
from tests.edge.test_outcomes import OK, SWITCHING, WS, get, timeout_field
from tests.edge.wire import Wire, detail

DELAY = {"delay_s": 2.0, "delay_percent": 100}
ABORT = {"abort_status": 418, "abort_percent": 100}


def injected(wire: Wire) -> dict[str, float]:
    samples = [each for each in wire.proxy.samples() if each.metric == FAULTS]
    assert {each.labels[0] for each in samples} <= {"shop/web"}
    return {each.labels[1]: each.numbers[0] for each in samples}


def test_an_aborted_request_reaches_no_replica(wire: Wire) -> None:
    replica = wire.one(OK, faults=ABORT)
    got = wire.client().send(get("/")).response()
    assert (got.status, got.error) == (418, "fault_injected")
    assert detail(got) == "the option faults of shop/web has aborted this request"
    assert replica.received == []
    assert (wire.record().status, wire.record().outcome, wire.record().tries) == (418, "fault_injected", 0)
    assert injected(wire) == {"abort": 1}


def test_a_delayed_request_asks_for_a_permit_afterwards(wire: Wire) -> None:
    replica = wire.one(OK, faults=DELAY, wait_s=1.0)
    client = wire.client().send(get("/"))
    wire.advance(1.9)
    assert (client.buffer, replica.received, wire.load) == (b"", [], (0, 0, 0, 0))
    wire.advance(0.1)
    assert client.response().status == 200
    assert injected(wire) == {"delay": 1}


def test_a_request_may_be_delayed_and_then_aborted(wire: Wire) -> None:
    replica = wire.one(OK, faults={**DELAY, **ABORT})
    client = wire.client().send(get("/"))
    wire.advance(1.9)
    assert (client.buffer, injected(wire)) == (b"", {"delay": 1})
    wire.advance(0.1)
    assert (client.response().status, replica.received) == (418, [])
    assert injected(wire) == {"delay": 1, "abort": 1}


@pytest.mark.parametrize("faults", [DELAY, {**DELAY, **ABORT}])
def test_the_deadline_applies_to_a_delay(wire: Wire, faults: dict[str, Any]) -> None:
    replica = wire.one(OK, faults=faults)
    client = wire.client().send(get("/", timeout_field(1)))
    wire.advance(1.0)
    got = client.response()
    assert (got.status, detail(got)) == (504, "no replica took the request within its 1 s")
    wire.advance(2.0)
    assert (replica.received, injected(wire)) == ([], {"delay": 1})


@pytest.mark.parametrize("faults", [DELAY, {**DELAY, **ABORT}])
def test_a_client_may_leave_during_a_delay(wire: Wire, faults: dict[str, Any]) -> None:
    replica = wire.one(OK, faults=faults)
    wire.client().send(get("/")).leave()
    wire.advance(3.0)
    assert (wire.record().outcome, replica.received, injected(wire)) == ("client_gone", [], {"delay": 1})


def test_a_fault_happens_once_however_often_the_request_is_attempted(wire: Wire) -> None:
    replicas = [wire.replica() for _ in range(3)]
    wire.route(*replicas, faults=DELAY)
    client = wire.client().send(get("/"))
    wire.advance(2.0)
    (first,) = [each for each in replicas if each.received]
    for each in replicas:
        each.says(OK)
    first.last.lose()
    assert (client.response().status, wire.record().tries, injected(wire)) == (200, 2, {"delay": 1})


def test_a_body_that_arrives_fast_does_not_count_as_slow_after_a_delay(wire: Wire) -> None:
    size = 4 * KEPT_BODY
    replica = wire.one(faults=DELAY)
    client = wire.client().send(get("/", f"content-length: {size}", method="POST"))
    for _ in range(4):
        client.send(bytes(KEPT_BODY))
    wire.advance(2.0)
    assert replica.last.header(SLOW_BODY) is None
    replica.last.respond(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert len(replica.last.body) == size
    replica.last.respond(OK)
    assert client.response().status == 200


def test_headers_count_only_if_the_option_says_so(wire: Wire) -> None:
    asks = "X-Fault-Abort-Status: 418", "X-Fault-Delay-Ms: 2000"
    replica = wire.one(OK, faults={"abort_status": 500, "abort_percent": 0.001})
    assert wire.client().send(get("/", *asks)).response().status == 200
    assert replica.last.header(b"x-fault-abort-status") == b"418", "it is a field like any other"

    wire.route(replica, faults={"headers": True})
    client = wire.client().send(get("/", *asks))
    wire.advance(1.9)
    assert client.buffer == b""
    wire.advance(0.1)
    assert client.response().status == 418
    assert wire.client().send(get("/", id="plain")).response().status == 200
    assert wire.client().send(get("/", "X-Fault-Delay-Ms: soon", id="bad")).response().error == "bad_request"


def test_a_change_applies_to_the_next_request(wire: Wire) -> None:
    replica = wire.one(OK)
    client = wire.client()
    for faults, status in ((None, 200), (ABORT, 418), (None, 200)):
        wire.route(replica, faults=faults)
        assert client.send(get("/")).response().status == status


@pytest.mark.parametrize("faults", [DELAY, {**DELAY, **ABORT}])
def test_the_handshake_of_a_websocket_gets_faults(wire: Wire, faults: dict[str, Any]) -> None:
    replica = wire.one(SWITCHING, faults=faults)
    client = wire.client().send(WS)
    wire.advance(1.9)
    assert (client.buffer, replica.received) == (b"", [])
    wire.advance(0.1)
    assert client.until(b"\r\n").split()[1] == (b"418" if "abort_status" in faults else b"101")


def test_a_delayed_stream_is_passed_on(wire: Wire) -> None:
    wire.one(STREAM + b"3\r\ntea\r\n0\r\n\r\n", faults=DELAY)
    client = wire.client().send(get("/"))
    wire.advance(2.0)
    assert client.response().body == b"tea"


def test_copies_for_mirrors_get_no_faults_and_aborted_requests_have_none(new_wire: Callable[..., Wire]) -> None:
    wire = new_wire()
    mirror = wire.replica().says(OK)
    main = serve(wire, mirror)

    def publish(of_main: Any, of_mirror: Any) -> None:
        wire.publish(
            {
                f"replicas/{name}/web": published.replica_set(published.replica(each.name, each.address), faults=faults)
                for name, each, faults in (("shop", main, of_main), ("shop@2", mirror, of_mirror))
            }
        )

    publish(None, {**DELAY, **ABORT})
    assert wire.client().send(get("/")).response().status == 200
    assert (len(mirror.received), counts(wire).completed) == (1, 1)
    publish(ABORT, None)
    assert json.loads(wire.client().send(get("/")).response().body)["error"] == "fault_injected"
    assert (len(main.received), len(mirror.received)) == (1, 1)
