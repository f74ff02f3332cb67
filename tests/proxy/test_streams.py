"""Open streams at the proxy: they hold no turn, are reported, and end once."""

import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse

import httpx
import pytest

from tests.patience import PATIENCE_S

from .world import Killable, Served, World, eventually


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


def test_requests_use_the_slots_beside_open_streams_at_the_same_replica(world: World) -> None:
    replica = world.one(most=1)
    streams = [Stream(world) for _ in range(3)]
    assert httpx.get(f"{world.url}/naps").json() == []
    assert (replica.gate.statistics().ongoing, replica.gate.statistics().streams) == (0, 3)
    for stream in streams:
        stream.close()
    eventually(lambda: replica.gate.statistics().streams == 0)


def test_a_stream_for_which_there_is_no_place_holds_its_turn_and_the_refusal_says_why(world: World) -> None:
    replica: Served = world.replica(most=1)
    replica.gate.live.max_open_streams = 1
    world.route(replace(replica.endpoint(), max_open_streams=1), wait_s=0.1)
    one, more = Stream(world), Stream(world)
    assert world.load() == (0, 1, 0, 1)
    refused = httpx.get(f"{world.url}/naps")
    assert (refused.status_code, refused.json()["error"]) == (503, "queue_timeout")
    assert refused.json()["detail"] == (
        "no replica of shop/web had room within 0.1 s: "
        "max_ongoing_requests is 1; 1 of 1 max_open_streams are open, and more streams hold slots"
    )
    more.close()
    eventually(lambda: world.load() == (0, 0, 0, 1))
    assert httpx.get(f"{world.url}/naps").json() == []
    one.close()


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
@pytest.mark.parametrize(
    "framing", ["content-length: 4\r\n\r\nlast", "transfer-encoding: chunked\r\n\r\n4\r\nlast\r\n0\r\n\r\n"]
)
def test_the_field_of_a_stream_never_crosses_the_edge_and_leaves_nothing_behind(
    world: World, version: str, framing: str
) -> None:
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
