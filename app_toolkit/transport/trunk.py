"""Many connections between the same two processes, carried by one.

A caller has as many requests under way at a replica as that has slots, each on a connection of its own. Where the
kernel carries these, each is read and written by itself: four system calls for a small request and its answer. A
*trunk* carries them as *circuits*: what several of them write leaves in one write, and is read in one read.

A circuit is an ordinary transport, so whoever speaks over it (HTTP/1.1, as over any connection) need not know. What
travels on the trunk are frames: the number of a circuit, what the frame is, and how many bytes follow it (RFC 9113
does the same with streams, and flow control by credit). Each circuit may have at most `WINDOW` bytes on the way in each
direction, which the reader allows anew as it takes them: so one that is not read holds up nobody else, and what it
holds is bounded.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Protocol, cast

from app_toolkit.transport.sockets import expect_acknowledgement

logger = logging.getLogger("app_toolkit.transport")

ROOM = 256 * 1024
"""Bytes that are read at a time."""

WINDOW = 256 * 1024
"""Bytes of one circuit, in one direction, that its reader has not taken yet."""

HIGH_WATER = 64 * 1024
"""Bytes that a circuit keeps before whoever writes has to wait."""

LARGE = 64 * 1024
"""Bytes from which on a piece is passed on where it lies, not copied."""

TOGETHER = 4
"""Requests, or answers, that are whole and leave at once, not at the end of the turn: so the other end works while this
one does."""

MOST_CIRCUITS = 16_384
"""Circuits of one trunk: far more than a replica has slots."""

LAST_WORDS = 1024 * 1024
"""Bytes that are still read where a write has failed: what a socket holds, and not without end."""

FRAME = Struct("<II")
"""A circuit's number; the kind in the upper 8 bits, and below them a size: of what follows, or allowed anew."""

TRUNK = 0
"""In the place of a number: the trunk itself, whose circuits begin at 1. To close it says that it takes no more."""

DATA, ALLOW, CLOSE, ABORT = (kind << 24 for kind in range(4))
SIZE = 0xFFFFFF
LAST_NUMBER = 0xFFFFFFFF


class Room:
    """Where the connections of one thread read into, one after another."""

    def __init__(self) -> None:
        self.leave()

    def leave(self) -> None:
        """What lies in it is somebody else's now."""
        self.view = memoryview(bytearray(ROOM))


