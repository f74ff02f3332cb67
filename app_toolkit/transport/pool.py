"""Pooled HTTP/1.1 connections to replicas: one exchange at a time, then reused or aborted."""

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
from app_toolkit.transport.hop import CLOSES, INTERNAL_PREFIX, REFUSED, STREAM
from app_toolkit.transport.preface import Unproven, introduce
from app_toolkit.transport.sockets import (
    check_peer,
    close_in_children,
    expect_acknowledgement,
    keep_alive,
    last_words,
    send_ahead,
)
from app_toolkit.types import Address, Header

logger = logging.getLogger("app_toolkit.transport")

MAX_HEAD = 64 * 1024
DIAL_S = 5.0
"""A replica accepts in milliseconds; a black hole on the network must not hold a request for longer."""

IDLE_S = 300.0
"""Far below the keep-alive timeout of a replica, because only the pool may close an idle connection."""

SMALL = 32 * 1024
"""Bytes of a request that fit into what the kernel of the other machine takes in by itself."""

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

    def received(self, data: bytes) -> None:
        """Bytes of the body, as they came or decoded; after 101, bytes of the tunnel."""

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


class PooledConnection(asyncio.Protocol):
    """One connection to one replica.

    * It serves one exchange at a time, from `begin` until the listener hears its end or ends it itself.
    * An answer that nobody asked for, and a byte beyond the end of one, end the connection.
    """

    def __init__(self, address: Address, idle_lost: Callable[["PooledConnection"], None]) -> None:
        # For its life
        self.address = address
        self.idle_since = 0.0
        self._idle_lost = idle_lost
        self.transport: CorkedTransport | None = None
        self._framing = _Framing()
        self._parser: HttpResponseParser | None = None
        #: Whether the other machine has to acknowledge what is written within a time.
        self._watched = False
        # For one exchange
        self._listener: Listener | None = None
        self._bodyless = False
        self._head = b""
        self._answer: Answer | None = None
        self._written = 0

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    # What a listener does

    def begin(self, listener: Listener, *, head_only: bool = False, decode: bool = False) -> None:
        """The next answer is for `listener`; `head_only`: to a HEAD; `decode`: without the body's framing."""
        self._listener = listener
        self._bodyless = head_only
        self._head = b""
        self._answer = None
        self._written = 0
        if decode is not isinstance(self._framing, _Decoding):
            self._framing = _Decoding() if decode else _Framing()
            self._parser = None
        self._framing.renew()

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self._count(len(data))
            self.transport.write(data)

    def pass_on(self, data: bytes) -> None:
        """Write what is said in a tunnel."""
        if self.transport is not None:
            self._count(len(data))
            self.transport.write_through(data)

    def write_all(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def _count(self, size: int) -> None:
        """Nobody has to take a large body within a time: the replica reads it as its app does."""
        self._written += size
        if self._watched is not (self._written <= SMALL) and self.transport is not None:
            self._watched = not self._watched
            expect_acknowledgement(self.transport, self._watched)

    def pause_reading(self) -> None:
        if self.usable:
            assert self.transport is not None
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.usable:
            assert self.transport is not None
            self.transport.resume_reading()

    def abort(self) -> None:
        """End the exchange and the connection at once; the replica sees its client go away."""
        self._listener = None
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """End the exchange, and the connection once what was written has left."""
        self._listener = None
        if self.transport is not None:
            self.transport.close()

    # What the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = CorkedTransport(cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._hear_out()
        lost = self._why_lost(exc)
        self.transport = self._parser = None
        listener, self._listener = self._listener, None
        if listener is None:
            self._idle_lost(self)
        elif exc is None and self._answer is not None and self._answer.extent == "until_close":
            listener.ended(reusable=False)
        else:
            listener.lost(lost)

    def _why_lost(self, exc: Exception | None) -> ReplicaGone:
        # A Unix socket that closes, or was never accepted, with unread bytes in it is reset (unix(7)).
        unread = isinstance(exc, ConnectionResetError) and self.address.startswith("unix:")
        if unread and self._answer is None and not self._head:
            return NotRead(f"the replica at {self.address} ended before it had read the request")
        return ReplicaGone(f"the connection to {self.address} ended before the answer did")

    def pause_writing(self) -> None:
        if self._listener is not None:
            self._listener.writing_paused(True)

    def resume_writing(self) -> None:
        if self._listener is not None:
            self._listener.writing_paused(False)

    def data_received(self, data: bytes) -> None:
        listener = self._listener
        if listener is None:
            self.abort()
        else:
            self._read(data, listener)

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
        if self.transport is None:
            return
        for data in last_words(self.transport):
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
                listener.answered(answer)
            else:
                self._framing.renew()
                listener.informed(answer)
                if self._listener is None:
                    return b""
        return data

    def _read_head(self, head: bytes) -> Answer | None:
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

    def _read_body(self, data: bytes, listener: Listener) -> None:
        framing = self._framing
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
            if isinstance(framing, _Decoding):
                data = b"".join(framing.body)
                framing.body.clear()
            if data:
                listener.received(data)
        self._end(listener)

    def _end(self, listener: Listener) -> None:
        """The answer ends where it is whole, and nobody has ended it before."""
        if self._framing.ended and self._listener is listener:
            assert self._answer is not None
            self._listener = None
            listener.ended(self._answer.reusable and self.usable)

    def _broken(self, reason: str) -> None:
        listener, self._listener = self._listener, None
        if self.transport is not None:
            self.transport.abort()
        if listener is not None:
            listener.lost(AnswerUnreadable(f"{self.address}: {reason}"))


def _read_fields(status: int, status_line: bytes, fields: list[Header], bodyless: bool) -> Answer:
    """Sort the fields: those of this hop are taken out, and say where the body ends, if it can have one."""
    answer = Answer(status, status_line, [], "until_close", None, True)
    kept = answer.fields
    for field in fields:
        name = field[0]
        if name == b"content-length":
            if answer.extent != "chunked":
                answer.extent = "sized"
        elif name == b"transfer-encoding":
            answer.extent = "chunked"
        elif name in HOP_BY_HOP:
            if name == b"connection" and b"close" in field[1].lower():
                answer.reusable = False
            if status not in (101, 426):  # the two that name a protocol to the client
                continue
        elif name.startswith(INTERNAL_PREFIX):
            if status == 503 and name == REFUSED:  # of an app's own 503 the gate takes it away
                answer.refusal = field[1]
            elif name == STREAM:
                answer.stream = field[1]
            elif name == CLOSES:
                answer.closes = True
            continue
        kept.append(field)
    if answer.extent == "until_close":
        answer.reusable = answer.reusable and (bodyless or status in (204, 304))
    return answer


class _Idle:
    """The connections to one replica that wait for their next exchange, the one used last at the right end."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.connections: deque[PooledConnection] = deque()

    def shrink(self, most: int) -> None:
        while len(self.connections) > most:
            self.connections.popleft().close()

    def expire(self, before: float) -> None:
        while self.connections and self.connections[0].idle_since < before:
            self.connections.popleft().close()


class Pool:
    """Connections to replicas that wait for their next exchange.

    * At most so many per replica as `allow` said; none to an address that was not allowed or is forgotten.
    * Only the pool closes an idle connection, after `IDLE_S`.

    Not safe across threads.
    """

    def __init__(self, secret: bytes = b"") -> None:
        """`secret` is what replicas ask for."""
        self._secret = secret
        self._replicas: dict[Address, _Idle] = {}
        self._dials: set[asyncio.Task[None]] = set()

    def allow(self, address: Address, most: int) -> None:
        """Keep up to `most` idle connections to this address."""
        idle = self._replicas.setdefault(address, _Idle(most))
        idle.most = most
        idle.shrink(most)

    def forget(self, address: Address) -> None:
        """Close the idle connections to a replica that left; those in use are closed when they come back."""
        idle = self._replicas.pop(address, None)
        if idle is not None:
            idle.shrink(0)

    def distrust(self, address: Address) -> None:
        """Close the idle connections to a replica that broke one: they may be as dead, and not know it yet."""
        idle = self._replicas.get(address)
        if idle is not None:
            idle.shrink(0)

    def take(self, address: Address) -> PooledConnection | None:
        """An idle connection; None if there is none."""
        idle = self._replicas.get(address)
        while idle is not None and idle.connections:
            connection = idle.connections.pop()
            if connection.usable:
                return connection
        return None

    def give_back(self, connection: PooledConnection) -> None:
        """Take a connection whose exchange has ended as reusable."""
        idle = self._replicas.get(connection.address)
        if idle is None or not connection.usable or len(idle.connections) >= idle.most:
            connection.close()
            return
        connection.idle_since = time.monotonic()
        idle.connections.append(connection)

    def dial(self, address: Address, reached: "Reached", failed: "Failed") -> None:
        """Open a connection.

        One of the two is called, unless the pool is closed before. Who no longer wants it gives it back.
        """
        task = asyncio.get_running_loop().create_task(self._dial(address, reached, failed))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    def expire(self, now: float) -> None:
        """Close what has been idle for too long; `now` as `time.monotonic()` counts."""
        for idle in self._replicas.values():
            idle.expire(now - IDLE_S)

    async def aclose(self) -> None:
        dials = list(self._dials)
        for task in dials:
            task.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        for address in list(self._replicas):
            self.forget(address)
        # Connections are closed when the loop turns, and their transports behind them.
        for _ in range(2):
            await asyncio.sleep(0)

    @property
    def idle(self) -> int:
        return sum(len(idle.connections) for idle in self._replicas.values())

    def __repr__(self) -> str:
        return f"<Pool [{self.idle} idle, {len(self._dials)} dialling | {len(self._replicas)} replicas]>"

    async def _dial(self, address: Address, reached: "Reached", failed: "Failed") -> None:
        try:
            async with asyncio.timeout(DIAL_S):
                _, connection = await connect(address, lambda: PooledConnection(address, self._lost), self._secret)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            failed(_unreached(address, error))
        else:
            reached(connection)

    def _lost(self, connection: PooledConnection) -> None:
        idle = self._replicas.get(connection.address)
        if idle is not None and connection in idle.connections:
            idle.connections.remove(connection)


Reached = Callable[[PooledConnection], None]
Failed = Callable[[ReplicaGone], None]


def _unreached(address: Address, error: Exception) -> ReplicaGone:
    if isinstance(error, PermissionError | Unproven):
        logger.warning("nothing was sent to %s: %s", address, error)
    return ReplicaGone(f"{address} was not reached: {error or 'no answer'}")


P = TypeVar("P", bound=asyncio.BaseProtocol)


async def connect(address: Address, talker: Callable[[], P], secret: bytes = b"") -> tuple[asyncio.Transport, P]:
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
        else:
            await loop.sock_connect(connection, (host.strip("[]"), int(port)))
            keep_alive(connection)
            await introduce(connection, secret)
            transport, protocol = await loop.create_connection(talker, sock=connection)
    except BaseException:
        connection.close()
        raise
    close_in_children(transport)
    return transport, protocol
