"""Clients that go away, at every stage and in every manner: nothing of them is left, and the next one is served."""

import socket
import struct
from collections.abc import Callable

import pytest

from tests.edge.world import Raw, Served, World, eventually, on_both

GET = b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n"
SMALL = b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n"
LARGE = b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n"
"""A body that is passed on as it comes."""
HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)

Stage = Callable[[World, Served, Raw], None]


def in_the_head(world: World, replica: Served, raw: Raw) -> None:
    raw.send(b"GET /hello HTTP/1.1\r\nhost:")


def in_the_queue(world: World, replica: Served, raw: Raw) -> None:
    world.route()
    raw.send(GET % b"/hello")
    eventually(lambda: world.edge.statistics().waiting == 1)


def in_a_small_body(world: World, replica: Served, raw: Raw) -> None:
    raw.send(SMALL % b"/echo" + b"some")
    eventually(lambda: any(each.is_serving for each in world.edge.server.connections()))


def in_the_body(world: World, replica: Served, raw: Raw) -> None:
    raw.send(LARGE % b"/echo" + b"some")
    eventually(lambda: replica.admission.statistics().running == 1)


def in_a_body_that_is_held_back(world: World, replica: Served, raw: Raw) -> None:
    raw.send(b"POST /wait HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n4\r\nsome\r\n")
    eventually(lambda: "wait began" in replica.journal.events)


def before_the_answer(world: World, replica: Served, raw: Raw) -> None:
    raw.send(GET % b"/wait")
    eventually(lambda: "wait began" in replica.journal.events)


def before_the_answer_with_requests_behind(world: World, replica: Served, raw: Raw) -> None:
    raw.send(GET % b"/wait" + (GET % b"/hello") * 3)
    eventually(lambda: "wait began" in replica.journal.events)


def in_the_answer(world: World, replica: Served, raw: Raw) -> None:
    raw.send(GET % b"/quiet").until(b"first")


def in_an_answer_that_it_does_not_read(world: World, replica: Served, raw: Raw) -> None:
    raw.send(GET % b"/endless").until(b"xxxx")
    eventually(lambda: not any(each.writable for each in world.edge.server.connections()))


def in_a_body_that_is_answered(world: World, replica: Served, raw: Raw) -> None:
    raw.send(LARGE % b"/unread" + b"some")
    assert raw.answer().status == 413


def after_a_refusal(world: World, replica: Served, raw: Raw) -> None:
    raw.send(b"nonsense\r\n\r\n" + b"n" * 1_000)
    assert raw.answer().status == 400


def between_two_requests(world: World, replica: Served, raw: Raw) -> None:
    assert raw.send(GET % b"/hello").answer().status == 200


def in_a_websocket(world: World, replica: Served, raw: Raw) -> None:
    assert raw.send(HANDSHAKE).answer().status == 101


STAGES: list[Stage] = [
    in_the_head,
    in_the_queue,
    in_a_small_body,
    in_the_body,
    in_a_body_that_is_held_back,
    before_the_answer,
    before_the_answer_with_requests_behind,
    in_the_answer,
    in_an_answer_that_it_does_not_read,
    in_a_body_that_is_answered,
    after_a_refusal,
    between_two_requests,
    in_a_websocket,
]


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def close_half(connection: socket.socket) -> None:
    """As plain uvicorn does, we take it for the whole."""
    connection.shutdown(socket.SHUT_WR)


@on_both
@pytest.mark.parametrize("leave", [close, reset, close_half])
@pytest.mark.parametrize("stage", STAGES)
def test_a_client_that_disconnects_leaves_nothing_behind(
    world: World, stage: Stage, leave: Callable[[socket.socket], None]
) -> None:
    replica = world.one()
    with world.raw() as raw:
        stage(world, replica, raw)
        leave(raw.socket)
        eventually(lambda: world.edge.statistics().connections == 0)
    eventually(world.settled)
    replica.release()  # a handler that looks at nothing runs to its end, as under any server
    eventually(lambda: replica.admission.statistics().running == replica.admission.statistics().websockets == 0)
    world.route(replica.endpoint())
    with world.raw() as next_one:
        assert next_one.send(GET % b"/hello").answer().status == 200


@on_both
def test_a_client_that_closes_its_half_gets_no_response(world: World) -> None:
    replica = world.one()
    with world.raw() as raw:
        before_the_answer(world, replica, raw)
        close_half(raw.socket)
        assert raw.closed()
    replica.release()
