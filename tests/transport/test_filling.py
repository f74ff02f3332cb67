"""A long body is read where it stays, and the connection goes on behind it."""

import asyncio
import socket
from typing import Any

import pytest
import uvloop

from app_toolkit.transport.filling import Filling


class Owner(asyncio.Protocol):
    """Whose connection it is."""

    def __init__(self) -> None:
        self.heard = b""
        self.told: list[str] = []

    def data_received(self, data: Any) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")

    def pause_writing(self) -> None:
        self.told.append("paused")

    def resume_writing(self) -> None:
        self.told.append("resumed")


class Given(asyncio.Transport):
    """Knows who listens to it."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


def test_what_has_come_and_what_comes_are_one_body_and_the_rest_is_the_owners() -> None:
    owner, given, found = Owner(), Given(), list[bytes]()
    filling = Filling(given, owner, b"ab", 6, lambda body: found.append(bytes(body)))
    assert given.protocol is filling
    filling.data_received(b"c")
    filling.get_buffer(-1)[:1] = b"d"
    filling.buffer_updated(1)
    assert not found
    filling.data_received(memoryview(b"efgh"))
    assert found == [b"abcdef"]
    assert given.protocol is owner
    assert owner.heard == b"gh"


def test_no_more_is_read_than_belongs_to_the_body() -> None:
    filling = Filling(Given(), Owner(), b"ab", 6, lambda body: None)
    assert len(filling.get_buffer(65_536)) == 4


def test_what_befalls_the_connection_the_owner_hears() -> None:
    owner = Owner()
    filling = Filling(Given(), owner, b"", 6, lambda body: None)
    filling.pause_writing()
    filling.resume_writing()
    filling.connection_lost(None)
    assert owner.told == ["paused", "resumed", "lost"]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_over_a_socket_it_takes_the_place_of_an_ordinary_protocol_and_gives_it_back(new_loop: Any) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        whole = loop.create_future()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        transport, owner = await loop.create_connection(Owner, sock=ours)
        await loop.sock_sendall(theirs, b"head")
        while owner.heard != b"head":  # noqa: ASYNC110 - a condition that nobody tells of
            await asyncio.sleep(0)
        transport.pause_reading()
        Filling(transport, owner, b"be", 3_000_002, whole.set_result)
        transport.resume_reading()
        await loop.sock_sendall(theirs, b"x" * 3_000_000 + b"next")
        body = await whole
        assert body == b"be" + b"x" * 3_000_000
        while owner.heard != b"headnext":  # noqa: ASYNC110
            await asyncio.sleep(0)
        theirs.close()
        while owner.told != ["lost"]:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(run(), 10))
