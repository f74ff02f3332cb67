"""The caller's end of the wait queue of a replica: an exchange whose response does not end."""

import secrets
from collections.abc import Callable

from app_toolkit.errors import ReplicaGone
from app_toolkit.interfaces import Endpoint, QueuePosition
from app_toolkit.wire import hop
from app_toolkit.wire.pool import Pool, PooledConnection, ResponseHead


class WaitQueues:
    """The wait queues in which one caller has a position, one for each full replica. Not thread-safe."""

    def __init__(self, pool: Pool, token: bytes) -> None:
        name = secrets.token_hex(8).encode()
        identity = hop.encode(token, name, b"1.1", hop.peers(None, None, "http"))
        self._pool = pool
        self._head = b"GET / HTTP/1.1\r\n%b: %b\r\n%b: %b\r\nhost: replica\r\n\r\n" % (
            hop.HOP,
            identity,
            hop.QUEUE,
            name,
        )
        #: The field of a request that redeems a reservation.
        self.redeem = hop.REDEEM, name
        self._positions: set[_Position] = set()

    def join(self, endpoint: Endpoint, reserved: Callable[[], None], ended: Callable[[], None]) -> QueuePosition:
        """Join a wait queue, as described for `interfaces.Join`. If the replica is not reached, the position ends."""
        position = _Position(self._pool, self._head, reserved, ended, self._positions.discard)
        self._positions.add(position)
        connection = self._pool.take(endpoint.address)
        if connection is not None:
            position.reached(connection)
        else:
            self._pool.dial(endpoint.address, position.reached, position.lost)
        return position

    def close(self) -> None:
        """Leave all queues."""
        for position in list(self._positions):
            position.leave()

    def __len__(self) -> int:
        return len(self._positions)


class _Position:
    """A position in the wait queue of one replica, and the listener of its exchange."""

    def __init__(
        self,
        pool: Pool,
        head: bytes,
        reserved: Callable[[], None],
        ended: Callable[[], None],
        forget: Callable[["_Position"], None],
    ) -> None:
        self._pool = pool
        self._head = head
        self._reserved = reserved
        self._ended = ended
        self._forget = forget
        self._left = False
        self._connection: PooledConnection | None = None
        self._joined = False

    def leave(self) -> None:
        self._left = True
        self._forget(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def reached(self, connection: PooledConnection) -> None:
        if self._left:  # the position was left while the connection was opened
            self._pool.give_back(connection)
            return
        self._connection = connection
        connection.begin(self, decode=True)
        connection.write(self._head)

    # Callbacks of the connection

    def informed(self, response: ResponseHead) -> None:
        pass

    def response_started(self, response: ResponseHead) -> None:
        self._joined = response.status == 200 and response.refusal is None

    def received(self, data: bytes) -> None:
        for _ in data:
            if self._joined and not self._left:
                self._reserved()

    def ended(self, reusable: bool) -> None:
        connection, self._connection = self._connection, None
        assert connection is not None
        if reusable:
            self._pool.give_back(connection)
        else:
            connection.abort()
        self._over()

    def lost(self, error: ReplicaGone) -> None:
        self._connection = None
        self._over()

    def writing_paused(self, paused: bool) -> None:
        pass

    def _over(self) -> None:
        if not self._left:
            self._left = True
            self._forget(self)
            self._ended()
