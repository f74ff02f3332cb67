"""Pooled HTTP/1.1 connections to replicas: one exchange at a time, then reused or aborted.

A connection is one of the kernel's, or a circuit of the trunk to that replica. What is small and already here goes by
circuit; a body that is still to come, and a WebSocket, have the kernel's flow control.
"""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from app_toolkit.errors import AnswerUnreadable, NotRead, ReplicaGone
from app_toolkit.transport.corked import CorkedTransport
from app_toolkit.transport.filling import FILLED, Filling
from app_toolkit.transport.hop import CLOSES, INTERNAL_PREFIX, REFUSED, SHEET, STREAM
from app_toolkit.transport.preface import Carries, Unproven, first_line, introduce
from app_toolkit.transport.sheet import Following, Sheets
from app_toolkit.transport.sockets import check_peer, close_in_children, keep_alive, send_ahead
from app_toolkit.transport.trunk import LARGE, Circuit, Room, Trunk, last_words
from app_toolkit.types import Address, Header

logger = logging.getLogger("app_toolkit.transport")

MAX_HEAD = 64 * 1024
DIAL_S = 5.0
"""A replica accepts in milliseconds; a black hole on the network must not hold a request for longer."""

IDLE_S = 300.0
"""Far below the keep-alive timeout of a replica, because only the pool may close an idle connection."""

HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"upgrade"))

Extent = Literal["none", "sized", "chunked", "until_close"]
"""How the end of a body is known."""


@dataclass(slots=True)
class Answer:
    """The head of a response. `fields` go end to end, names in lower case; `refusal` is the gate's word."""

    status: int
    status_line: bytes
    fields: list[Header]
    extent: Extent
    refusal: bytes | None
    reusable: bool
    length: int | None = None
    """Bytes of the body, where it announces them, and nothing but them, in digits."""
    sheet: bytes | None = None
    """What its field says of that which the body comes on."""
    stream: bytes | None = None
    """`hop.OPEN` or `hop.KEPT` if the replica says that the body is a stream."""
    closes: bool = False
    """The app has said `Connection: close`: its client's connection is to be closed."""


class Listener(Protocol):
    """The other side of a connection during one exchange.

    The calls come in this order: `informed` any number of times, `answered` once, `received` any number of
    times, `ended` once. `lost` comes instead of what is missing. After either, or an `abort`, nothing comes.
    """

    def informed(self, answer: Answer) -> None:
        """An interim answer, 1xx without 101."""

    def answered(self, answer: Answer) -> None: ...

    def received(self, data: bytes | memoryview) -> bool:
        """Bytes of the body, as they came or decoded; after 101, bytes of the tunnel.

        Gives whether nobody needs them any more: a view is read into again.
        """

    def ended(self, reusable: bool) -> None:
        """The answer is complete. A connection that is reusable may go back to the pool."""

    def lost(self, error: ReplicaGone) -> None:
        """The connection broke, or what came over it was not HTTP."""

    def writing_paused(self, paused: bool) -> None:
        """The replica does not take what is written, or does again."""


class _Framing:
    """What the parser says of one response; bytes of the body are none of its business."""

    def __init__(self) -> None:
        self.fields: list[Header] = []
        self.in_head = True
        self.ended = False
        self.excess = False
        self.body: list[bytes] = []

    def renew(self) -> None:
        self.fields = []
        self.in_head = True
        self.ended = self.excess = False

    def on_message_begin(self) -> None:
        self.excess = self.ended

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # what comes later is a trailer
            self.fields.append((name.lower(), value))

    def on_message_complete(self) -> None:
        self.ended = True


class _Decoding(_Framing):
    """The same, for listeners that want the body without its framing."""

    def on_body(self, data: bytes) -> None:
        self.body.append(data)


