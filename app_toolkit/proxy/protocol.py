"""One client's connection: it reads requests, begins their exchanges in order, and looks at its clocks."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
import time
from dataclasses import dataclass
from typing import Protocol, cast

from app_toolkit.core import forwarded
from app_toolkit.core.forwarded import Trust
from app_toolkit.core.uploads import MinimumRate, Period, measured
from app_toolkit.errors import RequestTimeout
from app_toolkit.proxy.exchange import Exchange
from app_toolkit.proxy.proxy import Proxy
from app_toolkit.proxy.request import DISCARDED_BODY, KEPT_BODY, HeadLimits, Request, RequestParser
from app_toolkit.transport import hop
from app_toolkit.transport.corked import CorkedTransport
from app_toolkit.types import Header, ReplicaId

DEFAULT_RATE = MinimumRate(bytes_per_s=500.0, grace_s=5.0)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take; seconds, and bytes a second."""

    head_s: float = 10.0
    keep_alive_s: float = 5.0
    body: MinimumRate = DEFAULT_RATE
    discard_s: float = 5.0
    linger_s: float = 2.0
    #: A slow reader's window opens in steps, which on a slow line take this long.
    stalled_write_s: float = 120.0


TCP_CLOSED = (7, 8)
"""The states of the kernel, `TCP_CLOSE` and `TCP_CLOSE_WAIT`, in which the other end sends nothing more."""

Origin = tuple[tuple[str, int] | None, tuple[str, int] | None, str]


class ServedConnection(Protocol):
    """A client's, in any state: what a server does with it."""

    @property
    def answers(self) -> bool: ...

    def sweep(self, now: float) -> None: ...

    def shutdown(self) -> None: ...

    def dismiss(self) -> None: ...

    def abort(self) -> None: ...


class ServerState(Protocol):
    """What a connection and uvicorn's server know of each other."""

    total_requests: int
    connections: set[ServedConnection]
    tasks: set[asyncio.Task[None]]
    default_headers: list[Header]


