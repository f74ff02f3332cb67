"""How long the stages of a request take: in its record, and in the field Server-Timing."""

from collections.abc import Callable

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.observability.records import FailedAttempt
from tests.edge.wire import Wire

GET = b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nserver-timing: db;dur=3\r\n\r\n"
BUSY = b"HTTP/1.1 503 Busy\r\nx-app-toolkit-refused: draining\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture
def wire(new_wire: Callable[..., Wire]) -> Wire:
    return new_wire()


def test_a_request_is_recorded_with_its_time_in_the_queue_and_until_its_response(wire: Wire) -> None:
    wire.proxy.configure(HTTPOptions(server_timing=True))
    replica = wire.one(most=1)
    first, second = wire.client(), wire.client()
    first.send(GET)
    second.send(GET)
    wire.advance(1.5)
    replica.last.respond(OK)
    assert first.response().header("server-timing") == "queue;dur=0.0, app;dur=1500.0"
    wire.advance(0.25)
    replica.last.respond(CHUNKED)
    wire.advance(0.5)
    replica.last.respond(b"2\r\nok\r\n0\r\n\r\n")
    assert b"server-timing: db;dur=3\r\nserver-timing: queue;dur=1500.0, app;dur=250.0\r\n" in second.rest()
    records = [(each.seconds, each.queued_s, each.attempt_s, each.first_byte_s) for each in wire.records]
    assert records == [(1.5, 0.0, 0.0, 1.5), (2.25, 1.5, 1.5, 1.75)]


def test_attempts_without_a_response_are_recorded(wire: Wire) -> None:
    replicas = [wire.replica(), wire.replica()]
    wire.route(*replicas)
    client = wire.client().send(GET)
    (asked,) = [each for each in replicas if each.received]
    wire.advance(0.5)
    asked.last.respond(BUSY)
    (other,) = [each for each in replicas if each is not asked]
    wire.advance(0.25)
    other.last.respond(OK)
    response = client.response()
    assert (response.status, response.header("server-timing")) == (200, None), "the field is off by default"
    (record,) = wire.records
    assert record.failed == (FailedAttempt(asked.name, 0.0, 0.5, "draining"),)
    assert (record.tries, record.queued_s, record.attempt_s, record.first_byte_s) == (2, 0.0, 0.5, 0.75)


def test_the_time_until_the_body_has_arrived_is_not_spent_in_the_queue(wire: Wire) -> None:
    replica = wire.one(OK)
    client = wire.client().send(b"POST / HTTP/1.1\r\nhost: shop\r\ncontent-length: 2\r\n\r\n")
    wire.advance(0.5)
    client.send(b"ok")
    assert client.response().status == 200
    (record,) = wire.records
    assert (record.queued_s, record.attempt_s, record.first_byte_s) == (0.0, 0.5, 0.5)
    assert replica.received


def test_a_response_of_the_proxy_begins_at_the_end_of_its_request(wire: Wire) -> None:
    wire.one(most=1, wait_s=2.0)
    wire.client().send(GET)
    assert wire.client().send(GET).rest() == b""
    wire.advance(3.0)
    (late,) = wire.records
    assert (late.outcome, late.tries, late.attempt_s) == ("queue_timeout", 0, None)
    assert late.queued_s == late.first_byte_s == late.seconds


def test_a_client_that_leaves_gets_no_first_byte(wire: Wire) -> None:
    wire.one()
    wire.client().send(GET).leave()
    (record,) = wire.records
    assert (record.outcome, record.first_byte_s, record.attempt_s) == ("client_gone", None, 0.0)
