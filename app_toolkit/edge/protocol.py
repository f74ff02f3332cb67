"""The connection of one client: read requests, begin their exchanges in order, and enforce timeouts."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from dataclasses import dataclass
from typing import Protocol, cast

from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.edge import forwarded
from app_toolkit.edge.forwarded import Trust
from app_toolkit.edge.request_parser import HeadLimits, Request, RequestParser
from app_toolkit.edge.response import ClientResponse
from app_toolkit.edge.state import ProxyState
from app_toolkit.errors import RequestTimeout
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.preference import Preference
from app_toolkit.exchange.request import DISCARDED_BODY, KEPT_BODY
from app_toolkit.exchange.upload_rate import MinimumRate, Period, measured
from app_toolkit.types import Header
from app_toolkit.wire import hop
from app_toolkit.wire.corked import CorkedTransport

DEFAULT_RATE = MinimumRate(bytes_per_s=500.0, grace_s=5.0)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The timeouts for clients, in seconds, and the minimum rate of request bodies."""

    head_s: float = 10.0
    keep_alive_s: float = 5.0
    body: MinimumRate = DEFAULT_RATE
    discard_s: float = 5.0
    linger_s: float = 2.0
    #: Long, because the receive window of a slow reader opens in steps that can be this far apart on a slow network.
    stalled_write_s: float = 120.0


LINGER_S = 0.5
"""Seconds for which a draining server keeps an idle connection, because its next request may be on its way already. The
response to that one closes the connection."""

TCP_CLOSED = (7, 8)
"""The kernel's TCP states `TCP_CLOSE` and `TCP_CLOSE_WAIT`, in which the client sends nothing more."""

ConnectionAddresses = tuple[tuple[str, int] | None, tuple[str, int] | None, str]
"""The address of the client, the address of this server, and the scheme. The addresses are None on a Unix socket."""


class ServedConnection(Protocol):
    """The connection of a client, admitted or refused, as a server uses it."""

    @property
    def is_serving(self) -> bool:
        """Whether the connection is serving a request, for which a drain waits."""
        ...

    def sweep(self, now: float) -> None:
        """Enforce the timeouts of the connection."""
        ...

    def shutdown(self) -> None: ...

    def dismiss(self) -> None: ...

    def abort(self) -> None: ...


class ServerState(Protocol):
    """The state that connections share with uvicorn's server."""

    total_requests: int
    connections: set[ServedConnection]
    tasks: set[asyncio.Task[None]]
    default_headers: list[Header]


