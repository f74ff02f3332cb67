"""Open streams at the proxy are reported until their end, and hold no permit."""

import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse

import pytest

from tests.patience import PATIENCE_S

from .world import Killable, World, eventually


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


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda stream, replica: stream.leave(), id="its client goes"),
        pytest.param(lambda stream, replica: replica.stop(), id="its replica dies"),
    ],
)
def test_a_stream_is_in_the_report_from_its_head_until_its_end(
    world: World, end: Callable[[Stream, Killable], None]
) -> None:
    (replica,) = world.killable(1)
    world.route(replica.endpoint())
    with ExitStack() as streams:
        for _ in range(2):
            stream = Stream(world)
            streams.callback(stream.close)
        assert world.load() == (0, 0, 0, 2)
        assert not [name for name, _ in stream.response.getheaders() if name.lower().startswith("x-app-toolkit")]
        end(stream, replica)
        streams.close()
        eventually(lambda: world.load() == (0, 0, 0, 0))


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
def test_the_internal_field_of_a_stream_does_not_reach_clients(world: World, version: str, framing: str) -> None:
    world.says(f"HTTP/1.1 200 OK\r\nx-app-toolkit-stream: open\r\n{framing}".encode())
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", world.port), timeout=PATIENCE_S) as client:
            client.sendall(f"GET / {version}\r\nhost: shop\r\nconnection: close\r\n\r\n".encode())
            answer = b""
            while data := client.recv(65_536):
                answer += data
        assert b"last" in answer
        assert b"x-app-toolkit" not in answer.lower()
    eventually(lambda: world.load() == (0, 0, 0, 0))
