"""Open WebSockets when the replica or the proxy ends."""

import contextlib
import socket
import threading
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close
from websockets.sync.client import ClientConnection, connect

from app_toolkit.wire.frames import close_frame
from tests.edge.app import VAST
from tests.edge.world import Raw, World, eventually, on_both
from tests.patience import PATIENCE_S

HANDSHAKE = (
    b"GET %s HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
SWITCHING = (
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n"
)
VAST_HEAD = b"\x82\x7f" + VAST.to_bytes(8, "big")
BYE = b"\x81\x83\x00\x00\x00\x00bye"
"""The text "bye", under a mask of zeros."""


def one_that_can_be_killed(world: World) -> Any:
    (replica,) = world.killable(1)
    world.route(replica.endpoint())
    return replica


def opened(world: World, path: bytes) -> Raw:
    raw = world.raw()
    assert raw.send(HANDSHAKE % path).answer().status == 101
    return raw


def send_for_ever(ws: ClientConnection) -> None:
    while True:
        ws.send("hello" * 1_000)


def test_a_websocket_is_closed_with_1012_if_its_replica_is_killed(world: World) -> None:
    replica = one_that_can_be_killed(world)
    with connect(f"ws://127.0.0.1:{world.port}/ws") as ws:
        ws.send("hello")
        assert ws.recv() == "ws:hello"
        replica.stop()
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv()
    assert closed.value.rcvd == Close(1012, "the replica was lost")


def test_a_websocket_that_sends_is_closed_with_1012_if_its_replica_is_killed(world: World) -> None:
    replica = one_that_can_be_killed(world)
    with connect(f"ws://127.0.0.1:{world.port}/ws") as ws:
        replica.stop()
        with pytest.raises(ConnectionClosed) as closed:
            send_for_ever(ws)
    assert closed.value.rcvd == Close(1012, "the replica was lost")


@on_both
@pytest.mark.parametrize("how", ["returns", "raises", "cancelled"])
def test_a_handler_that_ends_without_closing_ends_the_connection_as_uvicorn_does(world: World, how: str) -> None:
    world.one()
    with connect(f"ws://127.0.0.1:{world.port}/ends/{how}") as ws:
        assert ws.recv() == "hello"
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv()
    assert closed.value.rcvd is None, "there is no close frame, so clients report 1006"


@on_both
def test_a_handler_that_ends_without_accepting_is_answered_500_as_by_uvicorn(world: World) -> None:
    world.one()
    with pytest.raises(InvalidStatus) as denied, connect(f"ws://127.0.0.1:{world.port}/ends/without%20accepting"):
        pass
    assert denied.value.response.status_code == 500


@on_both
@pytest.mark.parametrize("code", [1005, 5000])
def test_an_invalid_close_code_is_sent_as_1011(world: World, code: int) -> None:
    world.one()
    with connect(f"ws://127.0.0.1:{world.port}/closes?code={code}") as ws, pytest.raises(ConnectionClosed) as closed:
        ws.recv()
    assert closed.value.rcvd == Close(1011, "")


def test_nothing_is_put_into_the_middle_of_a_frame(world: World) -> None:
    replica = one_that_can_be_killed(world)
    with opened(world, b"/vast") as raw:
        assert raw.exactly(10) == VAST_HEAD
        replica.stop()
        replica.join()
        payload = raw.rest()
    assert len(payload) < VAST
    assert payload.strip(b"x") == b""


def test_a_close_frame_of_the_replica_is_the_last_frame(world: World) -> None:
    replica = one_that_can_be_killed(world)
    with opened(world, b"/ws") as raw:
        # The client does not answer it, so that the replica still waits when it is killed.
        assert raw.send(BYE).until(b"as you wish") == close_frame(4321, "as you wish")
        replica.stop()
        assert raw.rest() == b""


def test_the_close_frame_of_a_replica_arrives_while_the_client_sends(world: World) -> None:
    protocol_error = close_frame(1002, "reserved bits")
    message = b"\x81\x85\x00\x00\x00\x00hello"
    opened_at: list[socket.socket] = []

    def script(connection: socket.socket, head: bytes) -> bool:
        opened_at.append(connection.dup())
        connection.sendall(SWITCHING)
        return True

    replica = world.scripted(script)
    world.route(replica.endpoint())
    with opened(world, b"/ws") as raw:
        ((client,),) = [eventually(lambda: [each for each in world.edge.server.connections() if not each.is_serving])]

        def close_while_the_proxy_writes() -> None:
            opened_at[0].sendall(protocol_error)
            opened_at[0].shutdown(socket.SHUT_RDWR)
            client.data_received(message)
            raw.send(message * 1_000)  # what nobody reads any more

        world.edge.call(close_while_the_proxy_writes)
        assert raw.rest() == protocol_error
    opened_at[0].close()


@on_both
def test_a_stopping_proxy_closes_websockets_on_both_sides(own: World) -> None:
    replica = own.one()
    with connect(f"ws://127.0.0.1:{own.port}/ws") as ws:
        ws.send("hello")
        assert ws.recv() == "ws:hello"
        stopped = own.edge.stop(timeout=0.1)
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv()
    assert closed.value.rcvd == Close(1012, "the proxy is shutting down")
    stopped.result(PATIENCE_S)
    eventually(lambda: replica.journal.events == ["ws closed DISCONNECTED"])


@on_both
def test_a_stopping_proxy_cuts_a_frame_without_waiting(own: World) -> None:
    one_that_can_be_killed(own)
    with opened(own, b"/vast") as raw:
        assert raw.exactly(10) == VAST_HEAD
        own.edge.stop(timeout=0.1).result(PATIENCE_S)  # although the client reads nothing
        payload = raw.rest()
    assert len(payload) < VAST
    assert payload.strip(b"x") == b""


def test_a_proxy_stops_although_a_replica_does_not_read(own: World) -> None:
    ended = threading.Event()

    def script(connection: socket.socket, head: bytes) -> bool:
        connection.sendall(SWITCHING)
        return not ended.wait(PATIENCE_S)

    own.route(own.scripted(script).endpoint())
    with opened(own, b"/ws") as raw:
        raw.socket.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while True:
                raw.send(BYE * 10_000)
        own.edge.stop(timeout=0.0).result(PATIENCE_S)
        own.edge.close()  # an open connection would keep its event loop from closing
    ended.set()
