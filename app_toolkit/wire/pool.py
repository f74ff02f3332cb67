"""A pool of HTTP/1.1 connections to replicas. Each serves one exchange at a time, and is then reused or closed."""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, cast
from weakref import WeakSet

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from app_toolkit.errors import NotRead, ReplicaGone, ResponseUnreadable
from app_toolkit.types import Address, Header
from app_toolkit.wire.corked import CorkedTransport
from app_toolkit.wire.hop import CLOSES, HOLDINGS, INTERNAL_PREFIX, REFUSED, STREAM
from app_toolkit.wire.preface import Unproven, introduce
from app_toolkit.wire.sockets import (
    check_peer,
    close_in_children,
    expect_acknowledgement,
    keep_alive,
    last_words,
    send_ahead,
)

logger = logging.getLogger("app_toolkit.transport")

MAX_HEAD = 64 * 1024
DIAL_S = 5.0
"""Seconds that connecting may take. A replica accepts in milliseconds, and a network that drops packets must not hold a
request for longer."""

IDLE_S = 300.0
"""Seconds after which the pool closes an idle connection. Far below the keep-alive timeout of a replica, because only
the pool may close an idle connection."""

SMALL = 32 * 1024
"""Bytes of a request that fit into the receive buffer of the kernel of the other machine."""

HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"upgrade"))

Extent = Literal["none", "sized", "chunked", "until_close"]
"""How the end of a body is determined."""


@dataclass(slots=True)
class ResponseHead:
    """The head of a response.

    `fields` are the end-to-end fields, with names in lower case. `refusal` is the reason (`hop.Refusal`) if the replica
    refused the request. None: it did not.
    """

    status: int
    status_line: bytes
    fields: list[Header]
    extent: Extent
    refusal: bytes | None
    reusable: bool
    stream: bytes | None = None
    """`hop.OPEN` or `hop.KEPT` if the replica marked the response as a stream. None: it is not a stream."""
    holdings: bytes | None = None
    """The keys that the replica holds, as encoded by `hop.encode_holdings`. None: no keys have places there."""
    closes: bool = False
    """Whether the app sent `Connection: close`, so that the connection of the client must be closed."""
    encoded: tuple[list[Header], bytes] | None = None
    """Fields, and these as lines of a head, if several responses have the same ones. None: they are not encoded."""

    @property
    def lines(self) -> bytes:
        """The fields as lines of a head."""
        encoded = self.encoded
        if encoded is not None and encoded[0] is self.fields:  # no filter has replaced them
            return encoded[1]
        return lines_of(self.fields)

    def copied(self) -> "ResponseHead":
        """Return a copy. Both have the same list of fields."""
        return ResponseHead(
            self.status,
            self.status_line,
            self.fields,
            self.extent,
            self.refusal,
            self.reusable,
            self.stream,
            self.holdings,
            self.closes,
            self.encoded,
        )


class Listener(Protocol):
    """Receives the events of a connection during one exchange.

    The order of the calls is: `informed` any number of times, `response_started` once, `received` any number of times,
    `ended` once. If the connection breaks, `lost` is called instead of the remaining ones. Nothing is called after
    `ended`, `lost` or `PooledConnection.abort`.
    """

    def informed(self, response: ResponseHead) -> None:
        """An interim response arrived: 1xx, except 101."""

    def response_started(self, response: ResponseHead) -> None: ...

    def received(self, data: bytes) -> None:
        """Bytes of the body arrived, with or without its framing. After a 101, they are bytes of the tunnel."""

    def ended(self, reusable: bool) -> None:
        """The response is complete. If `reusable`, the connection may be given back to the pool."""

    def lost(self, error: ReplicaGone) -> None:
        """The connection broke, or the response was not valid HTTP."""

    def writing_paused(self, paused: bool) -> None:
        """The write buffer is full because the replica reads too slowly, or writing may resume (`paused` is false)."""


class _Framing:
    """Callbacks for the parser of one response that ignore the bytes of the body."""

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
        if self.in_head:  # trailers are ignored
            self.fields.append((name.lower(), value))

    def on_message_complete(self) -> None:
        self.ended = True


class _Decoding(_Framing):
    """Callbacks that also collect the body without its framing."""

    def on_body(self, data: bytes) -> None:
        self.body.append(data)


