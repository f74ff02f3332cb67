"""What the proxy does not let through: it is stricter than the replica's server, and has limits."""

import contextlib

import pytest

from app_toolkit.proxy.protocol import Timeouts
from tests.patience import PATIENCE_S

from .world import CALM, Raw, RunningProxy, World, eventually, has_read, later

GET = b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n"
SMUGGLED = b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n"

BAD = {
    "nonsense": (b"nonsense\r\n\r\n", 400),
    "length and coding": (
        b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n",
        400,
    ),
    "coding and length": (
        b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n",
        400,
    ),
    "two lengths": (
        b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\ncontent-length: 33\r\n\r\n",
        400,
    ),
    "a list of lengths": (b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 5, 5\r\n\r\n", 400),
    "a signed length": (b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: +5\r\n\r\n", 400),
    "another coding": (b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 501),
    "two codings": (
        b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        (400, 501),
    ),
    "a misspelt coding": (
        b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n",
        (400, 501),
    ),
    "a coding in 1.0": (b"POST /echo HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n", 400),
    "no host": (b"GET /hello HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /hello HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
    "a host that is none": (b"GET /hello HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
    "a folded field": (b"GET /hello HTTP/1.1\r\nhost: a\r\nx: 1\r\n 2\r\n\r\n", 400),
    "bare line feeds": (b"GET /hello HTTP/1.1\nhost: a\n\n", 400),
    "a bare line feed within": (b"GET /hello HTTP/1.1\r\nhost: a\nx: 1\r\n\r\n", 400),
    "a space before the colon": (b"GET /hello HTTP/1.1\r\nhost : a\r\n\r\n", 400),
    "a NUL": (b"GET /hello HTTP/1.1\r\nhost: a\r\nx: \x00\r\n\r\n", 400),
    "a space in the target": (b"GET /hello x HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "a target that is not ASCII": (b"GET /h\xe9 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "a star for GET": (b"GET * HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "another authority": (b"GET http://b/hello HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "another scheme": (b"GET ftp://a/hello HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "a user in the target": (b"GET http://u@a/hello HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n", 501),
    "a method of WebDAV": (b"PROPFIND /hello HTTP/1.1\r\nhost: a\r\n\r\n", 501),
    "a method that is none": (b"FOO /hello HTTP/1.1\r\nhost: a\r\n\r\n", (400, 501)),
    "HTTP/2.0": (b"GET /hello HTTP/2.0\r\nhost: a\r\n\r\n", 505),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 501, 505)),
    "HTTP/0.9": (b"GET /hello HTTP/0.9\r\nhost: a\r\n\r\n", 505),
    "RTSP": (b"PLAY /hello RTSP/1.0\r\nhost: a\r\n\r\n", (400, 501)),
    "a websocket with a body": (
        b"POST /ws HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\ncontent-length: 3\r\n\r\n",
        400,
    ),
    "a websocket by GET with a body": (
        b"GET /ws HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\ncontent-length: 3\r\n\r\n",
        400,
    ),
    "a websocket and more": (
        b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c, websocket\r\n\r\n",
        400,
    ),
    "a long target": (b"GET /" + b"u" * 17_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n", 414),
    "many fields": (b"GET /hello HTTP/1.1\r\nhost: a\r\n" + b"x: 1\r\n" * 100 + b"\r\n", 431),
    "a long field": (b"GET /hello HTTP/1.1\r\nhost: a\r\nx: " + b"v" * 70_000 + b"\r\n\r\n", 431),
    "fields without end": (b"GET /hello HTTP/1.1\r\nhost: a\r\nx: " + b"v" * 70_000, 431),
}


@pytest.mark.parametrize("case", BAD)
def test_it_is_refused_and_what_follows_is_not_a_request(world: World, case: str) -> None:
    world.one()
    data, status = BAD[case]
    with world.raw() as raw:
        raw.send(data + SMUGGLED)
        got = raw.answer()
        assert got.status in (status if isinstance(status, tuple) else (status,))
        assert got.header("connection") == "close"
        assert got.error
        assert got.header("server") == "uvicorn"
        assert raw.closed()


@pytest.mark.parametrize(
    "chunks",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"-1\r\n",
        b"5;x\r\nhelloXX0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n",
    ],
)
def test_a_body_that_is_not_well_chunked_is_refused(world: World, chunks: bytes) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + SMUGGLED)
        got = raw.answer()
        assert got.status == 400
        assert raw.closed()


def test_what_comes_before_a_refused_request_is_answered_first(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(GET + b"nonsense\r\n\r\n")
        assert raw.answer().status == 200
        assert raw.answer().status == 400
        assert raw.closed()


def test_what_follows_a_request_that_closes_is_not_answered(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(b"GET /hello HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n" + GET)
        assert raw.answer().status == 200
        assert raw.closed()


def test_a_flood_of_fields_is_cut_short(world: World) -> None:
    world.one()
    sent = 0
    with world.raw() as raw:
        raw.send(b"GET /hello HTTP/1.1\r\nhost: a\r\n")
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while sent < 50_000_000:
                raw.send(b"x: " + b"v" * 8_000 + b"\r\n")
                sent += 8_000
    assert sent < 20_000_000


def test_a_head_that_does_not_arrive_is_answered_408(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(b"GET /hello HTTP/1.1\r\nhost:")
        eventually(lambda: has_read(world, raw))
        later(world, CALM.head_s + 1)
        got = raw.answer()
        assert (got.status, got.error) == (408, "request_timeout")
        assert raw.closed()


def test_a_client_that_says_nothing_is_not_waited_for(world: World) -> None:
    world.one()
    with world.raw() as raw:
        eventually(lambda: world.edge.statistics().connections == 1)
        later(world, CALM.head_s + 1)
        assert raw.closed()


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
    eventually(lambda: replica.gate.statistics().running == 0)


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


def test_a_client_that_is_quiet_while_it_waits_is_left_alone(world: World) -> None:
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
