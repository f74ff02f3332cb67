"""Open streams at the proxy are reported until their end, and hold no permit."""

import socket
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPResponse

import pytest

from tests.edge.wire import Client, Received, Wire
from tests.edge.world import World, eventually, on_both
from tests.patience import PATIENCE_S


class Stream:
    """A client whose stream has begun."""

    def __init__(self, world: World, headers: Mapping[str, str] | None = None) -> None:
        self.connection = HTTPConnection("127.0.0.1", world.port, timeout=PATIENCE_S)
        self.connection.request("GET", "/events", headers=headers or {})
        self.response: HTTPResponse = self.connection.getresponse()
        assert self.response.readline() == b"data: first\n"

    def leave(self) -> None:
        assert self.connection.sock is not None
        self.connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.response.close()
        self.connection.close()


STREAM = b"HTTP/1.1 200 OK\r\nx-app-toolkit-stream: open\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n"
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda client, request: client.leave(), id="its client leaves"),
        pytest.param(lambda client, request: request.lose(), id="its replica is lost"),
    ],
)
def test_a_stream_is_in_the_report_from_its_head_until_its_end(
    wire: Wire, end: Callable[[Client, Received], None]
) -> None:
    replica = wire.one(STREAM)
    other, client = wire.client().send(GET), wire.client().send(GET)
    assert wire.load == (0, 0, 0, 2)
    assert b"x-app-toolkit" not in client.buffer
    end(client, replica.last)
    assert wire.load == (0, 0, 0, 1)
    other.leave()
    assert wire.load == (0, 0, 0, 0)


@on_both
def test_a_stream_that_ends_is_reported_no_more_and_its_connection_serves_the_next_request(world: World) -> None:
    replica = world.one()
    stream = Stream(world)
    assert world.load() == (0, 0, 0, 1)
    replica.release()
    assert stream.response.read() == b"\n"
    eventually(lambda: world.load() == (0, 0, 0, 0))
    stream.connection.request("GET", "/naps")
    assert stream.connection.getresponse().read() == b"[]"
    stream.close()


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
@pytest.mark.parametrize(
    "framing", ["content-length: 4\r\n\r\nlast", "transfer-encoding: chunked\r\n\r\n4\r\nlast\r\n0\r\n\r\n"]
)
def test_the_internal_field_of_a_stream_does_not_reach_clients(wire: Wire, version: str, framing: str) -> None:
    wire.one(f"HTTP/1.1 200 OK\r\nx-app-toolkit-stream: open\r\n{framing}".encode())
    client = wire.client().send(f"GET / {version}\r\nhost: shop\r\nconnection: close\r\n\r\n".encode())
    response = client.rest()
    assert b"last" in response
    assert b"x-app-toolkit" not in response.lower()
    assert client.closed()
    assert wire.load == (0, 0, 0, 0)
