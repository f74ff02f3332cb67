"""Responses of replicas, byte by byte: their ends, trailers and errors."""

import contextlib
import select
import socket

import httpx
import pytest

from tests.edge.wire import Wire
from tests.edge.world import Raw, World, eventually, on_both

GET = b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n"
OLD = b"GET / HTTP/1.0\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"

# Answers without a body


@pytest.mark.parametrize(
    ("method", "bodyless"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 404 Not Found\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 1000\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ],
)
def test_a_response_without_a_body_leaves_both_connections_for_the_next_one(
    wire: Wire, method: str, bodyless: bytes
) -> None:
    replica = wire.one(bodyless, OK)
    client = wire.client()
    client.send(f"{method} / HTTP/1.1\r\nhost: a\r\n\r\n".encode())
    assert client.response(method).status == int(bodyless[9:12])
    assert client.send(GET % b"/").response().body == b"ok"
    assert len(replica.connections) == 1


# Interim is_serving


def test_early_hints_reach_a_client_of_1_1_without_our_fields_and_no_client_of_1_0(wire: Wire) -> None:
    wire.one(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\nx-app-toolkit-ongoing: 1\r\n\r\n" + OK)
    client = wire.client()
    hint = client.send(GET % b"/").response()
    assert (hint.status, hint.headers) == (103, [("link", "</x>")])
    assert client.response().body == b"ok"
    assert client.send(GET % b"/").response().status == 103
    assert client.response().body == b"ok"
    client = wire.client()
    assert client.send(OLD).response().status == 200


def test_an_unexpected_100_is_not_passed_on(wire: Wire) -> None:
    wire.one(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
    client = wire.client()
    assert client.send(POST).response().status == 200


# Chunks and trailers


def test_trailers_of_a_response_pass_to_clients_that_get_chunks(wire: Wire) -> None:
    replica = wire.one(CHUNKS + b"x-sum: 7\r\n\r\n")
    client = wire.client()
    for _ in range(2):
        assert client.send(GET % b"/").until(b"0\r\nx-sum: 7\r\n\r\n")
    client = wire.client()
    got = client.send(OLD).response()
    assert (got.body, got.header("transfer-encoding")) == (b"ok", None)
    assert client.closed()
    assert len(replica.connections) == 1


@on_both
def test_a_trailer_that_closes_ends_the_connection_also_behind_an_early_response(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(b"POST /unread HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n")
        assert raw.answer().status == 413
        raw.send(b"0\r\nconnection: close\r\n\r\n")
        assert raw.closed()


# Connections to replicas


def test_a_replica_that_closes_behind_its_answer_costs_the_client_nothing(wire: Wire) -> None:
    replica = wire.one(OK[:-6] + b"\r\nconnection: close\r\n\r\nok", close=True)
    client = wire.client()
    for _ in range(3):
        got = client.send(POST).response()
        assert (got.body, got.header("connection")) == (b"ok", None)
    assert len(replica.connections) == 3


def test_a_replica_that_closes_without_a_word_costs_nothing_either(world: World) -> None:
    before = world.edge.statistics().idle
    replica = world.says(OK, close=True)
    with world.raw() as raw:
        for _ in range(3):
            assert raw.send(POST).answer().body == b"ok"
            eventually(lambda: world.edge.statistics().idle == before)
    assert replica.connections == 3


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_a_replica_that_closes_as_the_next_request_arrives(world: World, method: str) -> None:
    """The request had been sent, so only one that may run twice goes to another replica."""
    heads: list[bytes] = []

    def script(connection: socket.socket, head: bytes) -> bool:
        heads.append(head)
        if len(heads) == 1:
            connection.sendall(OK)
        return len(heads) == 1

    stale = world.scripted(script)
    world.route(stale.endpoint())
    request = f"{method} /seen HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n".encode()
    with world.raw() as raw:
        assert raw.send(request).answer().body == b"ok"
        others = world.replica(), world.replica()
        world.route(stale.endpoint(), *(other.endpoint(most=1) for other in others))
        while len(heads) == 1:  # until it is the stale one's turn
            got = raw.send(request).answer()
    assert got.status == {"GET": 200, "PUT": 405, "POST": 502}[method]
    assert len(heads) == 2


def test_a_response_without_a_length_ends_both_connections(world: World) -> None:
    world.says(b"HTTP/1.0 200 OK\r\nx-a: 1\r\n\r\nall there is", close=True)
    with world.raw() as raw:
        raw.send(GET % b"/")
        assert raw.until(b"\r\n").startswith(b"HTTP/1.1 200")
        assert b"\r\nconnection: close\r\n" in raw.until(b"\r\n\r\n")
        assert raw.rest() == b"all there is"


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx: " + b"v" * 70_000,
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    ],
    ids=["nonsense", "two lengths", "a head without end", "an answer too many", "a switch"],
)
def test_an_invalid_response_is_not_passed_on(wire: Wire, said: bytes) -> None:
    wire.one(said)
    client = wire.client()
    got = client.send(POST).response()
    assert (got.status, got.error) == (502, "bad_response")
    assert client.send(GET % b"/-/healthz").response().status == 200


# Answers that break off, and what is none

PUT_OF = b"PUT %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"

SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart"
BEGUN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n"


@pytest.mark.parametrize("said", [SIZED, BEGUN, EVENTS], ids=["sized", "chunked", "events"])
def test_a_client_sees_that_a_response_broke_off(world: World, said: bytes) -> None:
    world.says(said, close=True)
    with httpx.stream("GET", world.url) as answer:
        pieces = answer.iter_bytes()
        assert next(pieces) in (b"part", b"data: 1\n\n")
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)