class ClientConnection(asyncio.Protocol):
    """The connection of a client, as uvicorn's server uses it.

    * Requests are answered in order, one at a time. Pipelined requests wait as unparsed bytes.
    * Backpressure applies in both directions: if the replica or the client reads slowly, reading from the other pauses.
    * The end of the client's stream counts as a disconnect, and cancels the request that is being served.
    * Every state of the connection has a timeout, which `sweep` enforces.
    """

    def __init__(
        self, proxy: ProxyState, state: ServerState, limits: HeadLimits, timeouts: Timeouts, trust: Trust
    ) -> None:
        # Shared by all connections
        self._proxy = proxy
        self._state = state
        self._timeouts = timeouts
        self._trust = trust
        # For the lifetime of the connection
        self._host = ""
        self._peers = b""
        self.served: dict[ReplicaSetKey, Preference] = {}
        #: Both addresses and the scheme, if the client is a trusted proxy whose forwarded fields may replace them.
        self._addresses: ConnectionAddresses | None = None
        self.writable = True
        self.transport: CorkedTransport | None = None
        self._tls = False
        self._parser = RequestParser(limits)
        self._loop = asyncio.get_running_loop()
        self.reading = True
        self._stopping = False
        #: Bytes that were read, and are parsed once the previous requests are answered.
        self._unparsed = b""
        # For the current request
        #: The address of the client: that of the connection, or that in the forwarded fields of a trusted proxy.
        self.host = ""
        self.peers = b""
        self._exchange: Exchange | None = None
        #: A request that has been answered, while its body still arrives.
        self._discarded: Request | None = None
        #: Whether the last response is written. Bytes that still arrive are not parsed.
        self._leaving = False
        self._left_over = 0
        # Timeouts
        self._since = proxy.clock()
        self._served = False
        self._head_since: float | None = None
        self._body_period: Period | None = None
        #: When the client last took bytes, and how many it had taken.
        self._stalled: tuple[float, int] | None = None

    # Callbacks of the event loop

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
            self._addresses = client, server, scheme

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self.transport = None
        self._unparsed = b""
        self._client_left()

    def eof_received(self) -> None:
        unfinished = self.is_serving
        self._client_left()
        if self.transport is None:
            return
        if unfinished:  # the response will not be completed
            self.transport.abort()
        else:  # the event loop would close the inner transport, without the bytes that the corked transport holds
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

    # For uvicorn's server

    def shutdown(self) -> None:
        """Close the connection once the current request is answered, or if none arrives within `LINGER_S`."""
        self._stopping = True
        if self._discarded is not None:
            self._leave(unread=True)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def dismiss(self) -> None:
        """End the current request with an error response, or the WebSocket with a close frame, and close.

        It is called when the drain timeout has passed. A connection without a request is aborted.
        """
        if self._exchange is not None:
            self._exchange.dismiss()
        elif not self._leaving:
            self.abort()

    # For the exchange

    @property
    def default_headers(self) -> list[Header]:
        return self._state.default_headers

    @property
    def closing(self) -> bool:
        return self._stopping or self._proxy.draining

    @property
    def is_serving(self) -> bool:
        """Whether a request of this client is waiting or being answered. An open WebSocket does not count."""
        return self._exchange is not None and not self._exchange.tunnels

    def write(self, data: bytes) -> None:
        if self.transport is not None and data:
            self.transport.write(data)

    def pass_on(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write_through(data)

    def regulate(self) -> None:
        """Pause or resume reading from the client, as the current exchange and the buffered bytes require."""
        exchange = self._exchange
        reads = self._leaving or (len(self._unparsed) <= KEPT_BODY and (exchange is None or exchange.wants_body))
        if reads is self.reading or self.transport is None or self.transport.is_closing():
            return
        self.reading = reads
        if reads:
            self._body_period = None
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def finished(self, request: Request, keep: bool) -> None:
        self._state.total_requests += 1
        self._exchange = None
        self._served = True
        self._since = self._proxy.clock()
        if self._head_since is not None:
            self._head_since = self._since
        if not keep or self._stopping:
            self._leave(unread=not request.complete)
            return
        if not request.complete:
            request.body.discard()
            self._discarded = request
            self._left_over = request.body.received
        elif self._unparsed or self._parser.requests:
            # Not called directly, because thousands of pipelined requests would then recurse as deeply.
            self._loop.call_soon(self._go_on)
        if self._unparsed or not self.reading:
            self.regulate()

    def cut(self, reset: bool) -> None:
        self._exchange = None
        self._leaving = True
        self._since = self._proxy.clock()
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
        # With TLS, only closing the connection signals the end of the data. If `last` is empty, the client already has
        # the replica's close frame and waits only for that end, so close at once.
        self._leave(unread=bool(last) or (self.transport is not None and self.transport.can_write_eof()))

    # Read requests

    def _go_on(self) -> None:
        if not self._leaving and self.transport is not None:
            self._advance()
            data, self._unparsed = self._unparsed, b""
            self._read(data)
            self.regulate()

    def _read(self, data: bytes) -> None:
        """Feed the parser until a request has to wait for the previous one, and keep the remaining bytes."""
        parser = self._parser
        start, length = 0, len(data)
        while start < length and not parser.requests and not self._leaving:
            end = start + parser.feed_limit
            parser.feed(data if start == 0 and end >= length else data[start:end])
            start = end
            self._advance()
        if start < length and not self._leaving:
            self._unparsed = data[start:]
        if parser.in_head and self._head_since is None:
            self._head_since = self._proxy.clock()

    def _advance(self) -> None:
        """Pass on the new bytes of the current request, and begin the next request if there is no current one."""
        parser = self._parser
        if not parser.in_head:
            self._head_since = None
        if self._discarded is not None:
            self._skip(self._discarded)
        exchange = self._exchange
        if exchange is not None:
            error = exchange.request.error
            if error is None:
                exchange.body_arrived()
            else:
                exchange.fail(error)
        while parser.requests and self._may_begin:
            self._body_period = None
            request = parser.requests.pop(0)
            self.host, self.peers = self._forwarded_client(request) if request.forwarded else (self._host, self._peers)
            self._exchange = exchange = Exchange(self._proxy, ClientResponse(request, self), request)
            exchange.begin()

    def _forwarded_client(self, request: Request) -> tuple[str, bytes]:
        """Return the client's address and the peers for the hop field, from a trusted proxy's forwarded fields."""
        assert self._addresses is not None, "fields of anybody else are dropped"
        client, server, scheme = self._addresses
        sender = request.forwarded
        client = self._trust.client(sender) or client
        peers = hop.peers(client, server, forwarded.scheme(sender) or scheme)
        return "" if client is None else client[0], peers

    @property
    def _may_begin(self) -> bool:
        """Whether the next request may begin: none is being served, and the client reads its responses."""
        return self._exchange is None and self._discarded is None and self.writable and not self._leaving

    def _skip(self, request: Request) -> None:
        """Discard the body of a request that has been answered, up to `DISCARDED_BODY` bytes."""
        if request.complete:
            self._discarded = None
            self._since = self._proxy.clock()
            if not request.keep_alive:  # the trailers contained `connection: close`
                self._leave(unread=False)
        elif request.error is not None or request.body.received - self._left_over > DISCARDED_BODY:
            self._leave(unread=True)

    def _leave(self, unread: bool) -> None:
        """Close the connection, at once or after lingering.

        If a socket is closed while it holds unread input, the kernel resets the connection, and the client may lose the
        response. So if `unread`, only the write side is closed, and input is read and discarded for a while.
        """
        self._leaving = True
        self._discarded = None
        self._left_over = 0
        self._since = self._proxy.clock()
        unread = unread or bool(self._unparsed) or bool(self._parser.requests)
        self._unparsed = b""
        self._parser.close()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if not unread:
            transport.close()
            return
        if transport.can_write_eof():  # not with TLS, where the client sees `connection: close` in the response
            transport.write_eof()
        self.regulate()

    def _drop(self, length: int) -> None:
        self._left_over += length
        transport = self.transport
        if self._left_over > DISCARDED_BODY and transport is not None and not _unacknowledged_bytes(transport):
            transport.close()

    def _client_left(self) -> None:
        self._leaving = True
        self._parser.close()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

    # Timeouts

    def sweep(self, now: float) -> None:
        """Enforce the timeouts. `now` is a time of the proxy's clock."""
        transport = self.transport
        if transport is None:
            return
        # The write buffer size of a TLS transport excludes encrypted bytes, which would be lost if it were aborted. To
        # close while unread input arrives resets the connection, which loses bytes in the kernel's send buffer. And
        # only the kernel's send buffer shows the progress of a slow reader, because the socket becomes writable again
        # only after a large part of that buffer is sent.
        unsent = transport.get_write_buffer_size()
        if unsent or (self._exchange is None and (self._tls or self._leaving)):
            unsent = _unacknowledged_bytes(transport)
        if self._is_stalled(unsent, transport.written, now):
            transport.abort()
        elif self._leaving:
            if unsent:  # the client still reads its response
                self._since = now
            elif now - self._since > self._timeouts.linger_s:
                if transport.is_closing():
                    transport.abort()
                else:
                    transport.close()
        elif self._discarded is not None:
            if now - self._since > self._timeouts.discard_s:
                self._leave(unread=True)
        elif self._exchange is not None:
            self._sweep_body(self._exchange, now)
        elif not unsent:
            self._sweep_idle(now)

    def _sweep_idle(self, now: float) -> None:
        if self._head_since is not None:
            if now - self._head_since > self._timeouts.head_s:
                self._parser.refuse(RequestTimeout(f"the head did not arrive within {self._timeouts.head_s:g} s"))
                self._advance()
        else:
            idle_s = self._timeouts.keep_alive_s if self._served else self._timeouts.head_s
            if now - self._since > (min(idle_s, LINGER_S) if self.closing else idle_s):
                self._leave(unread=False)

    def _sweep_body(self, exchange: Exchange, now: float) -> None:
        request = exchange.request
        if exchange.waits and not self.reading and _has_left(self.transport):
            self._client_left()
            self.abort()
            return
        if not exchange.body_is_due or not self.reading:
            self._body_period = None
            return
        received, minimum = request.body.received, self._timeouts.body
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

    def _is_stalled(self, unsent: int, written: int, now: float) -> bool:
        """Whether the client has taken none of the unsent bytes for `stalled_write_s`."""
        taken = written - unsent
        if unsent == 0:
            self._stalled = None
        elif self._stalled is None or self._stalled[1] != taken:
            self._stalled = now, taken
        else:
            return now - self._stalled[0] > self._timeouts.stalled_write_s
        return False


def _unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return the number of bytes that the client has not acknowledged."""
    return transport.get_write_buffer_size() + not_acknowledged(transport)


def not_acknowledged(transport: asyncio.Transport) -> int:
    """Return the number of bytes in the kernel's send buffer."""
    connection = transport.get_extra_info("socket")
    if connection is None:  # the connection was lost in this iteration of the event loop
        return 0
    try:
        unsent = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except OSError:  # the socket is closed
        return 0
    return int.from_bytes(unsent, sys.byteorder)


def _has_left(transport: asyncio.Transport | None) -> bool:
    """Return whether the client has closed its end, even if unread input precedes the end of its stream."""
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None or sys.platform != "linux":
        return False
    try:
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:  # the socket is closed
        return False
    return state in TCP_CLOSED


def _address(transport: asyncio.Transport, end: str) -> tuple[str, int] | None:
    address = transport.get_extra_info(end)
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