class Connection(asyncio.BufferedProtocol):
    """One connection to one replica.

    * It serves one exchange at a time, from `begin` until the listener hears its end or ends it itself.
    * An answer that nobody asked for, and a byte beyond the end of one, end the connection.
    """

    def __init__(
        self, address: Address, idle_lost: Callable[["Connection"], None], room: Room, sheets: Sheets | None = None
    ) -> None:
        """`sheets`: where those of its replica are found, if this machine has it."""
        # For its life
        self.address = address
        self._room = room
        self._sheets = sheets
        #: The replica's, by name, and where it lies here.
        self._sheet: tuple[bytes, memoryview] | None = None
        self.idle_since = 0.0
        self._idle_lost = idle_lost
        self._transport: asyncio.Transport | None = None
        self._framing = _Framing()
        self._parser: HttpResponseParser | None = None
        # For one exchange
        self._listener: Listener | None = None
        self._bodyless = False
        self._whole = 0
        #: Bytes of the body that are still to come, where they are counted here and not by the parser.
        self._left: int | None = None
        self._head = b""
        self._answer: Answer | None = None
        #: By which a sheet is known that was asked for.
        self._sign: bytes | None = None
        #: The answer that comes on a sheet, and whether it is complete, but not with the client.
        self._following: Following | None = None
        self._lying = False

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_circuit(self) -> bool:
        return isinstance(self._transport, Circuit)

    # What a listener does

    def ask_for_sheet(self, *, again: bool) -> bytes | None:
        """The sign to ask for one with, in the exchange that has begun; `again`: it may be run twice. None: do not."""
        if self._sheets is None or not self._sheets.asks(self.address, again=again):
            return None
        self._sign = self._sheets.sign
        return self._sign

    def begin(self, listener: Listener, *, head_only: bool = False, decode: bool = False, whole: int = 0) -> None:
        """The next answer is for `listener`; `head_only`: to a HEAD; `decode`: without the body's framing.

        `whole`: a long body of known length is given in one piece, which the listener may keep, up to so many bytes.
        """
        self._listener = listener
        self._sign = None
        self._whole = whole
        self._bodyless = head_only
        self._head = b""
        self._answer = None
        self._following = None
        self._lying = False
        if decode is not isinstance(self._framing, _Decoding):
            self._framing = _Decoding() if decode else _Framing()
            self._parser = None
        self._left = None
        self._framing.renew()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pass_on(self, data: bytes) -> None:
        """Write what is said in a tunnel."""
        if self._transport is not None:
            assert isinstance(self._transport, CorkedTransport)
            self._transport.write_through(data)

    def write_all(self, pieces: Sequence[bytes]) -> None:
        transport = self._transport
        if transport is not None:
            transport.writelines(pieces)
            if isinstance(transport, Circuit):
                transport.flush()

    def pause_reading(self) -> None:
        if self.usable:
            assert self._transport is not None
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.usable:
            assert self._transport is not None
            self._transport.resume_reading()
        if self._lying and self._listener is not None:
            self._end(self._listener)

    def abort(self) -> None:
        """End the exchange and the connection at once; the replica sees its client go away."""
        self._listener = None
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the exchange, and the connection once what was written has left."""
        self._listener = None
        if self._transport is not None:
            self._transport.close()

    # What the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        own = cast(asyncio.Transport, transport)
        self._transport = own if isinstance(own, Circuit) else CorkedTransport(own)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.is_circuit:
            self._hear_out()
        lost = self._why_lost(exc)
        self._transport = self._parser = None
        listener, self._listener = self._listener, None
        if listener is None:
            self._idle_lost(self)
        elif self._lying or (exc is None and self._answer is not None and self._answer.extent == "until_close"):
            listener.ended(reusable=False)
        else:
            listener.lost(lost)

    def _why_lost(self, exc: Exception | None) -> ReplicaGone:
        # A Unix socket that closes, or was never accepted, with unread bytes in it is reset (unix(7)).
        unread = isinstance(exc, ConnectionResetError) and self.address.startswith("unix:") and not self.is_circuit
        if unread and self._answer is None and not self._head:
            return NotRead(f"the replica at {self.address} ended before it had read the request")
        return ReplicaGone(f"the connection to {self.address} ended before the answer did")

    def pause_writing(self) -> None:
        if self._listener is not None:
            self._listener.writing_paused(True)

    def resume_writing(self) -> None:
        if self._listener is not None:
            self._listener.writing_paused(False)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room.view

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._room.view[:nbytes])

    def data_received(self, data: bytes | memoryview) -> None:
        listener = self._listener
        if listener is None:
            self.abort()
        elif len(data) >= LARGE and self._answer is not None and self._answer.status != 101:
            self._read_body(data, listener)
        else:
            self._read(bytes(data), listener)

    # Reading an answer

    def _read(self, data: bytes, listener: Listener) -> None:
        if self._answer is None:
            data = self._read_heads(self._head + data if self._head else data)
            if self._answer is None or self._listener is not listener:
                return
        if self._answer.status == 101:
            if data:
                listener.received(data)
            return
        self._read_body(data, listener)

    def _hear_out(self) -> None:
        """A write that fails ends the reading, too. Take what had come before: a close frame, or the answer of who does
        not want the rest of a body."""
        if self._transport is None:
            return
        for data in last_words(self._transport):
            if self._listener is None:
                return
            self._read(data, self._listener)

    def _read_heads(self, data: bytes) -> bytes:
        """Take heads up to the final one; gives what follows it."""
        while self._answer is None:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._head = data
                if len(data) > MAX_HEAD:
                    self._broken(f"the head of an answer is {len(data)} bytes long, the limit is {MAX_HEAD}")
                return b""
            head, data = data[:end], data[end:]
            answer = self._read_head(head)
            listener = self._listener
            if answer is None or listener is None:
                return b""
            if answer.status >= 200 or answer.status == 101:
                self._answer = answer
                if answer.sheet is not None and not self._follow(answer.sheet, answer):
                    return b""
                listener.answered(answer)
                if self._whole and self._listener is listener:
                    data = self._fill(answer, data)
            else:
                self._framing.renew()
                listener.informed(answer)
                if self._listener is None:
                    return b""
        return data

    def _follow(self, told: bytes, answer: Answer) -> bool:
        """The body comes on a sheet, unless that is an app's own idea. Gives whether the answer can be read."""
        sign, _, name = told.partition(b"/")
        if self._sheets is None or self._sign != sign or answer.length is None or self._bodyless:
            return True
        try:
            if self._sheet is None or self._sheet[0] != name:
                self._sheet = name, self._sheets.open(self.address, name)
            self._following = Following(self._sheet[1], answer.length)
        except (OSError, ValueError) as error:
            self._broken(f"the sheet of an answer cannot be read: {error}", ReplicaGone)
            return False
        self._parser = None  # it would wait for the body
        return True

    def _fill(self, answer: Answer, begun: bytes) -> bytes:
        """Read a long body of known length into one place, for who has it decoded; gives what is left to read."""
        size = answer.length or 0
        if not FILLED <= size <= self._whole or len(begun) >= size or self._transport is None:
            return begun
        self._parser = None  # it would wait for the body
        Filling(self._transport, self, begun, size, self._filled)
        return b""

    def _filled(self, body: bytearray) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            assert self._answer is not None
            listener.received(memoryview(body))
            listener.ended(self._answer.reusable and self.usable)

    def _read_head(self, head: bytes) -> Answer | None:
        return (self._read_plain_head(head) if self.is_circuit else None) or self._parse_head(head)

    def _read_plain_head(self, head: bytes) -> Answer | None:
        """What our own server writes needs no parser, unless the body is framed; None: it does.

        What an app may have written into it that is not plain is the parser's to judge.
        """
        status_line, *lines = head[:-4].split(b"\r\n")
        code = status_line[9:12]
        if not (status_line.startswith(b"HTTP/1.1 ") and code.isdigit()):
            return None
        status = int(code)
        fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        answer = _read_fields(status, status_line, fields, self._bodyless)
        if answer.extent != "until_close" and answer.length is None:
            return None
        if self._bodyless or status in (204, 304):
            answer.extent, self._left = "none", 0
        elif status >= 200 or status == 101:
            if answer.length is None:
                return None
            self._left = answer.length
            if not self._left:
                answer.extent = "none"
        return answer

    def _parse_head(self, head: bytes) -> Answer | None:
        if self._parser is None:
            self._parser = HttpResponseParser(self._framing)
        try:
            self._parser.feed_data(head)
        except HttpParserUpgrade:
            pass  # after a 101 nothing more goes through the parser
        except HttpParserError as error:
            self._broken(f"an answer is not HTTP: {error}")
            return None
        if not head.startswith(b"HTTP/1."):
            self._broken("an answer does not begin with its version")
            return None
        self._framing.in_head = False
        # A replica that speaks 1.0 is answered for by us, who speak 1.1.
        status_line = b"HTTP/1.1" + head[8 : head.index(b"\r\n")]
        answer = _read_fields(self._parser.get_status_code(), status_line, self._framing.fields, self._bodyless)
        answer.reusable = answer.reusable and head.startswith(b"HTTP/1.1")
        if self._bodyless and answer.status >= 200:
            # The parser would wait for the body that the length announces, and take the next answer for it.
            answer.extent = "none"
            self._framing.ended = True
            self._parser = None
        elif self._framing.ended:
            answer.extent = "none"
        return answer

    def _read_body(self, data: bytes | memoryview, listener: Listener) -> None:
        framing = self._framing
        if self._following is not None:
            self._read_words(bytes(data), self._following, listener)
            return
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self._broken("more came than the answer")
                return
            framing.ended = self._left == 0
            if data and not listener.received(data) and isinstance(data, memoryview):
                self._room.leave()
            self._end(listener)
            return
        if data:
            if self._parser is None:
                framing.excess = True
            else:
                try:
                    self._parser.feed_data(data)
                except HttpParserError as error:
                    self._broken(f"the body of an answer is not HTTP: {error}")
                    return
            if framing.excess:
                self._broken("more came than the answer")
                return
            if framing.body:
                data = b"".join(framing.body)
                framing.body.clear()
            elif isinstance(framing, _Decoding):
                data = b""
            if data and not listener.received(data) and isinstance(data, memoryview):
                self._room.leave()
        self._end(listener)

    def _read_words(self, data: bytes, following: Following, listener: Listener) -> None:
        try:
            piece = following.feed(data)
        except ValueError as error:
            self._broken(str(error), ReplicaGone)
            return
        taken = not piece or listener.received(piece)
        self._framing.ended = following.complete
        if following.complete and not taken and self._listener is listener:
            self._lying = True  # until whoever takes it wants more
        else:
            self._end(listener)

    def _end(self, listener: Listener) -> None:
        """The answer ends where it is whole, and nobody has ended it before."""
        if self._framing.ended and self._listener is listener:
            assert self._answer is not None
            self._listener = None
            listener.ended(self._answer.reusable and self.usable)

    def _broken(self, reason: str, kind: type[ReplicaGone] = AnswerUnreadable) -> None:
        """`kind`: what that says of the replica; a sheet is lost with it, anything else is what it has written."""
        listener, self._listener = self._listener, None
        if self._transport is not None:
            self._transport.abort()
        if listener is not None:
            listener.lost(kind(f"{self.address}: {reason}"))