@on_both
@pytest.mark.parametrize("length", [0, 70_000], ids=["small", "large"])
@pytest.mark.parametrize("how", ["behind-its-head", "with-too-much", "with-a-field-that-is-none"])
def test_an_app_that_fails_before_any_of_its_body_is_a_plain_500(world: World, how: str, length: int) -> None:
    replica = world.one()
    with world.raw() as raw:
        got = raw.send(PUT_OF % (b"/fails/%b" % how.encode(), length) + bytes(length)).answer()
        assert (got.status, got.body) == (500, b"Internal Server Error")
        assert raw.send(GET % b"/-/healthz").answer().status == 200
    assert replica.journal.events == [f"fails {how}"]


@on_both
@pytest.mark.parametrize("length", [0, 70_000], ids=["small", "large"])
def test_a_request_with_an_invalid_response_is_not_retried(world: World, length: int) -> None:
    replica = world.one()
    with world.raw() as raw:
        got = raw.send(PUT_OF % (b"/fails/with-two-lengths", length) + bytes(length)).answer()
    assert (got.status, got.error) == (502, "bad_response")
    assert "cannot be read" in got.body.decode()
    assert replica.journal.events == ["fails with-two-lengths"]


@pytest.mark.parametrize("said", [BEGUN, EVENTS], ids=["chunked", "events"])
def test_a_client_of_1_0_sees_a_reset(world: World, said: bytes) -> None:
    world.says(said, close=True)
    with world.raw() as raw:
        raw.send(OLD).until(said[-11:-2].split(b"\r\n")[-1])
        with pytest.raises(ConnectionResetError):
            raw.rest()


# Early is_serving


@on_both
def test_the_connection_stays_after_a_small_unread_body(world: World) -> None:
    world.one()
    with world.raw() as raw:
        for _ in range(3):
            raw.send(b"POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n" + b"n" * 1_000)
            got = raw.answer()
            assert (got.status, got.header("connection")) == (413, None)
        assert raw.send(GET % b"/hello").answer().status == 200


@on_both
@pytest.mark.parametrize("chunked", [False, True])
def test_the_early_response_to_8_mb_can_be_read_and_then_the_connection_closes(world: World, chunked: bool) -> None:
    world.one()
    length, piece = 8_000_000, b"n" * 80_000
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % length
    with world.raw() as raw:
        raw.send(b"POST /unread HTTP/1.1\r\nhost: a\r\n%b\r\n\r\n" % framing)
        answered = False
        with contextlib.suppress(ConnectionError):
            for _ in range(length // len(piece)):
                raw.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                answered = answered or reads_413(raw)
        # Also where sending failed: what had arrived can be read.
        assert answered or raw.answer().status == 413
        with contextlib.suppress(ConnectionError):
            raw.send(GET % b"/hello")
        assert raw.closed()


@on_both
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_reads_once_it_has_sent_everything_gets_all_of_a_long_early_response(
    world: World, chunked: bool
) -> None:
    world.one()
    length, piece, size = 8_000_000, b"n" * 80_000, 3_000_000
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % length
    with world.raw() as raw:
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        raw.send(b"POST /unread/%d HTTP/1.1\r\nhost: a\r\n%b\r\n\r\n" % (size, framing))
        for _ in range(length // len(piece)):
            raw.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            raw.send(b"0\r\n\r\n")
        got = raw.answer()
        assert (got.status, len(got.body)) == (200, size)


def reads_413(raw: Raw) -> bool:
    """Whether the answer is there, as a client that looks while it sends sees it."""
    return bool(select.select([raw.socket], [], [], 0)[0]) and raw.answer().status == 413
