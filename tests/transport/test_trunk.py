"""Circuits behave as connections of their own, whatever the others of their trunk do."""

import asyncio
import socket
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_toolkit.transport import trunk
from app_toolkit.transport.trunk import ABORT, ALLOW, CLOSE, FRAME, HIGH_WATER, WINDOW, Circuit, Room, Trunk
from tests.patience import until

pytestmark = pytest.mark.anyio


class Talker:
    """One end of a circuit, and all it was told."""

    def __init__(self) -> None:
        self.circuit: Circuit
        self.heard = b""
        self.lost: list[Exception | None] = []
        self.paused = False

    def connection_made(self, transport: Any) -> None:
        self.circuit = transport

    def data_received(self, data: Any) -> None:
        assert not self.lost
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_writing(self) -> None:
        assert self.paused
        self.paused = False


class Wire(asyncio.Transport):
    """One direction of a link: what is written stays on it until it is carried over."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.on_the_way = b""
        self.closed = ""

    def write(self, data: Any) -> None:
        assert not self.closed
        self.writes.append(bytes(data))
        self.on_the_way += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return len(self.on_the_way)

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = "aborted"


class Link:
    """A caller's trunk, a replica's, and the bytes between them."""

    def __init__(self) -> None:
        self.accepted: list[Talker] = []
        self.ended: list[Trunk] = []
        self.caller = Trunk(Room(), lost=self.ended.append)
        self.replica = Trunk(Room(), self._accept, self.ended.append)
        self.there, self.back = Wire(), Wire()
        self.caller.connection_made(self.there)
        self.replica.connection_made(self.back)

    def _accept(self) -> Talker:
        self.accepted.append(Talker())
        return self.accepted[-1]

    def open(self) -> Talker:
        talker = Talker()
        self.caller.open(talker)
        return talker

    def carry(self, there: int = 1 << 30, back: int = 1 << 30) -> None:
        """Bring at most so many bytes over, as the kernel does: cut anywhere."""
        for wire, reader, most in ((self.there, self.replica, there), (self.back, self.caller, back)):
            data, wire.on_the_way = wire.on_the_way[:most], wire.on_the_way[most:]
            if data:
                reader.feed(memoryview(bytearray(data)))

    async def settle(self) -> None:
        """Carry until nobody has anything to say."""
        for _ in range(50):
            await asyncio.sleep(0)
            self.carry()
        assert not self.there.on_the_way
        assert not self.back.on_the_way

    async def pair(self) -> tuple[Talker, Talker]:
        """Both ends of a circuit that has been used."""
        talker = self.open()
        talker.circuit.write(b"hello")
        await self.settle()
        other = self.accepted[-1]
        assert other.heard == b"hello"
        other.heard = b""
        return talker, other


async def test_what_circuits_write_in_one_turn_leaves_in_one_write() -> None:
    link = Link()
    one, two = link.open(), link.open()
    one.circuit.write(b"head")
    two.circuit.writelines([b"a", b"b"])
    one.circuit.write(b"body")
    assert link.there.writes == []
    await asyncio.sleep(0)
    assert link.there.writes == [FRAME.pack(1, 8) + b"headbody" + FRAME.pack(2, 2) + b"ab"]
    link.carry()
    assert [talker.heard for talker in link.accepted] == [b"headbody", b"ab"]


async def test_circuits_are_opened_in_the_order_of_their_numbers_whoever_speaks_first() -> None:
    link = Link()
    quiet, talkative = link.open(), link.open()
    talkative.circuit.write(b"at once")
    await link.settle()
    quiet.circuit.write(b"later")
    await link.settle()
    assert [talker.heard for talker in link.accepted] == [b"later", b"at once"]
    assert (quiet.lost, talkative.lost) == ([], [])


async def test_frames_are_understood_wherever_they_are_cut() -> None:
    link = Link()
    talkers = [link.open() for _ in range(3)]
    for turn in range(4):
        for number, talker in enumerate(talkers):
            talker.circuit.write(b"%d/%d." % (number, turn))
        await asyncio.sleep(0)
    while link.there.on_the_way:
        link.carry(there=1)
    assert [t.heard for t in link.accepted] == [b"".join(b"%d/%d." % (n, turn) for turn in range(4)) for n in range(3)]


async def test_a_circuit_that_is_not_read_holds_up_nobody_else_and_what_it_holds_is_bounded() -> None:
    link = Link()
    stuck, reader = await link.pair()
    free, other = await link.pair()
    reader.circuit.pause_reading()
    written = 0
    while not stuck.paused:
        stuck.circuit.write(b"x" * 10_000)
        written += 10_000
        await link.settle()
    assert written <= WINDOW + HIGH_WATER + 10_000
    assert reader.heard == b""
    free.circuit.write(b"still here")
    await link.settle()
    assert other.heard == b"still here"

    reader.circuit.resume_reading()
    await link.settle()
    assert not stuck.paused
    assert len(reader.heard) == written


async def test_who_is_told_to_wait_is_told_to_go_on_as_the_other_end_reads() -> None:
    link = Link()
    writer, reader = await link.pair()
    whole = bytes(range(256)) * 8_000
    writer.circuit.write(whole)
    assert writer.paused
    await link.settle()
    assert reader.heard == whole
    assert not writer.paused
    assert writer.circuit.get_write_buffer_size() == 0


async def test_one_that_kept_up_holds_no_more_than_a_window_once_it_stops() -> None:
    link = Link()
    writer, reader = await link.pair()
    writer.circuit.write(bytes(20 * WINDOW))
    await link.settle()
    assert len(reader.heard) == 20 * WINDOW
    reader.circuit.pause_reading()
    writer.circuit.write(bytes(20 * WINDOW))
    await link.settle()
    assert sum(map(len, reader.circuit._held)) <= WINDOW
    reader.circuit.resume_reading()
    await link.settle()
    assert len(reader.heard) == 40 * WINDOW


async def test_closing_lets_what_was_written_arrive_however_much_it_is() -> None:
    link = Link()
    writer, reader = await link.pair()
    writer.circuit.write(b"x" * (3 * WINDOW))
    writer.circuit.close()
    writer.circuit.write(b"too late")
    await link.settle()
    assert reader.heard == b"x" * (3 * WINDOW)
    assert (writer.lost, reader.lost) == ([None], [None])
    assert (len(link.caller), len(link.replica)) == (0, 0)


async def test_an_end_comes_after_what_had_come_before_it_also_where_nobody_reads() -> None:
    link = Link()
    writer, reader = await link.pair()
    reader.circuit.pause_reading()
    writer.circuit.write(b"last words")
    writer.circuit.close()
    await link.settle()
    assert (reader.heard, reader.lost) == (b"", [])
    reader.circuit.resume_reading()
    await link.settle()
    assert (reader.heard, reader.lost) == (b"last words", [None])


async def test_aborting_drops_what_was_written_and_tells_the_other_end() -> None:
    link = Link()
    writer, reader = await link.pair()
    writer.circuit.write(b"never mind")
    writer.circuit.abort()
    assert writer.lost == [], "no transport calls back before the loop turns"
    await link.settle()
    assert writer.lost == [None]
    assert reader.heard == b""
    assert isinstance(reader.lost[0], ConnectionResetError)
    reader.circuit.abort()
    await link.settle()
    assert len(reader.lost) == 1


async def test_what_was_on_its_way_to_a_circuit_that_has_ended_is_passed_over() -> None:
    link = Link()
    writer, reader = await link.pair()
    reader.circuit.write(b"an answer")
    await asyncio.sleep(0)
    writer.circuit.abort()
    await link.settle()
    assert writer.heard == b""
    _, other = await link.pair()
    assert other.lost == []
    assert len(link.accepted) == 2, "nothing was taken for a new circuit"


@pytest.mark.parametrize("error", [None, BrokenPipeError()])
async def test_with_the_trunk_all_its_circuits_are_lost(error: Exception | None) -> None:
    link = Link()
    talkers = [await link.pair() for _ in range(3)]
    waiting = talkers[0][0]
    waiting.circuit.pause_reading()
    talkers[0][1].circuit.write(b"the end of an answer")
    await link.settle()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link.there._extra["socket"] = ours  # type: ignore[attr-defined]
        theirs.send(FRAME.pack(2, 5) + b"heard")
        link.caller.connection_lost(error)
    await asyncio.sleep(0)
    one, two, three = (talker for talker, _ in talkers)
    assert (one.heard, one.lost) == (b"", []), "it has not taken yet what came"
    one.circuit.resume_reading()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert one.heard == b"the end of an answer"
    assert two.heard == (b"" if error is None else b"heard"), "where a write fails, what has come is read"
    assert all(isinstance(talker.lost[0], OSError) for talker in (one, two, three))
    assert link.ended == [link.caller]
    assert not link.caller.usable


class Sipping(Talker):
    """Takes a piece, and no other until it asks for one."""

    def data_received(self, data: Any) -> None:
        super().data_received(data)
        self.circuit.pause_reading()


async def test_who_takes_the_last_of_what_came_and_pauses_hears_of_the_end_as_soon_as_it_reads_on() -> None:
    link = Link()
    sipping = Sipping()
    link.caller.open(sipping)
    sipping.circuit.pause_reading()
    await link.settle()
    link.accepted[0].circuit.write(b"all of it")
    link.accepted[0].circuit.close()
    await link.settle()
    sipping.circuit.resume_reading()
    await link.settle()
    assert (sipping.heard, sipping.lost) == (b"all of it", [])
    sipping.circuit.resume_reading()
    await link.settle()
    assert sipping.lost == [None]


@pytest.mark.parametrize("gone", [True, False])
async def test_who_closes_what_has_ended_already_hears_of_its_end(gone: bool) -> None:
    link = Link()
    leaving, staying = await link.pair()
    staying.circuit.pause_reading()
    staying.circuit.write(b"x" * (2 * WINDOW))
    leaving.circuit.pause_reading()
    leaving.circuit.write(b"unread")
    await link.settle()
    if gone:
        link.replica.connection_lost(None)
    else:
        leaving.circuit.abort()
    await link.settle()
    assert staying.lost == []
    staying.circuit.close()
    await asyncio.sleep(0)
    assert isinstance(staying.lost[0], ConnectionResetError)
    assert len(link.replica) == 0


async def test_a_trunk_that_cannot_be_heard_out_is_lost_all_the_same() -> None:
    link = Link()
    talker, _ = await link.pair()
    closed = socket.socket()
    closed.close()
    link.there._extra["socket"] = closed  # type: ignore[attr-defined]
    link.caller.connection_lost(BrokenPipeError())
    await asyncio.sleep(0)
    assert isinstance(talker.lost[0], BrokenPipeError)
    assert link.ended == [link.caller]


async def test_one_circuit_too_many_is_refused_and_hurts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link()
    first, _ = await link.pair()
    monkeypatch.setattr(trunk, "MOST_CIRCUITS", 1)
    assert not link.caller.usable
    second = link.open()
    second.circuit.write(b"one more")
    await link.settle()
    assert len(link.accepted) == 1
    assert isinstance(second.lost[0], ConnectionResetError)
    assert first.lost == []


async def test_a_retired_trunk_takes_no_more_and_ends_with_its_last_circuit() -> None:
    link = Link()
    writer, reader = await link.pair()
    link.replica.retire()
    late = link.open()
    late.circuit.write(b"late")
    await link.settle()
    assert isinstance(late.lost[0], ConnectionResetError)
    assert not link.back.closed
    reader.circuit.write(b"the last answer")
    reader.circuit.close()
    await link.settle()
    assert writer.heard == b"the last answer"
    assert link.back.closed == "closed"


class Failing(Talker):
    """Cannot take what comes."""

    def data_received(self, data: Any) -> None:
        raise LookupError("no such thing")


async def test_a_talker_that_fails_costs_its_own_circuit_and_no_other() -> None:
    link = Link()
    one, other = await link.pair()
    at_once, later = Failing(), Failing()
    for failing in (at_once, later):
        link.caller.open(failing)
        failing.circuit.write(b"hello")
    later.circuit.pause_reading()
    await link.settle()
    for talker in (*link.accepted[1:], other):
        talker.circuit.write(b"answer")
    await link.settle()
    later.circuit.resume_reading()
    await link.settle()
    assert (one.heard, one.lost) == (b"answer", [])
    for failing, peer in zip((at_once, later), link.accepted[1:], strict=True):
        assert [type(why) for why in failing.lost] == [LookupError]
        assert [type(why) for why in peer.lost] == [ConnectionResetError]
    assert len(link.caller) == len(link.replica) == 1


async def test_who_opens_circuits_hears_that_no_more_are_taken_and_keeps_those_it_has() -> None:
    link = Link()
    caller, replica = await link.pair()
    link.replica.retire()
    await link.settle()
    assert not link.caller.usable
    replica.circuit.write(b"the last answer")
    await link.settle()
    assert (caller.heard, caller.lost) == (b"the last answer", [])
    caller.circuit.close()
    await link.settle()
    assert (link.there.closed, link.back.closed) == ("closed", "closed")


async def test_who_sends_more_than_is_allowed_loses_the_trunk() -> None:
    link = Link()
    _, reader = await link.pair()
    reader.circuit.pause_reading()
    flood = FRAME.pack(1, 200_000) + b"x" * 200_000
    link.replica.feed(memoryview(flood))
    assert not link.back.closed
    link.replica.feed(memoryview(flood))
    assert link.back.closed == "aborted"


async def test_nothing_is_written_while_the_kernel_takes_nothing() -> None:
    link = Link()
    writer, reader = await link.pair()
    link.caller.pause_writing()
    before = list(link.there.writes)
    writer.circuit.write(b"later")
    await asyncio.sleep(0)
    assert link.there.writes == before
    link.caller.resume_writing()
    link.carry()
    assert reader.heard == b"later"


async def test_what_is_written_is_counted_in_bytes_and_stays_as_it_was() -> None:
    link = Link()
    one, other = await link.pair()
    two, another = await link.pair()
    numbers, growing = memoryview(array("d", [1.0, 2.0])), bytearray(b"before")
    one.circuit.write(numbers)
    one.circuit.write(growing)
    growing += b" and after"
    with pytest.raises(TypeError):
        one.circuit.write("text")
    two.circuit.write(b"unharmed")
    await link.settle()
    assert other.heard == numbers.tobytes() + b"before"
    assert another.heard == b"unharmed"


async def test_a_circuit_says_where_it_leads_and_keeps_its_trunks_socket_to_itself() -> None:
    link = Link()
    talker = link.open()
    link.there._extra.update(sockname="/run/replica.sock", socket=object())  # type: ignore[attr-defined]
    assert talker.circuit.get_extra_info("sockname") == "/run/replica.sock"
    assert talker.circuit.get_extra_info("socket") is None
    assert not talker.circuit.can_write_eof()


def test_no_frame_is_larger_than_its_size_can_say() -> None:
    assert WINDOW <= trunk.SIZE
    assert len({ALLOW, CLOSE, ABORT}) == 3


@asynccontextmanager
async def over_a_socket() -> AsyncIterator[tuple[Trunk, list[Talker]]]:
    """Two trunks on the two ends of a real one."""
    loop = asyncio.get_running_loop()
    accepted: list[Talker] = []

    def accept() -> Talker:
        accepted.append(Echo())
        return accepted[-1]

    lost: list[Trunk] = []
    ours, theirs = socket.socketpair()
    mine, caller = await loop.create_connection(lambda: Trunk(Room(), lost=lost.append), sock=ours)
    other, _ = await loop.create_connection(lambda: Trunk(Room(), accept, lost.append), sock=theirs)
    try:
        yield caller, accepted
    finally:
        mine.abort()
        other.abort()
        await until(lambda: len(lost) == 2)


class Echo(Talker):
    def data_received(self, data: Any) -> None:
        super().data_received(data)
        self.circuit.write(data)


async def test_many_circuits_echo_large_bodies_over_one_socket_at_the_same_time() -> None:
    async with over_a_socket() as (caller, accepted):
        talkers = [Talker() for _ in range(8)]
        for number, talker in enumerate(talkers):
            caller.open(talker)
            talker.circuit.write(bytes([number]) * 2_000_000)
        await until(lambda: all(len(talker.heard) == 2_000_000 for talker in talkers))
        assert [set(talker.heard) for talker in talkers] == [{number} for number in range(8)]
        assert len(accepted) == 8


# A random world: whatever the two ends do, and however the bytes are cut

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "write", "write", "write", "pause", "resume", "close", "abort", "carry", "turn"]),
        st.integers(0, 7),
        st.sampled_from([1, 9, 100, HIGH_WATER, WINDOW, 2 * WINDOW + 3]),
    ),
    max_size=40,
)


class Fate:
    """What must become of one direction of one circuit."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_every_circuit_gets_what_was_written_in_order_and_ends_once(steps: list[Step]) -> None:
    asyncio.run(_live(steps))