def _read_fields(status: int, status_line: bytes, fields: list[Header], bodyless: bool) -> Answer:
    """Sort the fields: those of this hop are taken out, and say where the body ends, if it can have one."""
    answer = Answer(status, status_line, [], "until_close", None, True)
    kept = answer.fields
    for field in fields:
        name = field[0]
        if name == b"content-length":
            once = answer.extent == "until_close"
            answer.length = int(field[1]) if once and field[1].isdigit() else None
            if answer.extent != "chunked":
                answer.extent = "sized"
        elif name == b"transfer-encoding":
            answer.extent, answer.length = "chunked", None
        elif name in HOP_BY_HOP:
            if name == b"connection" and b"close" in field[1].lower():
                answer.reusable = False
            if status not in (101, 426):  # the two that name a protocol to the client
                continue
        elif name.startswith(INTERNAL_PREFIX):
            if status == 503 and name == REFUSED:  # of an app's own 503 the gate takes it away
                answer.refusal = field[1]
            elif name == SHEET:
                answer.sheet = field[1]
            elif name == STREAM:
                answer.stream = field[1]
            elif name == CLOSES:
                answer.closes = True
            continue
        kept.append(field)
    if answer.extent == "until_close":
        answer.reusable = answer.reusable and (bodyless or status in (204, 304))
    return answer