class PooledConnection(asyncio.Protocol):
    """One connection to one replica.

    * It serves one exchange at a time, from `begin` until the listener is called with its end, or until `abort` or
      `close`.
    * Data without an exchange, or beyond the end of a response, closes the connection.
    """

    def __init__(self, address: Address, idle_lost: Callable[["PooledConnection"], None]) -> None:
        # For the lifetime of the connection
        self.address = address
        self.idle_since = 0.0
        self._idle_lost = idle_lost
        self.transport: CorkedTransport | None = None
        self._framing = _Framing()
        self._parser: HttpResponseParser | None = None
        #: Whether the other machine must acknowledge written bytes within `sockets.UNACKNOWLEDGED_S`.
        self._watched = False
        # For one exchange
        self._listener: Listener | None = None
        self._bodyless = False
        self._head = b""
        self._response: ResponseHead | None = None
        self._written = 0

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    @property
    def closing(self) -> bool:
        """Whether it was closed, and has not sent all written bytes yet."""
        return self.transport is not None and self.transport.is_closing()

    # Methods for listeners

    def begin(self, listener: Listener, *, head_only: bool = False, decode: bool = False) -> None:
        """Begin an exchange, whose response goes to `listener`.

        Parameters:
            listener: Receives the events of the exchange.
            head_only: The request is a HEAD, so the response has no body.
            decode: Remove the framing of the body.
        """
        self._listener = listener
        self._bodyless = head_only
        self._head = b""
        self._response = None
        self._written = 0
        if decode is not isinstance(self._framing, _Decoding):
            self._framing = _Decoding() if decode else _Framing()
            self._parser = None
        self._framing.renew()

    def write(self, data: bytes | memoryview) -> None:
        if self.transport is not None:
            self._count(len(data))
            self.transport.write(data)

    def pass_on(self, data: bytes) -> None:
        """Write data of a tunnel at once."""
        if self.transport is not None:
            self._count(len(data))
            self.transport.write_through(data)

    def write_all(self, pieces: Sequence[bytes | memoryview]) -> None:
        for piece in pieces:
            self.write(piece)

    def _count(self, size: int) -> None:
        """Count written bytes, and stop expecting acknowledgements in time once a body is large.

        The replica reads a large body only as fast as its app does.
        """
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
        """End the exchange and the connection at once. The replica sees a disconnect of its client."""
        self._listener = None
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """End the exchange, and close the connection once all written bytes are sent."""
        self._listener = None
        if self.transport is not None:
            self.transport.close()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = CorkedTransport(cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._read_remaining()
        lost = self._why_lost(exc)
        self.transport = self._parser = None
        listener, self._listener = self._listener, None
        if listener is None:
            self._idle_lost(self)
        elif exc is None and self._response is not None and self._response.extent == "until_close":
            listener.ended(reusable=False)
        else:
            listener.lost(lost)

    def _why_lost(self, exc: Exception | None) -> ReplicaGone:
        # A Unix socket is reset if it is closed, or was never accepted, while it holds unread bytes (unix(7)).
        unread = isinstance(exc, ConnectionResetError) and self.address.startswith("unix:")
        if unread and self._response is None and not self._head:
            return NotRead(f"the replica at {self.address} ended before it had read the request")
        return ReplicaGone(f"the connection to {self.address} ended before the response did")

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

    # Read a response

    def _read(self, data: bytes, listener: Listener) -> None:
        if self._response is None:
            data = self._read_heads(self._head + data if self._head else data)
            if self._response is None or self._listener is not listener:
                return
        if self._response.status == 101:
            if data:
                listener.received(data)
            return
        self._read_body(data, listener)

    def _read_remaining(self) -> None:
        """Read the bytes that arrived before a write failed.

        After a failed write, the event loop stops reading. The bytes may be a close frame, or a response to a request
        whose body the replica did not read to its end.
        """
        if self.transport is None:
            return
        for data in last_words(self.transport):
            if self._listener is None:
                return
            self._read(data, self._listener)

    def _read_heads(self, data: bytes) -> bytes:
        """Parse heads up to the final one, and return the bytes that follow it."""
        while self._response is None:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._head = data
                if len(data) > MAX_HEAD:
                    self._broken(f"the head of a response is {len(data)} bytes long, the limit is {MAX_HEAD}")
                return b""
            head, data = data[:end], data[end:]
            response = self._read_head(head)
            listener = self._listener
            if response is None or listener is None:
                return b""
            if response.status >= 200 or response.status == 101:
                self._response = response
                listener.response_started(response)
            else:
                self._framing.renew()
                listener.informed(response)
                if self._listener is None:
                    return b""
        return data

    def _read_head(self, head: bytes) -> ResponseHead | None:
        if self._parser is None:
            self._parser = HttpResponseParser(self._framing)
        try:
            self._parser.feed_data(head)
        except HttpParserUpgrade:
            pass  # after a 101, the parser is not used
        except HttpParserError as error:
            self._broken(f"a response is not HTTP: {error}")
            return None
        if not head.startswith(b"HTTP/1."):
            self._broken("a response does not begin with an HTTP version")
            return None
        self._framing.in_head = False
        # The client gets a 1.1 response even if the replica sent a 1.0 response.
        status_line = b"HTTP/1.1" + head[8 : head.index(b"\r\n")]
        response = read_fields(self._parser.get_status_code(), status_line, self._framing.fields, self._bodyless)
        response.reusable = response.reusable and head.startswith(b"HTTP/1.1")
        if self._bodyless and response.status >= 200:
            # The parser would treat the next response as the body that Content-Length announces.
            response.extent = "none"
            self._framing.ended = True
            self._parser = None
        elif self._framing.ended:
            response.extent = "none"
        return response

    def _read_body(self, data: bytes, listener: Listener) -> None:
        framing = self._framing
        if data:
            if self._parser is None:
                framing.excess = True
            else:
                try:
                    self._parser.feed_data(data)
                except HttpParserError as error:
                    self._broken(f"the body of a response is not HTTP: {error}")
                    return
            if framing.excess:
                self._broken("the replica sent data after the end of a response")
                return
            if isinstance(framing, _Decoding):
                data = b"".join(framing.body)
                framing.body.clear()
            if data:
                listener.received(data)
        self._end(listener)

    def _end(self, listener: Listener) -> None:
        """End the exchange if the response is complete and the listener has not ended the exchange."""
        if self._framing.ended and self._listener is listener:
            assert self._response is not None
            self._listener = None
            listener.ended(self._response.reusable)

    def _broken(self, reason: str) -> None:
        listener, self._listener = self._listener, None
        if self.transport is not None:
            self.transport.abort()
        if listener is not None:
            listener.lost(ResponseUnreadable(f"{self.address}: {reason}"))


def lines_of(fields: Iterable[Header]) -> bytes:
    """Encode fields as lines of a head."""
    pieces: list[bytes] = []
    for name, value in fields:
        pieces += (name, b": ", value, b"\r\n")
    return b"".join(pieces)


def read_fields(status: int, status_line: bytes, fields: list[Header], bodyless: bool) -> ResponseHead:
    """Return the head of a response, without hop-by-hop and internal fields. Derive the framing from the fields."""
    response = ResponseHead(status, status_line, [], "until_close", None, True)
    kept = response.fields
    for field in fields:
        name = field[0]
        if name == b"content-length":
            if response.extent != "chunked":
                response.extent = "sized"
        elif name == b"transfer-encoding":
            response.extent = "chunked"
        elif name in HOP_BY_HOP:
            if name == b"connection" and b"close" in field[1].lower():
                response.reusable = False
            if status not in (101, 426):  # these name a protocol to the client in Upgrade
                continue
        elif name.startswith(INTERNAL_PREFIX):
            if status == 503 and name == REFUSED:  # the replica removes this field from an app's own response
                response.refusal = field[1]
            elif name == STREAM:
                response.stream = field[1]
            elif name == HOLDINGS:
                response.holdings = field[1]
            elif name == CLOSES:
                response.closes = True
            continue
        kept.append(field)
    if response.extent == "until_close":
        response.reusable = response.reusable and (bodyless or status in (204, 304))
    return response


class _Idle:
    """The idle connections to one replica, in the order of their last use."""

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
    """The idle connections to replicas.

    * The pool keeps at most as many connections to a replica as `allow` set. It keeps none to an address that was not
      allowed or was forgotten.
    * Only the pool closes an idle connection, after `IDLE_S`.

    Not thread-safe.
    """

    def __init__(self, secret: bytes = b"", clock: Callable[[], float] = time.monotonic) -> None:
        """`secret` authenticates TCP connections to replicas. `clock` returns the current time in seconds."""
        self._secret = secret
        self._clock = clock
        self._replicas: dict[Address, _Idle] = {}
        #: How the replicas in this process are connected to. All others are reached at their address.
        self.here: dict[Address, Connect] = {}
        self._dials: set[asyncio.Task[None]] = set()
        self._dialled: WeakSet[PooledConnection] = WeakSet()

    def allow(self, address: Address, most: int) -> None:
        """Keep up to `most` idle connections to this address."""
        idle = self._replicas.setdefault(address, _Idle(most))
        idle.most = most
        idle.shrink(most)

    def forget(self, address: Address) -> None:
        """Close the idle connections to a removed replica. Those in use are closed when they are given back."""
        idle = self._replicas.pop(address, None)
        if idle is not None:
            idle.shrink(0)

    def distrust(self, address: Address) -> None:
        """Close the idle connections to a replica to which a connection broke, because they may be broken, too."""
        idle = self._replicas.get(address)
        if idle is not None:
            idle.shrink(0)

    def take(self, address: Address) -> PooledConnection | None:
        """Return an idle connection, the last used one first. None: there is none."""
        idle = self._replicas.get(address)
        while idle is not None and idle.connections:
            connection = idle.connections.pop()
            if connection.usable:
                return connection
        return None

    def give_back(self, connection: PooledConnection) -> None:
        """Keep a connection whose exchange has ended as reusable, or close it if the replica has enough idle ones."""
        idle = self._replicas.get(connection.address)
        if idle is None or not connection.usable or len(idle.connections) >= idle.most:
            connection.close()
            return
        connection.idle_since = self._clock()
        idle.connections.append(connection)

    def dial(self, address: Address, reached: "Reached", failed: "Failed") -> None:
        """Open a connection, and call `reached` with it, or `failed` with an error.

        Neither is called if the pool is closed before. A caller that no longer needs the connection gives it back.
        """
        task = asyncio.get_running_loop().create_task(self._dial(address, reached, failed))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    def expire(self, now: float) -> None:
        """Close the connections that have been idle for more than `IDLE_S`. `now` is a time of its clock."""
        for idle in self._replicas.values():
            idle.expire(now - IDLE_S)

    async def aclose(self) -> None:
        """Close the idle connections, and those that were closed before, even if not all of their bytes are sent."""
        dials = list(self._dials)
        for task in dials:
            task.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        for address in list(self._replicas):
            self.forget(address)
        await _let_connections_close()
        # Those that remain have unsent bytes for a replica that does not read.
        unsent = [connection for connection in self._dialled if connection.closing]
        if unsent:
            for connection in unsent:
                connection.abort()
            await _let_connections_close()

    @property
    def idle(self) -> int:
        return sum(len(idle.connections) for idle in self._replicas.values())

    def __repr__(self) -> str:
        return f"<Pool [{self.idle} idle, {len(self._dials)} dialling | {len(self._replicas)} replicas]>"

    async def _dial(self, address: Address, reached: "Reached", failed: "Failed") -> None:
        try:
            async with asyncio.timeout(DIAL_S):
                opened = self.here.get(address, connect)
                _, connection = await opened(address, lambda: PooledConnection(address, self._lost), self._secret)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            failed(_unreached(address, error))
        else:
            self._dialled.add(connection)
            reached(connection)

    def _lost(self, connection: PooledConnection) -> None:
        idle = self._replicas.get(connection.address)
        if idle is not None and connection in idle.connections:
            idle.connections.remove(connection)


async def _let_connections_close() -> None:
    # The event loop closes connections in its next iteration, and their transports in the one after it.
    for _ in range(2):
        await asyncio.sleep(0)


Reached = Callable[[PooledConnection], None]
Failed = Callable[[ReplicaGone], None]
Connect = Callable[
    [Address, Callable[[], PooledConnection], bytes], Awaitable[tuple[asyncio.Transport, PooledConnection]]
]
"""Connect a protocol, as `connect` does."""


def _unreached(address: Address, error: Exception) -> ReplicaGone:
    if isinstance(error, PermissionError | Unproven):
        logger.warning("nothing was sent to %s: %s", address, error)
    return ReplicaGone(f"{address} was not reached: {error or 'no response'}")


P = TypeVar("P", bound=asyncio.BaseProtocol)


async def connect(address: Address, talker: Callable[[], P], secret: bytes = b"") -> tuple[asyncio.Transport, P]:
    """Connect a protocol to the replica at `unix:/path` or `tcp:host:port`.

    No data of the protocol is sent or read before the other process is authenticated: on a Unix socket, it must belong
    to the same user or root; over TCP, it must prove that it has the secret.

    Raises:
        OSError: The replica cannot be reached or authenticated.
        ValueError: The address has another form.
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
            connection.connect(where)  # on a Unix socket, this succeeds or fails at once
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
