"""Responses of the proxy itself, as pages of other origins may read them."""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.middleware.cors import CORSMiddleware

from app_toolkit.config.models import HTTPOptions
from app_toolkit.userapp.cors import cors_of
from tests import published
from tests.edge.wire import Wire
from tests.edge.world import Got

ORIGIN = "https://page.example"
SETTINGS = cors_of(CORSMiddleware(lambda *_: None, allow_origins=[ORIGIN], allow_methods=["POST"]))  # type: ignore[arg-type, return-value]


def request(method: str = "GET", *fields: str, origin: str = ORIGIN) -> bytes:
    return "\r\n".join([f"{method} / HTTP/1.1", "host: a", f"origin: {origin}", *fields, "", ""]).encode()


def publish(wire: Wire, **policy: Any) -> None:
    wire.route(**policy)
    wire.publish({"routes": published.routes(published.application(cors=SETTINGS))})


def read(got: Got) -> tuple[int, str | None, str | None]:
    return got.status, got.header("access-control-allow-origin"), got.header("access-control-expose-headers")


READABLE = ORIGIN, "retry-after, x-request-id"


def test_a_page_reads_why_its_request_was_refused_and_when_to_retry(wire: Wire) -> None:
    publish(wire, queued=0)
    got = wire.client().send(request()).response()
    assert (read(got), got.header("vary"), got.error) == ((503, *READABLE), "origin", "queue_full")
    assert got.header("retry-after") is not None


def test_a_page_reads_every_error_after_the_head(new_wire: Callable[..., Wire]) -> None:
    wire = new_wire(options=HTTPOptions(port=0, max_requests_per_client=1))
    publish(wire, max_body_size=1, request_timeout_s=9.0)
    too_large = wire.client().send(request("POST", "content-length: 2"))
    assert read(too_large.response()) == (413, *READABLE)
    slow = wire.client(("127.0.0.2", 1)).send(request("POST", "content-length: 1"))
    late = wire.client().send(request())
    assert read(wire.client().send(request()).response()) == (429, *READABLE), "before its ingress is known"
    wire.advance(60)
    assert [read(each.response()) for each in (slow, late)] == [(408, *READABLE), (504, *READABLE)]


def test_a_page_of_an_origin_that_the_app_does_not_allow_reads_nothing(wire: Wire) -> None:
    publish(wire, queued=0)
    got = wire.client().send(request(origin="https://other.example")).response()
    assert (got.status, got.header("access-control-allow-origin")) == (503, None)


def test_a_head_that_is_not_read_has_no_application_and_no_fields(wire: Wire) -> None:
    publish(wire)
    got = wire.client().send(b"nonsense\r\n\r\n").response()
    assert (got.status, got.header("vary")) == (400, None)


@pytest.mark.parametrize(("method", "status", "text"), [("POST", 200, b"OK"), ("PUT", 400, b"Disallowed CORS method")])
def test_a_preflight_that_no_replica_answers_is_answered_as_the_app_does(
    wire: Wire, method: str, status: int, text: bytes
) -> None:
    publish(wire, queued=0)
    got = wire.client().send(request("OPTIONS", f"access-control-request-method: {method}")).response()
    assert (got.status, got.body, got.header("access-control-allow-origin")) == (status, text, ORIGIN)
    assert wire.records[-1].outcome == "queue_full"
    assert wire.client().send(request("OPTIONS")).response().status == 503, "this is no preflight"