class _Way:
    """The connections to one replica that wait for their next exchange, the one used last at the right end."""

    def __init__(self, most: int, trunks: bool) -> None:
        self.most = most
        self.trunks = trunks
        self.connections: deque[Connection] = deque()
        self.circuits: deque[Connection] = deque()
        self.trunk: Trunk | None = None

    def idle(self, connection: Connection) -> deque[Connection]:
        """Those of its kind."""
        return self.circuits if connection.is_circuit else self.connections

    def shrink(self, most: int) -> None:
        for idle in (self.connections, self.circuits):
            while len(idle) > most:
                idle.popleft().close()

    def expire(self, before: float) -> None:
        for idle in (self.connections, self.circuits):
            while idle and idle[0].idle_since < before:
                idle.popleft().close()

    def __len__(self) -> int:
        return len(self.connections) + len(self.circuits)


class Pool:
    """Connections to replicas that wait for their next exchange.

    * Of each kind at most so many per replica as `allow` said; none to an address that was not allowed or is forgotten.
    * Only the pool closes an idle connection, after `IDLE_S`.

    Not safe across threads.
    """

    def __init__(self, secret: bytes = b"") -> None:
        """`secret` is what replicas ask for."""
        self._secret = secret
        self._ways: dict[Address, _Way] = {}
        self._room = Room()
        self._sheets = Sheets()
        self._dials: set[asyncio.Task[None]] = set()
        #: Who waits for a trunk that is dialled.
        self._expected: dict[Address, list[tuple[Reached, Failed]]] = {}

    def allow(self, address: Address, most: int, *, trunks: bool = False) -> None:
        """Keep up to `most` idle connections to this address, and as many circuits where it takes trunks."""
        way = self._ways.get(address)
        if way is None:
            self._ways[address] = _Way(most, trunks)
        else:
            way.most, way.trunks = most, trunks
            way.shrink(most)

    def forget(self, address: Address) -> None:
        """Close the idle connections to a replica that left; those in use are closed when they come back."""
        way = self._ways.pop(address, None)
        if way is not None:
            way.shrink(0)
            self._sheets.forget(address)
            if way.trunk is not None:
                way.trunk.retire()

    def distrust(self, address: Address) -> None:
        """Close the idle connections to a replica that broke one: they may be as dead, and not know it yet."""
        way = self._ways.get(address)
        if way is not None:
            way.shrink(0)

    def take(self, address: Address, *, small: bool = False) -> Connection | None:
        """An idle connection, None where there is none. `small`: a circuit where there are any."""
        way = self._ways.get(address)
        if way is None:
            return None
        idle = way.circuits if small and way.trunks else way.connections
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        if idle is way.circuits and way.trunk is not None and way.trunk.usable:
            return self._circuit(address, way.trunk)
        return None

    def give_back(self, connection: Connection) -> None:
        """Take a connection whose exchange has ended as reusable."""
        way = self._ways.get(connection.address)
        if way is None or not connection.usable:
            connection.close()
            return
        idle = way.idle(connection)
        if len(idle) >= way.most:
            connection.close()
            return
        connection.idle_since = time.monotonic()
        idle.append(connection)

    def dial(self, address: Address, reached: "Reached", failed: "Failed", *, small: bool = False) -> None:
        """Open a connection; `small`: a trunk, where the replica takes them, and a circuit of it.

        One of the two is called, unless the pool is closed before. Who no longer wants it gives it back.
        """
        way = self._ways.get(address)
        if small and way is not None and way.trunks:
            expected = self._expected.get(address)
            if expected is not None:
                expected.append((reached, failed))
                return
            self._expected[address] = [(reached, failed)]
            dialling = self._dial_trunk(address)
        else:
            dialling = self._dial(address, reached, failed)
        task = asyncio.get_running_loop().create_task(dialling)
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    def expire(self, now: float) -> None:
        """Close what has been idle for too long; `now` as `time.monotonic()` counts."""
        for way in self._ways.values():
            way.expire(now - IDLE_S)

    async def aclose(self) -> None:
        dials = list(self._dials)
        for task in dials:
            task.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        for address in list(self._ways):
            self.forget(address)
        # Circuits are closed when the loop turns, their trunk behind them, and then its transport.
        for _ in range(4):
            await asyncio.sleep(0)

    @property
    def idle(self) -> int:
        return sum(map(len, self._ways.values()))

    def __repr__(self) -> str:
        return f"<Pool [{self.idle} idle, {len(self._dials)} dialling | {len(self._ways)} replicas]>"

    async def _dial(self, address: Address, reached: "Reached", failed: "Failed") -> None:
        try:
            async with asyncio.timeout(DIAL_S):
                sheets = self._sheets if address.startswith("unix:") else None
                _, connection = await connect(
                    address, lambda: Connection(address, self._lost, self._room, sheets), self._secret
                )
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            failed(_unreached(address, error))
        else:
            reached(connection)

    async def _dial_trunk(self, address: Address) -> None:
        try:
            async with asyncio.timeout(DIAL_S):
                _, trunk = await connect(address, lambda: Trunk(self._room), self._secret, "trunk")
        except (OSError, ValueError) as error:
            for _, failed in self._expected.pop(address):
                failed(_unreached(address, error))
            return
        except asyncio.CancelledError:
            del self._expected[address]
            raise
        expected = self._expected.pop(address)
        way = self._ways.get(address)
        if way is not None:
            way.trunk = trunk
        for reached, _ in expected:
            reached(self._circuit(address, trunk))
        if way is None:
            trunk.retire()

    def _circuit(self, address: Address, trunk: Trunk) -> Connection:
        connection = Connection(address, self._lost, self._room)
        trunk.open(connection)
        return connection

    def _lost(self, connection: Connection) -> None:
        way = self._ways.get(connection.address)
        if way is not None:
            for idle in (way.connections, way.circuits):
                if connection in idle:
                    idle.remove(connection)


