"""New connections of clients: admit them, or refuse them if the proxy is full, and perform the TLS handshake."""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from app_toolkit.edge.protocol import ClientConnection, ServedConnection, ServerState, Timeouts
from app_toolkit.edge.state import ProxyState
from app_toolkit.errors import TooManyConnections
from app_toolkit.exchange import builtin
from app_toolkit.exchange.request import DISCARDED_BODY
from app_toolkit.observability.records import NOT_OWNED, Record

log = logging.getLogger("app_toolkit.proxy")

MOST_RESERVED = 4_096
"""The maximum number of file descriptors that are not for admitted clients."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many sockets a proxy may hold, by purpose."""

    clients: int
    #: Refused connections that are not closed yet. If there is one more, the oldest is aborted.
    refused: int
    #: Connections in the kernel's accept queue.
    backlog: int

    @classmethod
    def within(cls, descriptors: int, clients: int | None = None) -> "Capacity":
        """Return the capacity for a number of file descriptors.

        The reserve is a quarter of the descriptors, at most `MOST_RESERVED`. Half of the reserve is for the accept
        queue, a quarter for refused connections, and a quarter for the process itself. Each client needs up to two of
        the remaining descriptors: one for its connection, and one for the connection to a replica.

        Parameters:
            descriptors: The number of file descriptors.
            clients: The configured number of clients. None: as many as the descriptors allow.
        """
        reserve = min(MOST_RESERVED, descriptors // 4)
        return cls(
            clients=clients or max(1, (descriptors - reserve) // 2),
            refused=max(1, reserve // 4),
            backlog=max(1, reserve // 2),
        )


class ConnectionLimiter:
    """Admits or refuses the clients of one server, by the number of its clients.

    `tls`: the context for TLS handshakes. None: clients connect without TLS.
    """

    def __init__(
        self,
        proxy: ProxyState,
        new_client: Callable[[], ClientConnection],
        state: ServerState,
        capacity: Capacity,
        timeouts: Timeouts,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.proxy = proxy
        self.new_client = new_client
        self.state = state
        self.capacity = capacity
        self.timeouts = timeouts
        self.tls = tls
        #: The refused connections that are not closed yet, oldest first.
        self.refused: dict[ServedConnection, None] = {}

    def receive(self, transport: asyncio.Transport) -> None:
        """Admit or refuse a new connection, and set its protocol."""
        admitted = len(self.state.connections) < self.capacity.clients
        if not admitted:
            self._make_room_to_refuse()
        protocol = self.new_client() if admitted else RefusedConnection(self)
        if self.tls is None:
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
        else:
            Handshake(protocol, admitted, self, self.tls).begin(transport)

    def track(self, connection: ServedConnection, admitted: bool) -> None:
        """Count an open connection among the clients, or among the refused connections."""
        if admitted:
            self.state.connections.add(connection)
        else:
            self.refused[connection] = None

    def untrack(self, connection: ServedConnection) -> None:
        """Stop counting a connection that is closed or replaced."""
        self.state.connections.discard(connection)
        self.refused.pop(connection, None)

    def _make_room_to_refuse(self) -> None:
        if not self.refused:
            log.warning("the proxy has %d clients, which is its limit; others are refused", self.capacity.clients)
        while len(self.refused) >= self.capacity.refused:
            oldest = next(iter(self.refused))
            self.untrack(oldest)
            oldest.abort()


class AcceptedConnection(asyncio.Protocol):
    """The first protocol of a new connection. It asks the `ConnectionLimiter` to admit or refuse the connection."""

    def __init__(self, limiter: ConnectionLimiter) -> None:
        self._limiter = limiter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._limiter.receive(cast(asyncio.Transport, transport))


class Handshake:
    """A connection during its TLS handshake. It counts as admitted or refused from the beginning."""

    #: Whether the connection is serving a request: never, because the handshake comes before the first request.
    is_serving = False

    def __init__(
        self, protocol: asyncio.Protocol, admitted: bool, limiter: ConnectionLimiter, tls: ssl.SSLContext
    ) -> None:
        self._protocol = protocol
        self._admitted = admitted
        self._limiter = limiter
        self._tls = tls
        self._task: asyncio.Task[None] | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Start the handshake on a duplicate of the socket: a transport could not return bytes that it has read."""
        try:
            descriptor = os.dup(transport.get_extra_info("socket").fileno())
        except OSError:
            return
        finally:
            transport.abort()
        self._limiter.track(self, self._admitted)
        self._task = asyncio.create_task(self._perform_handshake(socket.socket(fileno=descriptor)))
        self._limiter.state.tasks.add(self._task)
        self._task.add_done_callback(self._limiter.state.tasks.discard)

    async def _perform_handshake(self, connection: socket.socket) -> None:
        timeouts = self._limiter.timeouts
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=timeouts.head_s,
                ssl_shutdown_timeout=timeouts.stalled_write_s,  # the connection's sweep enforces shorter timeouts
            )
        except OSError:  # not TLS, a timeout, or a disconnect
            connection.close()
        finally:
            self._limiter.untrack(self)

    def sweep(self, now: float) -> None:
        """Do nothing: the TLS layer enforces the timeout of the handshake."""

    def shutdown(self) -> None:
        self.abort()

    def dismiss(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()


class RefusedConnection(asyncio.Protocol):
    """The connection of a client that is not admitted. It gets an error response, and time to read it."""

    #: Whether the connection is serving a request: never, because a drain does not wait for a refused client.
    is_serving = False

    def __init__(self, limiter: ConnectionLimiter) -> None:
        self._limiter = limiter
        self._since = limiter.proxy.clock()
        self._transport: asyncio.Transport | None = None
        self._dropped = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._since = self._limiter.proxy.clock()
        self._limiter.track(self, admitted=False)
        transport.write(self._response())
        if transport.can_write_eof():
            transport.write_eof()

    def _response(self) -> bytes:
        error = TooManyConnections(f"the proxy has {self._limiter.capacity.clients} clients, which is its limit")
        record = Record(self._since, 0.0, "connection", NOT_OWNED, "-", 0, error.reason, b"-", status=error.status)
        self._limiter.proxy.records.add(record)
        id = self._limiter.proxy.mint_id()
        response = builtin.failure(error, id.decode())
        lines = [response.status_line, *(b"%b: %b" % field for field in self._limiter.state.default_headers)]
        end = b"%bcontent-length: %d\r\nx-request-id: %b\r\nconnection: close\r\n\r\n"
        return b"\r\n".join((*lines, end % (response.lines, len(response.body), id) + response.body))

    def data_received(self, data: bytes) -> None:
        # Read and discard input, because closing a socket with unread input resets the connection, and the client may
        # then lose the response.
        self._dropped += len(data)
        if self._dropped > DISCARDED_BODY:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limiter.untrack(self)
        self._transport = None

    def sweep(self, now: float) -> None:
        if self._transport is not None and now - self._since > self._limiter.timeouts.linger_s:
            if self._transport.is_closing():
                self._transport.abort()
            else:
                self._transport.close()

    def shutdown(self) -> None:
        self.abort()

    def dismiss(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
