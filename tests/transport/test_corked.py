"""Writes of one turn of the loop leave together."""

import asyncio
from typing import Any

import pytest

from app_toolkit.transport.corked import MOST, CorkedTransport

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


async def test_what_is_written_in_one_turn_leaves_at_its_end_in_one_piece() -> None:
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


async def test_what_is_large_is_never_copied_and_leaves_at_once_behind_what_came_before() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    corked.write(b"head")
    corked.write(bytes(MOST + 1))
    assert [len(call) for call in below.calls] == [4, MOST + 1]
    await a_turn()
    assert len(below.calls) == 2


async def test_what_need_not_wait_leaves_at_once_behind_what_came_before() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    corked.write(b"head")
    corked.write_through(b"frame")
    assert below.calls == [b"head", b"frame"]
    below.calls.append("lost")
    corked.write_through(b"in vain")
    await a_turn()
    assert below.calls == [b"head", b"frame", "lost"]


async def test_who_takes_over_the_connection_writes_behind_what_was_kept() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    corked.write(b"head")
    corked.uncork().write(b"frame")
    await a_turn()
    assert below.calls == [b"head", b"frame"]


async def test_no_more_is_kept_than_its_bound() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    for _ in range(100):
        corked.write(bytes(MOST // 10))
        assert corked.get_write_buffer_size() <= MOST
    await a_turn()
    assert sum(map(len, below.calls)) == 100 * (MOST // 10)


async def test_an_end_comes_behind_what_was_written() -> None:
    for end in ("close", "write_eof"):
        below = Recorder()
        corked = CorkedTransport(below)
        corked.write(b"last")
        getattr(corked, end)()
        assert below.calls[0] == b"last"
        await a_turn()
        assert len(below.calls) == 2


async def test_an_abort_drops_what_was_kept() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    corked.write(b"never")
    corked.abort()
    await a_turn()
    assert below.calls == ["abort"]
    assert corked.get_write_buffer_size() == 0


async def test_a_transport_that_was_lost_within_the_turn_is_not_written_to() -> None:
    below = Recorder()
    corked = CorkedTransport(below)
    corked.write(b"too late")
    below.calls.append("lost")
    await a_turn()
    assert below.calls == ["lost"]
    assert corked.get_write_buffer_size() == 0


async def test_what_was_written_in_a_turn_to_several_leaves_in_the_order_in_which_they_were_first_written_to() -> None:
    below = Recorder()
    one, other = CorkedTransport(below), CorkedTransport(below)
    one.write(b"1")
    other.write(b"2")
    one.write(b"1")
    await a_turn()
    assert below.calls == [b"11", b"2"]


async def test_one_that_cannot_be_written_to_is_aborted_and_costs_the_others_nothing() -> None:
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