async def _live(steps: list[Step]) -> None:
    link = Link()
    ends: list[Talker] = []
    fates: dict[Talker, Fate] = {}
    peers: dict[Talker, Talker] = {}
    aborted: set[Talker] = set()

    def acting(index: int) -> Talker | None:
        alive = [end for end in ends if not end.lost and not end.circuit.is_closing()]
        return alive[index % len(alive)] if alive else None

    async def opened() -> None:
        quiet = link.open()  # nobody speaks over it until a step says so
        one, other = await link.pair()
        for end, peer in ((quiet, link.accepted[-2]), (one, other)):
            ends.extend((end, peer))
            fates[end], fates[peer] = Fate(), Fate()
            peers[end], peers[peer] = peer, end

    acts: dict[str, Callable[[Talker, int], None]] = {
        "pause": lambda end, _: end.circuit.pause_reading(),
        "resume": lambda end, _: end.circuit.resume_reading(),
        "close": lambda end, _: end.circuit.close(),
        "abort": lambda end, _: end.circuit.abort(),
    }
    for act, index, size in steps:
        if act == "open":
            await opened()
        elif act == "carry":
            link.carry(size, size)
        elif act == "turn":
            await asyncio.sleep(0)
        elif (end := acting(index)) is not None:
            if act == "write":
                data = bytes([index]) * size
                end.circuit.write(data)
                fates[end].written += data
            else:
                acts[act](end, size)
                if act == "abort":
                    aborted.add(end)
                if act == "close":
                    fates[end].closed = True
        for end in ends:
            assert sum(map(len, end.circuit._held)) <= WINDOW
    for end in ends:
        end.circuit.resume_reading()
    await link.settle()
    for end in ends:
        fate, peer = fates[end], peers[end]
        assert fate.written.startswith(peer.heard)
        # Whoever ends a circuit reads no more; all else arrives.
        if end not in aborted and peer not in aborted and not fates[peer].closed:
            assert peer.heard == fate.written
        over = bool({end, peer} & aborted) or fate.closed or fates[peer].closed
        assert len(end.lost) == over
    alive = sum(not end.lost for end in ends)
    assert (len(link.caller), len(link.replica)) == (alive / 2, alive / 2)
