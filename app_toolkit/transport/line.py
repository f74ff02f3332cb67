"""The caller's end of a line: an exchange with a replica that others filled, whose answer does not end."""

import secrets
from collections.abc import Callable

from app_toolkit.errors import ReplicaGone
from app_toolkit.interfaces import Endpoint, QueuePosition
from app_toolkit.transport import hop
from app_toolkit.transport.pool import Answer, Pool, PooledConnection


class Lines:
    """All lines in which one caller stands, each at another replica. Not safe across threads."""

    def __init__(self, pool: Pool, token: bytes) -> None:
        name = secrets.token_hex(8).encode()
        identity = hop.encode(token, name, b"1.1", hop.peers(None, None, "http"))
        self._pool = pool
        self._head = b"GET / HTTP/1.1\r\n%b: %b\r\n%b: %b\r\nhost: replica\r\n\r\n" % (
            hop.HOP,
            identity,
            hop.LINE,
            name,
        )
        #: What follows the value of the hop field of a request that claims an offer.
        self.claim = b"\r\n%b: %b" % (hop.CLAIM, name)
        self._places: set[_Place] = set()

    def stand(self, endpoint: Endpoint, offered: Callable[[], None], ended: Callable[[], None]) -> QueuePosition:
        """As `interfaces.Stand` says; a replica that is not reached ends the line."""
        place = _Place(self._pool, self._head, offered, ended, self._places.discard)
        self._places.add(place)
        connection = self._pool.take(endpoint.address)
        if connection is not None:
            place.reached(connection)
        else:
            self._pool.dial(endpoint.address, place.reached, place.lost)
        return place

    def close(self) -> None:
        """Leave all lines."""
        for place in list(self._places):
            place.leave()

    def __len__(self) -> int:
        return len(self._places)


class _Place:
    """One exchange, and its listener."""

    def __init__(
        self,
        pool: Pool,
        head: bytes,
        offered: Callable[[], None],
        ended: Callable[[], None],
        forget: Callable[["_Place"], None],
    ) -> None:
        self._pool = pool
        self._head = head
        self._offered = offered
        self._ended = ended
        self._forget = forget
        self._left = False
        self._connection: PooledConnection | None = None
        self._stands = False

    def leave(self) -> None:
        self._left = True
        self._forget(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def reached(self, connection: PooledConnection) -> None:
        if self._left:  # while it was dialled
            self._pool.give_back(connection)
            return
        self._connection = connection
        connection.begin(self, decode=True)
        connection.write(self._head)

    # What the replica's connection says

    def informed(self, answer: Answer) -> None:
        pass

    def answered(self, answer: Answer) -> None:
        self._stands = answer.status == 200 and answer.refusal is None

    def received(self, data: bytes) -> None:
        for _ in data:
            if self._stands and not self._left:
                self._offered()

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
