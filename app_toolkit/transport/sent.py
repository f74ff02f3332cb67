"""The caller's end of a call: one exchange with a replica, whose answer is frames."""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from typing import Any

from app_toolkit.errors import DeadlineExceeded, ReplicaGone, ReplicaLost
from app_toolkit.transport.calls import Frame, FrameReader
from app_toolkit.transport.pool import Answer, Pool, PooledConnection

HELD = 1024 * 1024
"""Bytes of a stream that are read ahead of whoever takes the items; beyond, the replica waits."""

DEADLINE_EXCEEDED = DeadlineExceeded.status


class Refused(Exception):
    """The replica's gate did not let the call in; its argument is the gate's word."""


class Sent:
    """One call on its way over one connection.

    `frame` gives one frame after another; the connection goes back to the pool by itself once the answer is complete,
    and `abandon` ends it before: the replica sees its caller go away. Belongs to one event loop.
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
        "key",
    )

    def __init__(self, pool: Pool, connection: PooledConnection, pieces: Sequence[Any], key: str = "") -> None:
        self.key = key
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
        """Returns once the replica waits for the arguments, or has answered without them. Raises as `frame` does."""
        while not (self._invited or self._frames):
            await self._news()

    async def frame(self) -> Frame:
        """The next frame.

        Raises `Refused` before user code ran, `ReplicaGone` where the connection broke, and the error that the gate
        answered instead of a result.
        """
        while not self._frames:
            await self._news()
        frame = self._frames.popleft()
        self._ahead -= frame.size
        if self._paused and self._ahead < HELD and self._connection is not None:
            self._paused = False
            self._connection.resume_reading()
        return frame

    async def _news(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def fail(self, error: Exception) -> None:
        """End it with an error for whoever waits for a frame."""
        self._fail(error)
        self.abandon()

    def abandon(self) -> None:
        """Nobody wants what is still to come; nothing happens where nothing is."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # What the replica's connection says

    def informed(self, answer: Answer) -> None:
        self._invited = True
        self._wake()

    def answered(self, answer: Answer) -> None:
        self._refusal = answer.refusal
        if answer.status != 200:
            self._document = []
            self._error = _of_status(answer.status)

    def received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        if self._document is not None:
            self._document.append(data)
            return
        try:
            frames = self._reader.feed(data)
        except ValueError as error:
            self.fail(ReplicaLost(f"what came instead of a result is none: {error}"))
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
            self._fail(Refused(self._refusal.decode()))
        elif self._document is not None and self._error is not None:
            self._fail(_told(self._error, b"".join(self._document)))
        else:
            self._fail(ReplicaGone("the answer ended before the result did"))

    def lost(self, error: ReplicaGone) -> None:
        self._connection = None
        self._fail(Refused(self._refusal.decode()) if self._refusal is not None else error)

    def writing_paused(self, paused: bool) -> None:
        pass  # a call's arguments are held by whoever calls, until the call has ended

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


def _told(error: Exception, document: bytes) -> Exception:
    """The same error in the words of the replica, where it gave any."""
    try:
        detail = str(json.loads(document)["detail"])
    except (ValueError, KeyError, TypeError):
        return error
    return type(error)(detail)