class ClientConnection(asyncio.Protocol):
    """A client's connection, as uvicorn's server holds it.

    * Requests are answered in the order in which they came, one at a time; what follows waits as bytes.
    * What the replica or the client does not take stops the other one from sending.
    * The end of the client's stream means that it is gone, and ends what runs for it.
    * Every state has a clock, which `sweep` looks at.
    """

    def __init__(self, proxy: Proxy, state: ServerState, limits: HeadLimits, patience: Patience, trust: Trust) -> None:
        # Shared by all connections
        self._proxy = proxy
        self._state = state
        self._patience = patience
        self._trust = trust
        # For the life of the connection
        self._host = ""
        self._peers = b""
        self.served: dict[str, tuple[ReplicaId, bool]] = {}
        #: Both ends and the scheme, where what a proxy tells may stand in their place.
        self._origin: Origin | None = None
        self.writable = True
        self.transport: CorkedTransport | None = None
        self._tls = False
        self._parser = RequestParser(limits)
        self._loop = asyncio.get_running_loop()
        self.reading = True
        self._stopping = False
        #: What was read and waits until the requests before it are answered.
        self._unparsed = b""
        # One request at a time
        #: Where it came from: this client, unless that is a proxy which is believed and tells of another.
        self.host = ""
        self.peers = b""
        self._exchange: Exchange | None = None
        #: Answered, while its body still comes.
        self._unwanted: Request | None = None
        #: The last answer is written; what still comes is not understood any more.
        self._leaving = False
        self._left_over = 0
        # Clocks
        self._since = time.monotonic()
        self._served = False
        self._head_since: float | None = None
        self._body_period: Period | None = None
        self._stalled: tuple[float, int] | None = None

    # What the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = CorkedTransport(cast(asyncio.Transport, transport))
        self.transport = transport
        self._state.connections.add(self)
        client, server = _address(transport, "peername"), _address(transport, "sockname")
        self._tls = transport.get_extra_info("sslcontext") is not None
        scheme = "https" if self._tls else "http"
        self._host = "" if client is None else client[0]
        self._peers = hop.peers(client, server, scheme)
        if client is not None and client[0] in self._trust:
            self._parser.believed = True
            self._origin = client, server, scheme

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self.transport = None
        self._unparsed = b""
        self._gone()

    def eof_received(self) -> None:
        unfinished = self.answers
        self._gone()
        if self.transport is None:
            return
        if unfinished:  # the part of the response that the client has not read will never be complete
            self.transport.abort()
        else:  # the event loop would close what is below, and not see what is kept
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.tunnels:
            exchange.tunnel(data)
            return
        if self._leaving:
            self._drop(len(data))
        elif self._unparsed:
            self._unparsed += data
        else:
            self._read(data)
        self.regulate()

    def pause_writing(self) -> None:
        self.writable = False
        if self._exchange is not None:
            self._exchange.client_paused(True)

    def resume_writing(self) -> None:
        self.writable = True
        if self._exchange is not None:
            self._exchange.client_paused(False)
        else:
            self._go_on()

    # What uvicorn's server says

    def shutdown(self) -> None:
        """Serve what has begun, and nothing after it."""
        self._stopping = True
        if self._unwanted is not None:
            self._leave(unread=True)
        elif self._exchange is None and not self._leaving:
            self._leave(unread=False)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def dismiss(self) -> None:
        """The time is up: a client whose request or WebSocket has not ended is told so, and gets to read it."""
        if self._exchange is not None:
            self._exchange.dismiss()
        elif not self._leaving:
            self.abort()

    # What an exchange says

    @property
    def default_headers(self) -> list[Header]:
        return self._state.default_headers

    @property
    def closing(self) -> bool:
        return self._stopping or self._proxy.draining

    @property
    def answers(self) -> bool:
        """Whether a request of this client is waiting or being answered; an open WebSocket is neither."""
        return self._exchange is not None and not self._exchange.tunnels

    def write(self, data: bytes) -> None:
        if self.transport is not None and data:
            self.transport.write(data)

    def pass_on(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write_through(data)

    def regulate(self) -> None:
        """Read, or stop reading."""
        exchange = self._exchange
        wanted = self._leaving or (len(self._unparsed) <= KEPT_BODY and (exchange is None or exchange.wants_body))
        if wanted is self.reading or self.transport is None or self.transport.is_closing():
            return
        self.reading = wanted
        if wanted:
            self._body_period = None
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def finished(self, request: Request, keep: bool) -> None:
        self._state.total_requests += 1
        self._exchange = None
        self._served = True
        self._since = time.monotonic()
        if self._head_since is not None:
            self._head_since = self._since
        if not keep or self._stopping:
            self._leave(unread=not request.complete)
            return
        if not request.complete:
            request.body.discard()
            self._unwanted = request
            self._left_over = request.body.received
        elif self._unparsed or self._parser.requests:
            # Not at once: thousands of short answers in a row would be as deep as they are many.
            self._loop.call_soon(self._go_on)
        self.regulate()

    def cut(self, reset: bool) -> None:
        self._exchange = None
        self._leaving = True
        self._since = time.monotonic()
        if self.transport is None:
            return
        if not reset:
            self.transport.close()
            return
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def part(self, last: bytes = b"") -> None:
        self._exchange = None
        self.write(last)
        # Over TLS nothing but the end says that no more comes: who has a replica's last word waits for that alone.
        self._leave(unread=bool(last) or (self.transport is not None and self.transport.can_write_eof()))

    # Reading requests

    def _go_on(self) -> None:
        if not self._leaving and self.transport is not None:
            self._advance()
            data, self._unparsed = self._unparsed, b""
            self._read(data)
            self.regulate()

    def _read(self, data: bytes) -> None:
        """Feed the parser until a request waits for the one before it, and keep the rest."""
        parser = self._parser
        start, length = 0, len(data)
        while start < length and not parser.requests and not self._leaving:
            end = start + parser.appetite
            parser.feed(data if start == 0 and end >= length else data[start:end])
            start = end
            self._advance()
        if start < length and not self._leaving:
            self._unparsed = data[start:]
        if parser.in_head and self._head_since is None:
            self._head_since = time.monotonic()

    def _advance(self) -> None:
        """Pass on what came for the request that runs, and begin the next one where none runs."""
        parser = self._parser
        if not parser.in_head:
            self._head_since = None
        if self._unwanted is not None:
            self._skip(self._unwanted)
        exchange = self._exchange
        if exchange is not None:
            refusal = exchange.request.refusal
            if refusal is None:
                exchange.body_arrived()
            else:
                exchange.fail(refusal)
        while parser.requests and self._may_begin:
            self._body_period = None
            request = parser.requests.pop(0)
            self.host, self.peers = self._told(request) if request.forwarded else (self._host, self._peers)
            self._exchange = exchange = Exchange(self._proxy, self, request)
            exchange.begin()

    def _told(self, request: Request) -> tuple[str, bytes]:
        """The client's address, and both ends for the hop, by the word of the proxy that sent it."""
        assert self._origin is not None, "fields of anybody else are dropped"
        client, server, scheme = self._origin
        told = request.forwarded
        client = self._trust.client(told) or client
        peers = hop.peers(client, server, forwarded.scheme(told) or scheme)
        return "" if client is None else client[0], peers

    @property
    def _may_begin(self) -> bool:
        """One at a time, and none for a client that does not take its answers."""
        return self._exchange is None and self._unwanted is None and self.writable and not self._leaving

    def _skip(self, request: Request) -> None:
        """Read the body of a request that has been answered, but not without end."""
        if request.complete:
            self._unwanted = None
            self._since = time.monotonic()
            if not request.keep_alive:  # its trailers said so
                self._leave(unread=False)
        elif request.refusal is not None or request.body.received - self._left_over > DISCARDED_BODY:
            self._leave(unread=True)

    def _leave(self, unread: bool) -> None:
        """Close, but not so that input which nobody read destroys the answer on its way."""
        self._leaving = True
        self._unwanted = None
        self._left_over = 0
        self._since = time.monotonic()
        unread = unread or bool(self._unparsed) or bool(self._parser.requests)
        self._unparsed = b""
        self._parser.close()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if not unread:
            transport.close()
            return
        if transport.can_write_eof():  # TLS cannot: there the client has to go by the answer's `connection: close`
            transport.write_eof()
        self.regulate()

    def _drop(self, length: int) -> None:
        self._left_over += length
        transport = self.transport
        if self._left_over > DISCARDED_BODY and transport is not None and not _untaken(transport):
            transport.close()

    def _gone(self) -> None:
        self._leaving = True
        self._parser.close()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

    # Clocks

    def sweep(self, now: float) -> None:
        """Look at the clocks; `now` as `time.monotonic()` counts."""
        transport = self.transport
        if transport is None:
            return
        # A TLS layer counts only what it has not encrypted; what is below would be lost when it is ended. And to close
        # while input comes that nobody reads destroys what is still on its way. Of a slow reader it is the kernel that
        # knows what it takes: it does not ask for more before a good part of what it holds has gone.
        unsent = transport.get_write_buffer_size()
        if unsent or (self._exchange is None and (self._tls or self._leaving)):
            unsent = _untaken(transport)
        if self._is_stalled(unsent, now):
            transport.abort()
        elif self._leaving:
            if unsent:  # it still takes its answer
                self._since = now
            elif now - self._since > self._patience.linger_s:
                if transport.is_closing():
                    transport.abort()
                else:
                    transport.close()
        elif self._unwanted is not None:
            if now - self._since > self._patience.discard_s:
                self._leave(unread=True)
        elif self._exchange is not None:
            self._sweep_body(self._exchange, now)
        elif not unsent:
            self._sweep_idle(now)

    def _sweep_idle(self, now: float) -> None:
        if self._head_since is not None:
            if now - self._head_since > self._patience.head_s:
                self._parser.refuse(RequestTimeout(f"the head did not arrive within {self._patience.head_s:g} s"))
                self._advance()
        elif self.closing or now - self._since > (
            self._patience.keep_alive_s if self._served else self._patience.head_s
        ):
            self._leave(unread=False)

    def _sweep_body(self, exchange: Exchange, now: float) -> None:
        request = exchange.request
        if exchange.waits and not self.reading and _has_left(self.transport):
            self._gone()
            self.abort()
            return
        if not exchange.body_is_due or not self.reading:
            self._body_period = None
            return
        received, minimum = request.body.received, self._patience.body
        if self._body_period is None:
            self._body_period = Period(now, received)
            return
        self._body_period = measured(self._body_period, now, received, minimum)
        if self._body_period is None:
            self._parser.refuse(
                RequestTimeout(
                    f"the body arrived at less than {minimum.bytes_per_s:g} bytes a second within "
                    f"{minimum.grace_s:g} s, which are min_body_rate and body_grace_s"
                )
            )
            self._advance()

    def _is_stalled(self, waiting: int, now: float) -> bool:
        """Whether the client has taken nothing for too long."""
        if waiting == 0:
            self._stalled = None
        elif self._stalled is None or self._stalled[1] != waiting:
            self._stalled = now, waiting
        else:
            return now - self._stalled[0] > self._patience.stalled_write_s
        return False


def _untaken(transport: asyncio.Transport) -> int:
    """Bytes that the client's end does not have yet."""
    return transport.get_write_buffer_size() + not_acknowledged(transport)


def not_acknowledged(transport: asyncio.Transport) -> int:
    """Bytes that the kernel still holds."""
    connection = transport.get_extra_info("socket")
    if connection is None:  # it was lost in this turn of the loop
        return 0
    try:
        answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except OSError:  # it has been closed
        return 0
    return int.from_bytes(answer, sys.byteorder)


def _has_left(transport: asyncio.Transport | None) -> bool:
    """Whether the client's end is closed, also where input is left unread that hides the end of the stream."""
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None or sys.platform != "linux":
        return False
    try:
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:  # it has been closed
        return False
    return state in TCP_CLOSED


def _address(transport: asyncio.Transport, end: str) -> tuple[str, int] | None:
    address = transport.get_extra_info(end)
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
