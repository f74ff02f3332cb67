"""The caller's end of a call: one exchange with a replica, whose response consists of frames."""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from typing import Any

from app_toolkit.errors import DeadlineExceeded, ReplicaGone, ReplicaLost
from app_toolkit.transport.calls import Frame, FrameReader
from app_toolkit.transport.pool import Pool, PooledConnection, ResponseHead

HELD = 1024 * 1024
"""Bytes of a stream that are read before its items are consumed. Then reading pauses (backpressure)."""

DEADLINE_EXCEEDED = DeadlineExceeded.status


class Refused(Exception):
    """The replica refused the call. The first argument is the reason (`hop.Refusal`)."""

    def __init__(self, reason: str, holdings: bytes | None) -> None:
        super().__init__(reason)
        #: What the replica reports of the keys that it holds.
        self.holdings = holdings


class Sent:
    """One call in flight on one connection.

    `frame` returns the frames of the response one by one. Once the response is complete, the connection is given back
    to the pool. `abandon` aborts the connection before that, which the replica sees as a disconnect. Belongs to one
    event loop.
    """

    __slots__ = (
        "_ahead",
        "_connection",
        "_document",
        "_error",
        "_frames",
        "_invited",
        "_paused",
        "_pool",
        "_reader",
        "_refusal",
        "_waiter",
        "holdings",
        "key",
        "stream",
    )

    def __init__(self, pool: Pool, connection: PooledConnection, pieces: Sequence[Any], key: str = "") -> None:
        self.key = key
        #: `hop.OPEN` or `hop.KEPT` once the replica has responded with a stream. None: it has not.
        self.stream: bytes | None = None
        #: What the replica has reported of the keys that it holds (`hop.HOLDINGS`).
        self.holdings: bytes | None = None
        self._invited = False
        self._pool = pool
        self._connection: PooledConnection | None = connection
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()
        self._ahead = 0
        self._paused = False
        self._refusal: bytes | None = None
        self._document: list[bytes] | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        connection.begin(self, decode=True)
        connection.write_all(pieces)

    async def invited(self) -> None:
        """Wait until the replica waits for the arguments, or has responded without them. Raise as `frame` does."""
        while not (self._invited or self._frames):
            await self._wait_for_change()

    async def frame(self) -> Frame:
        """Return the next frame.

        Raises:
            Refused: The replica refused the call, and no user code ran.
            ReplicaGone: The connection broke.
            DeadlineExceeded: The replica responded that the deadline has passed.
            ReplicaLost: The replica responded with another error status, or with invalid frames.
        """
        while not self._frames:
            await self._wait_for_change()
        frame = self._frames.popleft()
        self._ahead -= frame.size
        if self._paused and self._ahead < HELD and self._connection is not None:
            self._paused = False
            self._connection.resume_reading()
        return frame

    async def _wait_for_change(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def fail(self, error: Exception) -> None:
        """Abort the exchange. Calls of `frame` and `invited` raise the error."""
        self._fail(error)
        self.abandon()

    def abandon(self) -> None:
        """Abort the exchange because its caller needs no more frames. Does nothing if the response is complete."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # Callbacks of the connection

    def informed(self, response: ResponseHead) -> None:
        self._invited = True
        self._wake()

    def response_started(self, response: ResponseHead) -> None:
        self._refusal = response.refusal
        self.stream = response.stream
        self.holdings = response.holdings
        if response.status != 200:
            self._document = []
            self._error = _of_status(response.status)

    def received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        if self._document is not None:
            self._document.append(data)
            return
        try:
            frames = self._reader.feed(data)
        except ValueError as error:
            self.fail(ReplicaLost(f"the replica sent an invalid response to the call: {error}"))
            return
        self._frames += frames
        self._ahead += sum(frame.size for frame in frames)
        if self._ahead >= HELD and not self._paused and self._connection is not None:
            self._paused = True
            self._connection.pause_reading()
        self._wake()

    def ended(self, reusable: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if reusable:
                if self._paused:
                    connection.resume_reading()
                self._pool.give_back(connection)
            else:
                connection.abort()
        if self._refusal is not None:
            self._fail(Refused(self._refusal.decode(), self.holdings))
        elif self._document is not None and self._error is not None:
            self._fail(_with_detail(self._error, b"".join(self._document)))
        else:
            self._fail(ReplicaGone("the response ended before the result did"))

    def lost(self, error: ReplicaGone) -> None:
        self._connection = None
        self._fail(Refused(self._refusal.decode(), self.holdings) if self._refusal is not None else error)

    def writing_paused(self, paused: bool) -> None:
        pass  # the caller holds the arguments until the call has ended, so pausing would save no memory

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _of_status(status: int) -> Exception:
    if status == DEADLINE_EXCEEDED:
        return DeadlineExceeded("the deadline of this call passed while it ran")
    return ReplicaLost(f"the replica answered the call with status {status}")


def _with_detail(error: Exception, document: bytes) -> Exception:
    """Return the error with the message of the replica's response, if it has one."""
    try:
        detail = str(json.loads(document)["detail"])
    except (ValueError, KeyError, TypeError):
        return error
    return type(error)(detail)
