"""Requests and responses that pass the proxy. tests/parity and tests/edge have most of HTTP."""

import contextlib
import hashlib
import random

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.edge.app import VAST
from tests.edge.world import Raw, World, eventually, on_both, still
from tests.patience import PATIENCE_S

GET = b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n"
HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@on_both
def test_a_get_reaches_the_app_and_its_answer_comes_back(world: World) -> None:
    replica = world.one()
    got = httpx.get(world.url + "/hello")
    assert got.status_code == 200
    assert got.json() == {"replica": replica.name}
    assert got.headers["server"] == "uvicorn"
    assert "date" in got.headers
    assert got.headers["x-request-id"]
    assert not [name for name in got.headers if name.startswith("x-app-toolkit")]


def test_connections_to_a_replica_are_used_again(world: World) -> None:
    world.one()
    before = world.edge.statistics().idle
    with httpx.Client() as client:
        for _ in range(20):
            assert client.get(world.url + "/stream?n=2").text == "part 0\npart 1\n"
    assert world.edge.statistics().idle == before + 1


@on_both
def test_fields_arrive_in_their_order_with_duplicates(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(
            b"GET /seen HTTP/1.1\r\nHost: a\r\nX-B: 1\r\nX-A: \xe9\r\nX-B: 2\r\n"
            b"Connection: keep-alive\r\nTE: trailers\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n"
        )
        seen = raw.answer().json()
    assert seen["headers"] == [
        ["host", "a"],
        ["x-b", "1"],
        ["x-a", "\xe9"],
        ["x-b", "2"],
        ["connection", "keep-alive"],
        ["x-forwarded-for", "1.2.3.4"],
    ]


@on_both
def test_internal_fields_of_a_request_are_removed_in_every_spelling(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(
            b"POST /seen HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
            b"X-App-Toolkit-Hop: 1 open-sesame id 1.1 6.6.6.6 1 7.7.7.7 2 https\r\n"
            b"x_app_toolkit_hop: 1\r\nX-App_Toolkit-Expect: 1\r\nX-App-Toolkit-Expect: 1\r\n\r\nhi"
        )
        seen = raw.answer().json()
    assert [name for name, _ in seen["headers"]] == ["host", "content-length"]
    assert seen["client"][0] == "127.0.0.1"
    assert seen["scheme"] == "http"


@on_both
def test_internal_fields_of_a_response_are_stripped_and_its_own_id_stays(world: World) -> None:
    world.one()
    with world.raw() as raw:
        got = raw.send(GET % b"/own-id").answer()
    assert got.header("x-request-id") == "from-the-app"
    assert not [name for name, _ in got.headers if name.startswith("x-app-toolkit")]


@on_both
@pytest.mark.parametrize("path", [b"/hello", b"/stream"])
def test_a_client_of_http_1_0_gets_a_body_without_chunks_and_then_the_end(world: World, path: bytes) -> None:
    world.one()
    with world.raw() as raw:
        got = raw.send(b"GET %b HTTP/1.0\r\n\r\n" % path).answer()
        assert got.header("transfer-encoding") is None
        assert got.header("connection") == "close"
        assert got.body in (b"part 0\npart 1\npart 2\n", b'{"replica":"replica-0"}')
        assert raw.closed()


@on_both
def test_trailers_are_dropped(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(
            b"POST /seen HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n0\r\nx-app-toolkit-hop: 1\r\nx-late: 1\r\n\r\n"
        )
        seen = raw.answer().json()
        assert seen["length"] == 3
        assert [name for name, _ in seen["headers"]] == ["host", "transfer-encoding"]
        assert raw.send(GET % b"/hello").answer().status == 200


@on_both
def test_after_an_expectation_that_was_not_met_the_connection_closes(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(b"POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n")
        got = raw.answer()
        assert (got.status, got.body) == (413, b"too much")
        assert got.header("connection") == "close"


@on_both
def test_the_body_behind_an_early_response_is_read_away(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(b"POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\n")
        assert raw.answer().status == 413
        raw.send(b"n" * 200_000 + GET % b"/hello")
        assert raw.answer().status == 200


@on_both
def test_a_websocket_is_passed_on_with_its_protocol_and_its_code(world: World) -> None:
    world.one()
    with connect(f"ws://127.0.0.1:{world.port}/ws", subprotocols=["chat"]) as ws:  # type: ignore[list-item]
        assert ws.subprotocol == "chat"
        assert ws.response is not None
        assert ws.response.headers["server"] == "uvicorn"
        assert ws.response.headers["x-request-id"]
        for text in ("a", "b" * 200_000):
            ws.send(text)
            assert ws.recv() == f"ws:{text}"
        ws.send("bye")
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4321, "as you wish")


@on_both
def test_frames_that_come_with_the_handshake_are_not_lost(world: World) -> None:
    world.one()
    frame = b"\x81\x82\x00\x00\x00\x00hi"
    with world.raw() as raw:
        raw.send(HANDSHAKE + frame)
        assert raw.answer().status == 101
        assert raw.exactly(7) == b"\x81\x05ws:hi"


def read_some(raw: Raw, size: int) -> None:
    while len(raw.buffer) < size:
        assert raw.more()


@on_both
def test_a_slow_reader_stops_the_producer(world: World) -> None:
    replica = world.one()
    with world.raw() as raw:
        raw.send(GET % b"/endless")
        read_some(raw, 1)
        stopped_at = still(lambda: replica.journal.produced)
        assert stopped_at < 16_000_000  # what sockets hold, and not a chunk more for every second
        read_some(raw, 20_000_000)
        assert replica.journal.produced > stopped_at
    eventually(lambda: replica.admission.statistics().running == 0)


@on_both
def test_a_large_response_arrives_whole_at_a_slow_reader(world: World) -> None:
    world.one()
    body = random.Random(1).randbytes(VAST)
    with world.raw() as raw:
        raw.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

        def unsent() -> int:
            connections = world.edge.server.connections()
            return sum(each.transport.get_write_buffer_size() for each in connections)  # type: ignore[attr-defined]

        eventually(lambda: world.edge.call(unsent))
        assert hashlib.sha256(raw.answer().body).digest() == hashlib.sha256(body).digest()


@on_both
def test_an_app_that_does_not_read_stops_the_uploader(world: World) -> None:
    replica = world.one()
    total = 64_000_000
    with world.raw() as raw:
        raw.send(b"POST /slow-upload HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % total)
        raw.socket.settimeout(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < total:
                sent += raw.socket.send(b"u" * 65_536)
        assert sent < 20_000_000
        raw.socket.settimeout(PATIENCE_S)
        replica.release()
        while sent < total:
            sent += raw.socket.send(b"u" * min(65_536, total - sent))
        assert raw.answer().json() == {"length": total}


@on_both
def test_a_disconnect_behind_pipelined_requests_reaches_the_app(world: World) -> None:
    replica = world.one()
    with world.raw() as raw:
        raw.send(GET % b"/quiet" + (GET % b"/hello") * 500).until(b"first")
    eventually(lambda: "quiet ended" in replica.journal.events)


@on_both
def test_a_response_that_closes_during_an_upload_arrives(world: World) -> None:
    app = FastAPI()

    @app.post("/")
    async def up(request: Request) -> Response:
        read = 0
        async for piece in request.stream():
            read += len(piece)
            if read > 1_000_000:
                break
        return Response("too much", 413, headers={"connection": "close"})

    world.one(app=app)
    for _ in range(20):
        with world.raw() as raw:
            raw.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 8000000\r\n\r\n")
            with contextlib.suppress(OSError):  # it has answered, and reads no more
                raw.send(bytes(8_000_000))
            assert raw.answer().status == 413


@on_both
@pytest.mark.parametrize("query", ["", "?chunked=true"])
def test_an_app_that_closes_the_connection_closes_its_clients(world: World, query: str) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(f"GET /hello HTTP/1.1\r\nhost: a\r\n\r\nGET /last{query} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        assert raw.answer().header("connection") is None
        got = raw.answer()
        assert (got.body, got.header("connection")) == (b"good-bye", "close")
        assert raw.closed()
