"""Clients that are slow, or do not read. tests/edge has the requests that are refused."""

import contextlib

import pytest

from app_toolkit.edge.protocol import Timeouts
from tests.edge.world import CALM, Raw, RunningProxy, World, eventually, has_read, later, on_both
from tests.patience import PATIENCE_S

GET = b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n"


def test_a_refused_request_has_a_json_error_and_ends_the_connection(world: World) -> None:
    with world.raw() as raw:
        got = raw.send(b"nonsense\r\n\r\n" + GET).answer()
        assert (got.status, got.error, got.header("connection")) == (400, "bad_request", "close")
        assert got.header("server") == "uvicorn"
        assert raw.closed()


@on_both
def test_a_head_that_does_not_arrive_is_answered_408(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(b"GET /hello HTTP/1.1\r\nhost:")
        eventually(lambda: has_read(world, raw))
        later(world, CALM.head_s + 1)
        got = raw.answer()
        assert (got.status, got.error) == (408, "request_timeout")
        assert raw.closed()


def test_a_silent_connection_is_closed(world: World) -> None:
    world.one()
    with world.raw() as raw:
        eventually(lambda: world.edge.statistics().connections == 1)
        later(world, CALM.head_s + 1)
        assert raw.closed()


@on_both
@pytest.mark.parametrize("length", [1_000, 100_000], ids=["small", "large"])
def test_a_body_that_trickles_is_answered_408_and_its_replica_is_free_again(world: World, length: int) -> None:
    replica = world.one()
    with world.raw() as raw:
        raw.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\nx" % length)
        eventually(lambda: any(each.is_serving for each in world.edge.server.connections()))
        for passed in range(1, 30):
            later(world, passed)
        got = raw.answer()
        assert (got.status, got.error) == (408, "request_timeout")
        assert raw.closed()
    eventually(lambda: replica.admission.statistics().running == 0)


@on_both
def test_a_client_that_waits_for_its_100_is_not_slow(world: World) -> None:
    world.route()
    with world.raw() as raw:
        raw.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
        eventually(lambda: world.edge.statistics().waiting == 1)
        for passed in range(1, 30):
            later(world, passed)
        world.one()
        assert raw.answer().status == 100
        assert raw.send(b"hi").answer().body == b"hi"


@on_both
def test_a_client_that_does_not_read_its_answers_is_not_answered_without_end(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.socket.settimeout(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 50_000_000:
                sent += raw.socket.send(b"GET /-/routes HTTP/1.1\r\nhost: a\r\n\r\n" * 1_000)
        assert sent < 20_000_000
        raw.socket.settimeout(PATIENCE_S)
        for _ in range(2_000):
            assert raw.answer().status == 200


@on_both
def test_a_client_that_waits_for_its_response_is_not_closed(world: World) -> None:
    replica = world.one()
    with world.raw() as raw:
        raw.send(b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\nGET /he")  # the next head is begun, and waits with us
        eventually(lambda: replica.journal.events)
        for passed in (1, 2, 3):
            later(world, passed * CALM.head_s)
        replica.release()
        assert raw.answer().status == 200


def test_an_idle_connection_is_closed_after_its_time() -> None:
    edge = RunningProxy(Timeouts(keep_alive_s=0.2))
    try:
        with Raw(edge.server.port) as raw:
            assert raw.send(b"GET /-/healthz HTTP/1.1\r\nhost: a\r\n\r\n").answer().status == 503
            assert raw.closed()
    finally:
        edge.close()
