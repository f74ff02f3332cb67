"""Writes of one turn of the loop leave together."""

import asyncio
from typing import Any

import pytest

from app_toolkit.wire.corked import MOST, CorkedTransport

pytestmark = pytest.mark.anyio


class Recorder(asyncio.Transport):
    """What reached the transport below, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def write(self, data: Any) -> None:
        self.calls.append(bytes(data))

    def write_eof(self) -> None:
        self.calls.append("eof")

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def is_closing(self) -> bool:
        return "lost" in self.calls

    def get_write_buffer_size(self) -> int:
        return 0


async def a_turn() -> None:
    await asyncio.sleep(0)


async def test_writes_of_one_loop_iteration_are_sent_as_one() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    corked.write(b"head")
    corked.writelines([b"bo", b"dy"])
    assert below.calls == []
    assert corked.get_write_buffer_size() == 8
    await a_turn()
    assert below.calls == [b"headbody"]
    assert corked.get_write_buffer_size() == 0
    corked.write(b"next")
    await a_turn()
    assert below.calls == [b"headbody", b"next"]


async def test_a_large_write_is_not_copied_and_is_sent_at_once() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    corked.write(b"head")
    corked.write(bytes(MOST + 1))
    assert [len(call) for call in below.calls] == [4, MOST + 1]
    await a_turn()
    assert len(below.calls) == 2


async def test_an_urgent_write_is_sent_at_once_after_earlier_writes() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    corked.write(b"head")
    corked.write_through(b"frame")
    assert below.calls == [b"head", b"frame"]
    below.calls.append("lost")
    corked.write_through(b"in vain")
    await a_turn()
    assert below.calls == [b"head", b"frame", "lost"]


async def test_a_new_protocol_writes_after_earlier_writes() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    corked.write(b"head")
    corked.uncork().write(b"frame")
    await a_turn()
    assert below.calls == [b"head", b"frame"]


async def test_buffered_writes_have_a_limit() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    for _ in range(100):
        corked.write(bytes(MOST // 10))
        assert corked.get_write_buffer_size() <= MOST
    await a_turn()
    assert sum(map(len, below.calls)) == 100 * (MOST // 10)


async def test_a_close_comes_after_earlier_writes() -> None:
    for end in ("close", "write_eof"):
        below = Recorder()
        corked = CorkedTransport(below)
        corked.write(b"last")
        getattr(corked, end)()
        assert below.calls[0] == b"last"
        await a_turn()
        assert len(below.calls) == 2


async def test_an_abort_drops_buffered_writes() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    corked.write(b"never")
    corked.abort()
    await a_turn()
    assert below.calls == ["abort"]
    assert corked.get_write_buffer_size() == 0


async def test_a_transport_lost_in_the_same_iteration_is_not_written_to() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    corked.write(b"too late")
    below.calls.append("lost")
    await a_turn()
    assert below.calls == ["lost"]
    assert corked.get_write_buffer_size() == 0


async def test_transports_are_flushed_in_the_order_of_their_first_write() -> None:
    below = Recorder()
    one, other = CorkedTransport(below), CorkedTransport(below)
    one.write(b"1")
    other.write(b"2")
    one.write(b"1")
    await a_turn()
    assert below.calls == [b"11", b"2"]


async def test_a_transport_that_fails_is_aborted_without_effect_on_others() -> None:
    class Broken(Recorder):
        def write(self, data: Any) -> None:
            raise OSError("no")

    broken, sound = Broken(), Recorder()
    corked = CorkedTransport(broken)
    corked.write(b"never")
    CorkedTransport(sound).write(b"here")
    await a_turn()
    assert (broken.calls, sound.calls) == (["abort"], [b"here"])
    assert corked.get_write_buffer_size() == 0
