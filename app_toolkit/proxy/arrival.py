"""What becomes of a client that connects: it is admitted, or told that the proxy is full; with TLS, once hands are
shaken."""

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from app_toolkit.errors import TooManyConnections
from app_toolkit.proxy import builtin
from app_toolkit.proxy.protocol import ClientConnection, Patience, ServedConnection, ServerState
from app_toolkit.proxy.proxy import Proxy
from app_toolkit.proxy.request import DISCARDED_BODY

log = logging.getLogger("app_toolkit.proxy")

MOST_RESERVED = 4_096


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many sockets a proxy may hold, each for what it is there for."""

    clients: int
    #: Refused, and not gone yet; for one more the oldest is closed.
    refused: int
    #: In the kernel's queue, not accepted yet.
    backlog: int

    @classmethod
    def within(cls, descriptors: int, clients: int | None = None) -> "Capacity":
        """What a number of descriptors allows; `clients` is what somebody asks for instead of what would fit.

        A quarter of them is set aside, 4,096 at most: one half of that for clients that all come at once, a quarter
        for refusals, a quarter for the process itself. Of the others each client may need two, for itself and for the
        replica that serves it.
        """
        reserve = min(MOST_RESERVED, descriptors // 4)
        return cls(
            clients=clients or max(1, (descriptors - reserve) // 2),
            refused=max(1, reserve // 4),
            backlog=max(1, reserve // 2),
        )


class Reception:
    """Receives clients for one server, and knows how many it has. `tls`: whom to shake hands with first."""

    def __init__(
        self,
        proxy: Proxy,
        new_client: Callable[[], ClientConnection],
        state: ServerState,
        capacity: Capacity,
        patience: Patience,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.proxy = proxy
        self.new_client = new_client
        self.state = state
        self.capacity = capacity
        self.patience = patience
        self.tls = tls
        #: Those that were refused, until they have gone; the first has been there longest.
        self.refused: dict[ServedConnection, None] = {}

    def receive(self, transport: asyncio.Transport) -> None:
        """Give a new connection its protocol."""
        admitted = len(self.state.connections) < self.capacity.clients
        if not admitted:
            self._make_room_to_refuse()
        protocol = self.new_client() if admitted else Refusal(self)
        if self.tls is None:
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
        else:
            Handshake(protocol, admitted, self, self.tls).begin(transport)

    def hold(self, connection: ServedConnection, admitted: bool) -> None:
        if admitted:
            self.state.connections.add(connection)
        else:
            self.refused[connection] = None

    def let_go(self, connection: ServedConnection) -> None:
        self.state.connections.discard(connection)
        self.refused.pop(connection, None)

    def _make_room_to_refuse(self) -> None:
        if not self.refused:
            log.warning("the proxy has %d clients, which is its limit; others are refused", self.capacity.clients)
        while len(self.refused) >= self.capacity.refused:
            oldest = next(iter(self.refused))
            self.let_go(oldest)
            oldest.abort()


class AcceptedConnection(asyncio.Protocol):
    """A connection's first protocol. Only one that was really accepted counts."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._reception.receive(cast(asyncio.Transport, transport))


class Handshake:
    """A client that has to show that it speaks TLS. It is admitted, or refused, from the beginning."""

    answers = False

    def __init__(self, protocol: asyncio.Protocol, admitted: bool, reception: Reception, tls: ssl.SSLContext) -> None:
        self._protocol = protocol
        self._admitted = admitted
        self._reception = reception
        self._tls = tls
        self._task: asyncio.Task[None] | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Go on with the socket alone: a transport that has begun to read cannot give back what it has read."""
        try:
            descriptor = os.dup(transport.get_extra_info("socket").fileno())
        except OSError:
            return
        finally:
            transport.abort()
        self._reception.hold(self, self._admitted)
        self._task = asyncio.create_task(self._shake(socket.socket(fileno=descriptor)))
        self._reception.state.tasks.add(self._task)
        self._task.add_done_callback(self._reception.state.tasks.discard)

    async def _shake(self, connection: socket.socket) -> None:
        patience = self._reception.patience
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=patience.head_s,
                ssl_shutdown_timeout=patience.stalled_write_s,  # sooner, the sweep sees whether it is still taken
            )
        except OSError:  # it spoke something else, took too long, or went away
            connection.close()
        finally:
            self._reception.let_go(self)

    def sweep(self, now: float) -> None:
        """Its clock is that of the TLS layer."""

    def shutdown(self) -> None:
        self.abort()

    def dismiss(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Refusal(asyncio.Protocol):
    """A client that is not admitted: it is told so, and has a moment to read it."""

    answers = False

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        self._since = time.monotonic()
        self._transport: asyncio.Transport | None = None
        self._dropped = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._since = time.monotonic()
        self._reception.hold(self, admitted=False)
        transport.write(self._answer())
        if transport.can_write_eof():
            transport.write_eof()

    def _answer(self) -> bytes:
        error = TooManyConnections(f"the proxy has {self._reception.capacity.clients} clients, which is its limit")
        self._reception.proxy.unowned.counts.note(error.reason)
        id = self._reception.proxy.mint_id()
        own = builtin.failure(error, id.decode())
        lines = [own.status_line, *(b"%b: %b" % field for field in self._reception.state.default_headers)]
        end = b"%bcontent-length: %d\r\nx-request-id: %b\r\nconnection: close\r\n\r\n"
        return b"\r\n".join((*lines, end % (own.fields, len(own.body), id) + own.body))

    def data_received(self, data: bytes) -> None:
        # Input that nobody reads would destroy the answer on its way.
        self._dropped += len(data)
        if self._dropped > DISCARDED_BODY:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reception.let_go(self)
        self._transport = None

    def sweep(self, now: float) -> None:
        if self._transport is not None and now - self._since > self._reception.patience.linger_s:
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
