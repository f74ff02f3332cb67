"""Who connects to a replica: what a connection begins with says what it is, and shows the secret."""

import asyncio
import hmac
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from app_toolkit.replica.circuit import CallerCircuit
from app_toolkit.replica.connection import CallerConnection
from app_toolkit.replica.replica import Replica
from app_toolkit.transport import hop
from app_toolkit.transport.preface import Carries, beginning
from app_toolkit.transport.sockets import close_in_children, send_ahead
from app_toolkit.transport.trunk import Room, Trunk

SHOWN_S = 5.0
"""Within which the secret is shown: a caller sends it as soon as it is there."""

MOST_STRANGERS = 64
"""That have all of that time."""

MOMENT_S = 0.1
"""What the others have, twice."""

REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\n%b: secret\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % hop.REFUSED
)


class Strangers:
    """Connections over which the secret has not been shown yet.

    Each has `shown_s` seconds, and where there are more than `most` the oldest has a moment left: they hold up nobody,
    and keep nobody out.
    """

    def __init__(self, shown_s: float = SHOWN_S, most: int = MOST_STRANGERS) -> None:
        self._shown_s = shown_s
        self._most = most
        #: With what they have left of their time; the others have a moment.
        self._in_time: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        self._late: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._in_time) + len(self._late)

    def add(self, transport: asyncio.Transport) -> None:
        self._in_time[transport] = asyncio.get_running_loop().call_later(self._shown_s, self._hurry, transport)
        if len(self._in_time) > self._most:
            self._hurry(next(iter(self._in_time)))

    def discard(self, transport: asyncio.Transport) -> None:
        """It is none, or has gone."""
        clock = self._in_time.pop(transport, None) or self._late.pop(transport, None)
        if clock is not None:
            clock.cancel()

    def _hurry(self, transport: asyncio.Transport) -> None:
        self._in_time.pop(transport).cancel()
        self._late[transport] = asyncio.get_running_loop().call_later(MOMENT_S, self._look_once_more, transport)

    def _look_once_more(self, transport: asyncio.Transport) -> None:
        # Some event loops look at their clocks before they read: what came while a handler kept the loop is read first.
        self._late[transport] = asyncio.get_running_loop().call_later(MOMENT_S, transport.abort)


class Arrival(asyncio.Protocol):
    """A connection that has just been accepted.

    Who comes through a file that none but this user may open may also speak HTTP at once, by hand.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        gate: Replica,
        secret: bytes,
        room: Room,
        strangers: Strangers,
    ) -> None:
        """`gate` is what `config` serves, too: over a connection, and behind the app's lifespan."""
        self._http = partial(CallerConnection, config, server_state, app_state, _loop)
        self._accept = partial(CallerCircuit, gate, config, server_state, app_state)
        self._connections = cast(set[Any], server_state.connections)
        self._secret = secret
        self._strangers = strangers
        self._by_file = False
        self._room = room
        self._begun = b""
        self._trunk: Trunk | None = None
        #: What uvicorn knows of a connection is this, and `shutdown`.
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        close_in_children(transport)
        send_ahead(transport)
        self._connections.add(self)
        self._by_file = not isinstance(transport.get_extra_info("sockname"), tuple)
        if not self._by_file:
            self._strangers.add(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._strangers.discard(self.transport)
        self._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        begun = self._begun = self._begun + data
        carried: dict[Carries, Callable[[bytes], None]] = {"trunk": self._become_trunk, "http": self._become_http}
        for carries, become in carried.items():
            said = beginning(carries)
            if begun.startswith(said):
                self._compare(begun, len(said), become)
                return
            if said.startswith(begun):
                return  # it may become that
        if self._by_file:
            self._become_http(begun)
        else:
            self._refuse()

    def _compare(self, begun: bytes, at: int, become: Callable[[bytes], None]) -> None:
        """The secret, once it is there."""
        end = at + len(self._secret) + 1
        if len(begun) < end:
            return
        if hmac.compare_digest(begun[at:end], self._secret + b"\n"):
            become(begun[end:])
        else:
            self._refuse()

    def shutdown(self) -> None:
        """Nothing new; what runs may end."""
        if self._trunk is None:
            self.transport.close()
        else:
            self._trunk.retire()

    def _refuse(self) -> None:
        self._strangers.discard(self.transport)
        self.transport.write(REFUSAL)
        self.transport.close()

    def _become_http(self, data: bytes) -> None:
        self._strangers.discard(self.transport)
        self._connections.discard(self)
        talker = self._http()
        self.transport.set_protocol(talker)
        talker.connection_made(self.transport)
        if data:
            talker.data_received(data)

    def _become_trunk(self, data: bytes) -> None:
        self._strangers.discard(self.transport)
        self._trunk = Trunk(self._room, self._accept, lambda _: self._connections.discard(self))
        self.transport.set_protocol(self._trunk)
        self._trunk.connection_made(self.transport)
        self._trunk.feed(memoryview(data))