Reached = Callable[[Connection], None]
Failed = Callable[[ReplicaGone], None]


def _unreached(address: Address, error: Exception) -> ReplicaGone:
    if isinstance(error, PermissionError | Unproven):
        logger.warning("nothing was sent to %s: %s", address, error)
    return ReplicaGone(f"{address} was not reached: {error or 'no answer'}")


P = TypeVar("P", bound=asyncio.BaseProtocol)


async def connect(
    address: Address, talker: Callable[[], P], secret: bytes = b"", carries: Carries = "http"
) -> tuple[asyncio.Transport, P]:
    """Connect a protocol to the replica at `unix:/path` or `tcp:host:port`.

    Nothing is sent to, and nothing of the protocol's is read from, a process of another user (`unix`) or one that has
    not proved that it knows the secret (`tcp`). Raises `OSError`, or `ValueError` for another form of address.
    """
    loop = asyncio.get_running_loop()
    kind, _, where = address.partition(":")
    host, _, port = where.rpartition(":")
    if kind != "unix" and (kind != "tcp" or not host):
        raise ValueError(f"{address!r} is neither unix:/path nor tcp:host:port")
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET6 if ":" in host else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        if kind == "unix":
            connection.connect(where)  # at once, or not at all
            check_peer(connection)
            transport, protocol = await loop.create_unix_connection(talker, sock=connection)
            send_ahead(transport)
            if carries == "trunk":
                transport.write(first_line(carries))
        else:
            await loop.sock_connect(connection, (host.strip("[]"), int(port)))
            keep_alive(connection)
            await introduce(connection, carries, secret)
            transport, protocol = await loop.create_connection(talker, sock=connection)
    except BaseException:
        connection.close()
        raise
    close_in_children(transport)
    return transport, protocol
