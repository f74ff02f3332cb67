"""New connections to a replica. Over TCP, a connection begins with a proof that the caller knows the secret."""

import asyncio
import hmac
import logging
from functools import partial
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from app_toolkit.replica.admission.replica import Replica
from app_toolkit.replica.http.connection import CallerConnection
from app_toolkit.wire import hop
from app_toolkit.wire.preface import BEGINNING, LAST, NONCE, respond
from app_toolkit.wire.sockets import check_peer, close_in_children, send_ahead

logger = logging.getLogger("app_toolkit.replica")

SHOWN_S = 5.0
"""Time limit for the proof in seconds. A caller needs two exchanges of one line."""

MAX_UNAUTHENTICATED = 64
"""Number of unauthenticated connections that have the full time limit."""

MOMENT_S = 0.25
"""Time in seconds for each of two periods that the other connections have."""

UNAUTHENTICATED = (
    b"HTTP/1.1 503 Service Unavailable\r\n%b: secret\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % hop.REFUSED
)


class UnauthenticatedPeers:
    """Connections whose callers have not yet proved that they know the secret.

    Each has `shown_s` seconds. If there are more than `most`, the oldest one has only a moment left. So such
    connections neither block other callers nor keep them out.
    """

    def __init__(self, shown_s: float = SHOWN_S, most: int = MAX_UNAUTHENTICATED) -> None:
        self._shown_s = shown_s
        self._most = most
        #: Connections within their time limit, with its timer. The others have only a moment.
        self._in_time: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        self._late: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._in_time) + len(self._late)

    def add(self, transport: asyncio.Transport) -> None:
        self._in_time[transport] = asyncio.get_running_loop().call_later(
            self._shown_s, self._shorten_timeout, transport
        )
        if len(self._in_time) > self._most:
            self._shorten_timeout(next(iter(self._in_time)))

    def discard(self, transport: asyncio.Transport) -> None:
        """Remove a connection that has been authenticated, refused or closed."""
        clock = self._in_time.pop(transport, None) or self._late.pop(transport, None)
        if clock is not None:
            clock.cancel()

    def _shorten_timeout(self, transport: asyncio.Transport) -> None:
        """Leave a connection only a moment more."""
        self._in_time.pop(transport).cancel()
        self._late[transport] = asyncio.get_running_loop().call_later(MOMENT_S, self._abort_after_read, transport)

    def _abort_after_read(self, transport: asyncio.Transport) -> None:
        # Some event loops run timers before they read. Data that arrived while a handler blocked the loop is read
        # first.
        self._late[transport] = asyncio.get_running_loop().call_later(MOMENT_S, transport.abort)


class UnauthenticatedConnection(asyncio.Protocol):
    """A connection that has just been accepted.

    A process of this user, or of root, that connects through the Unix socket may send HTTP at once.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        replica: Replica,
        secret: bytes,
        unauthenticated: UnauthenticatedPeers,
    ) -> None:
        """`replica`: `config` serves it as well, behind the app's lifespan and for WebSockets."""
        self._http = partial(CallerConnection, replica, config, server_state, app_state)
        self._connections = cast(set[Any], server_state.connections)
        self._secret = secret
        self._unauthenticated = unauthenticated
        self._begun = b""
        #: The proof that the caller has to send; empty until its first line has arrived.
        self._expected = b""
        #: uvicorn uses only this attribute and `shutdown` of a connection.
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        close_in_children(transport)
        self._connections.add(self)
        if isinstance(transport.get_extra_info("sockname"), tuple):
            self._unauthenticated.add(self.transport)
            return
        try:
            check_peer(transport.get_extra_info("socket"))
        except PermissionError as error:
            logger.warning("closing a connection before reading from it: %s", error)
            self.transport.abort()
        else:
            send_ahead(transport)
            self._become_http(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self._unauthenticated.discard(self.transport)
        self._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        begun = self._begun = self._begun + data
        if self._expected:
            self._compare(begun)
        elif begun.startswith(BEGINNING):
            self._respond(begun)
        elif not BEGINNING.startswith(begun):  # otherwise it may be an incomplete beginning
            self._refuse()

    def _respond(self, begun: bytes) -> None:
        """Answer the first line of the caller, once it is complete."""
        missing = len(BEGINNING) + NONCE + 1 - len(begun)
        if missing > 0:
            return
        if missing < 0 or not begun.endswith(b"\n"):  # the caller did not wait for the replica's proof, or sent no line
            self._refuse()
            return
        self._begun = b""
        response, self._expected = respond(self._secret, begun, self.transport.get_extra_info("sockname"))
        self.transport.write(response)
        # The time limit starts again, once: a handler may have blocked the event loop, and may do so again.
        self._unauthenticated.discard(self.transport)
        self._unauthenticated.add(self.transport)

    def _compare(self, begun: bytes) -> None:
        """Check the proof of the caller, once it is complete."""
        if len(begun) < LAST:
            return
        if hmac.compare_digest(begun[:LAST], self._expected):
            self._unauthenticated.discard(self.transport)
            self._become_http(begun[LAST:])
        else:
            self._refuse()

    def shutdown(self) -> None:
        self.transport.close()

    def _refuse(self) -> None:
        self._unauthenticated.discard(self.transport)
        self.transport.write(UNAUTHENTICATED)
        self.transport.close()

    def _become_http(self, data: bytes) -> None:
        self._connections.discard(self)
        talker = self._http()
        self.transport.set_protocol(talker)
        talker.connection_made(self.transport)
        if data:
            talker.data_received(data)