class Talker(Protocol):
    """Who speaks over a circuit, as an `asyncio.Protocol` does.

    Where it opened the circuit it is given views, which are read into again, and else bytes.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: Any) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class Circuit(asyncio.Transport):
    """One of the connections that a trunk carries."""

    def __init__(self, trunk: "Trunk", number: int) -> None:
        super().__init__()
        self._trunk = trunk
        self.number = number
        self._talker: Talker | None = None
        # Written, and not on the trunk yet.
        self._pieces: list[Any] = []
        self._size = 0
        self._allowed = WINDOW
        self._due = False
        #: Whether the other end has yet to hear of it: it takes new numbers in their order only.
        self._opens = False
        self._waits = False
        # Read.
        self._taken = 0
        self._held: deque[bytes] = deque()
        self._reading = True
        self._delivers = False
        self._closing = False
        #: Whether the other end, or the trunk, has ended it; and how.
        self._ended = False
        self._why: Exception | None = None

    def begin(self) -> None:
        """Let the other end know of it, also where nothing is written for now."""
        self._opens = True
        self._is_due()

    # What a talker does

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._talker = cast(Talker, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._talker)

    def write(self, data: Any) -> None:
        if self._closing or not data:
            return
        if type(data) is not bytes:
            # Frames count bytes. What an app takes for bytes may count otherwise, or grow before it leaves.
            data = bytes(data) if type(data) is bytearray else memoryview(data).cast("B")
        self._pieces.append(data)
        self._size += len(data)
        self._is_due()
        if self._size > HIGH_WATER and not self._waits:
            self._waits = True
            assert self._talker is not None
            self._talker.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def flush(self) -> None:
        """What is written is whole, and worth to be sent before the turn ends."""
        self._trunk.is_whole()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._size + self._trunk.unsent

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._deliver_later()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def is_closing(self) -> bool:
        return self._closing or (self._ended and not self._held)

    def close(self) -> None:
        """The other end still gets what was written."""
        if self._closing:
            return
        self._closing = True
        self._held.clear()
        if self._ended:  # and nothing that is still here can go
            self._end(self._why)
            return
        self._allow_again()
        self._is_due()

    def abort(self) -> None:
        self._give_up(None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Of the trunk, but for its socket, which is not the circuit's to touch."""
        return default if name == "socket" else self._trunk.get_extra_info(name, default)

    # What the trunk says

    def received(self, data: memoryview) -> None:
        self._taken += len(data)
        if self._closing:
            self._allow_again()  # else two that close at once would wait for each other
            return
        if not self._reading or self._held:
            if self._taken > WINDOW:
                self._trunk.abort()
            else:
                self._held.append(bytes(data))
            return
        self._hand_in(data if self._trunk.gives_views else bytes(data))
        if self._reading:
            self._allow_again()

    def allowed(self, size: int) -> None:
        self._allowed += size
        if self._size:
            self._is_due()

    def hand_over(self, out: list[Any]) -> None:
        """Put on the trunk what may go."""
        self._due = False
        if self._talker is None:  # it has ended since
            return
        size = min(self._size, self._allowed)
        if size or self._opens:
            self._opens = False
            out.append(FRAME.pack(self.number, size))
            if size == self._size:
                out += self._pieces
                self._pieces.clear()
            else:
                self._cut(size, out)
            self._size -= size
            self._allowed -= size
        if self._size:
            return
        if self._closing:
            self._trunk.say(self.number, CLOSE)
            self._end(None)
        elif self._waits:
            self._waits = False
            assert self._talker is not None
            self._talker.resume_writing()

    def ended(self, why: Exception | None) -> None:
        """Nothing more comes, and nothing more goes; what has come is still taken."""
        self._ended, self._why = True, why
        if not self._held:
            self._end(why)

    def _is_due(self) -> None:
        if not self._due:
            self._due = True
            self._trunk.is_due(self)

    def _cut(self, size: int, out: list[Any]) -> None:
        """Move so many bytes of the pieces."""
        moved = 0
        for piece in self._pieces:
            if len(piece) > size:
                view = memoryview(piece)
                out.append(view[:size])
                self._pieces[moved] = view[size:]
                break
            out.append(piece)
            size -= len(piece)
            moved += 1
        del self._pieces[:moved]

    def _deliver_later(self) -> None:
        if not self._delivers and (self._held or self._ended or self._taken > WINDOW // 2):
            self._delivers = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        """What came while nobody read."""
        self._delivers = False
        while self._held and self._reading and not self._closing:
            self._hand_in(self._held.popleft())
        if self._closing or not self._reading:
            return
        if self._ended:
            self._end(self._why)
        else:
            self._allow_again()

    def _allow_again(self) -> None:
        """Let the other end send what was taken, not for every few bytes."""
        if self._taken > WINDOW // 2:
            self._trunk.say(self.number, ALLOW | self._taken)
            self._taken = 0

    def _hand_in(self, data: Any) -> None:
        assert self._talker is not None
        try:
            self._talker.data_received(data)
        except Exception as error:  # of one circuit, which the others must not pay for
            logger.exception("a circuit is aborted, because who speaks over it failed")
            self._give_up(error)

    def _give_up(self, why: Exception | None) -> None:
        if self._trunk.knows(self):
            self._trunk.say(self.number, ABORT)
        self._end(why)

    def _end(self, why: Exception | None) -> None:
        """Tell the talker, when the loop turns, as any transport does."""
        self._closing = True
        self._trunk.forget(self)
        self._pieces.clear()
        self._held.clear()
        self._size = 0
        talker, self._talker = self._talker, None
        if talker is not None:
            asyncio.get_running_loop().call_soon(talker.connection_lost, why)


class Trunk(asyncio.BufferedProtocol):
    """One end of the connection that carries others.

    A caller opens circuits, a replica accepts them. It ends with its connection, and its circuits with it.
    """

    def __init__(
        self,
        room: Room,
        accept: Callable[[], Talker] | None = None,
        lost: Callable[["Trunk"], None] | None = None,
    ) -> None:
        """`accept` makes who speaks over a circuit that the other end opens; `lost` hears of its end."""
        self._room = room
        self._accept = accept
        self._lost = lost
        self.gives_views = accept is None
        self._transport: asyncio.Transport | None = None
        self._circuits: dict[int, Circuit] = {}
        self._number = 0
        # Reading: a frame's head that came in two, what is left of a frame, and whose that is.
        self._head = b""
        self._left = 0
        self._current: Circuit | None = None
        # Writing.
        self._due: list[Circuit] = []
        self._said: list[bytes] = []
        self._flushes = False
        self._whole = 0
        #: Of what came last: who is alone does not wait for company.
        self._together = 1
        self._blocked = False
        self._retired = False

    # For whoever opens circuits

    @property
    def usable(self) -> bool:
        """Whether it takes another circuit."""
        return (
            self._transport is not None
            and not self._transport.is_closing()
            and not self._retired
            and self._number < LAST_NUMBER
            and len(self._circuits) < MOST_CIRCUITS
        )

    def open(self, talker: Talker) -> None:
        self._number += 1
        self._make(self._number, talker).begin()

    def retire(self) -> None:
        """No more circuits; end with the last one. Who opens them is told."""
        if self._accept is not None and not self._retired:
            self.say(TRUNK, CLOSE)
        self._retired = True
        if not self._circuits and self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def __len__(self) -> int:
        return len(self._circuits)

    # For its circuits

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def knows(self, circuit: Circuit) -> bool:
        return circuit.number in self._circuits

    def is_due(self, circuit: Circuit) -> None:
        """It has something to hand over."""
        self._due.append(circuit)
        self._flush_later()

    def is_whole(self) -> None:
        """A circuit has written an answer, say, to which nothing is to be added in this turn."""
        self._whole += 1
        if self._whole >= self._together:
            self._flush()

    def say(self, number: int, word: int) -> None:
        self._said.append(FRAME.pack(number, word))
        self._flush_later()

    def forget(self, circuit: Circuit) -> None:
        if self._circuits.pop(circuit.number, None) is not None and not self._circuits and self._retired:
            # What it said last is on its way first.
            asyncio.get_running_loop().call_soon(self.retire)

    # What the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            expect_acknowledgement(connection)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._hear_out()
        self._transport = None
        for circuit in list(self._circuits.values()):
            circuit.ended(exc or ConnectionResetError("the trunk was lost"))
        self._circuits.clear()
        self._due.clear()
        if self._lost is not None:
            self._lost(self)

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room.view

    def buffer_updated(self, nbytes: int) -> None:
        self.feed(self._room.view[:nbytes])

    # Reading

    def feed(self, data: memoryview) -> None:
        """Take bytes as they came. They are read into again once it returns."""
        if self._head:
            data = memoryview(self._head + data)
            self._head = b""
        at, end, came = 0, len(data), 0
        while at < end:
            left = self._left
            if left:
                until = min(at + left, end)
                self._left = at + left - until
                circuit = self._current
                if circuit is not None:
                    circuit.received(data[at:until])
                at = until
                came += 1
            elif end - at < FRAME.size:
                self._head = bytes(data[at:])
                break
            else:
                number, word = FRAME.unpack_from(data, at)
                at += FRAME.size
                if word <= SIZE:
                    self._left = word
                    self._current = self._circuits.get(number) or self._accepted(number)
                else:
                    self._heard(number, word)
        self._together = min(max(came, 1), TOGETHER)

    def _heard(self, number: int, word: int) -> None:
        circuit = self._circuits.get(number)
        if circuit is None:
            if number == TRUNK:
                self.retire()
            return  # else it ended here a moment ago
        kind = word & ~SIZE
        if kind == ALLOW:
            circuit.allowed(word & SIZE)
        elif kind == CLOSE:
            circuit.ended(None)
        else:
            circuit.ended(ConnectionResetError("the other end gave the circuit up"))

    def _accepted(self, number: int) -> Circuit | None:
        if self._accept is None or number <= self._number:
            return None  # it ended here a moment ago
        self._number = number
        if self._retired or len(self._circuits) >= MOST_CIRCUITS:
            self.say(number, ABORT)
            return None
        return self._make(number, self._accept())

    def _make(self, number: int, talker: Talker) -> Circuit:
        circuit = self._circuits[number] = Circuit(self, number)
        circuit.set_protocol(cast(asyncio.BaseProtocol, talker))
        talker.connection_made(circuit)
        return circuit

    def _hear_out(self) -> None:
        """A write that fails ends the reading, too. Take what had come before: it may be an answer."""
        assert self._transport is not None
        for data in last_words(self._transport):
            self.feed(memoryview(data))

    # Writing

    def _flush_later(self) -> None:
        if not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._flushes = False
        self._flush()

    def _flush(self) -> None:
        self._whole = 0
        transport = self._transport
        if self._blocked or transport is None or transport.is_closing():
            return
        out: list[Any] = []
        due, self._due = self._due, []
        for circuit in due:
            circuit.hand_over(out)
        if self._said:  # what they had to say comes behind what they had to send
            out += self._said
            self._said.clear()
        if not out:
            return
        if any(len(piece) > LARGE for piece in out):
            transport.writelines(out)
        else:
            transport.write(b"".join(out))


def last_words(transport: asyncio.Transport) -> Iterable[bytes]:
    """What the kernel still holds for a connection that was lost; at most `LAST_WORDS` bytes."""
    left = LAST_WORDS
    connection: socket.socket = transport.get_extra_info("socket")
    # No more came, or a reset behind it, or no descriptor is left to look with.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as rest:
        while left > 0:
            data = rest.recv(min(left, 65_536), socket.MSG_DONTWAIT)
            if not data:
                return
            left -= len(data)
            yield data
