"""The wait queue of one replica. Callers that found it full wait here and get a reservation when a slot is free."""

import asyncio
from collections.abc import Callable, Collection

from app_toolkit.errors import ReplicaBusy
from app_toolkit.replica.admission.reservations import Admission
from app_toolkit.types import Message, Receive, Send

PENDING_S = 0.1
"""How long a pending request waits for its slot. Then it is refused, and its caller keeps its position."""

RESERVATION = b"."
"""One reservation, in the response to a caller that waits over a connection."""


class Position:
    """The position of one caller in the queue."""

    def __init__(
        self, queue: "WaitQueue", caller: str, reserved: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        self.caller = caller
        self.reserved = reserved
        self.ended = ended
        self._queue = queue

    def leave(self) -> None:
        """Leave the queue. Does nothing if the caller has left, or if its position has ended."""
        self._queue.left(self)


class WaitQueue:
    """The callers that wait, their reservations, and the pending requests.

    `replica.admission.reservations` makes the decisions. This class reports events to it and carries out its decisions
    at once. Only `len` is safe in other threads.
    """

    def __init__(self, slots: int, ongoing: Collection[object]) -> None:
        """`ongoing`: the live set of the requests that hold a slot."""
        self._admission: Admission[asyncio.Future[bool]] = Admission(slots)
        self._ongoing = ongoing
        self._positions: dict[str, Position] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def slots(self) -> int:
        return self._admission.slots

    def __len__(self) -> int:
        """The number of callers that wait."""
        return len(self._positions)

    # Callers

    def join(self, caller: str, reserved: Callable[[], None], ended: Callable[[], None]) -> Position:
        """Add a caller at the end of the queue.

        `reserved` is called for each slot that is reserved for this caller, which then sends a request that redeems
        it. `ended` is called if the caller is removed. Both may be called before this returns. A caller that is in the
        queue already loses its old position. Raises `ReplicaBusy` if the queue is full or closed.
        """
        before = self._positions.get(caller)
        if before is not None:
            self._end(before)
        if self._closed or not self._admission.join(caller):
            raise ReplicaBusy(len(self._ongoing))
        self._loop = asyncio.get_running_loop()
        position = self._positions[caller] = Position(self, caller, reserved, ended)
        self.advance()
        return position

    def left(self, position: Position) -> None:
        if self._forget(position):
            self.advance()

    def resize(self, slots: int) -> None:
        """Change the number of slots. Requests that run continue, even if there are more of them."""
        self._admission.slots = slots
        if self._loop is not None:
            self.advance()

    def close(self) -> None:
        """End all positions, refuse the pending requests, and admit no caller from now on."""
        self._closed = True
        for position in list(self._positions.values()):
            self._end(position)
        for waiting in list(self._admission.pending):
            self._refuse(waiting)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    # Requests

    @property
    def admits_unreserved(self) -> bool:
        return self._admission.admits_unreserved(len(self._ongoing))

    def redeem(self, caller: str) -> bool:
        """Redeem a reservation. Return False if there is none any more."""
        return self._admission.redeem(caller, asyncio.get_running_loop().time())

    async def enter(self, caller: str) -> bool:
        """Wait for the slot of a request that redeemed a reservation. Return False if it is refused.

        The caller takes the slot at once.
        """
        admission = self._admission
        if admission.admits_reserved(len(self._ongoing)):
            return True
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[bool] = loop.create_future()
        admission.wait(waiting, caller)
        timer = loop.call_later(PENDING_S, self._refuse, waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            admission.forget(waiting)
            self.advance()  # a slot that it already had is free for another request
            raise
        finally:
            timer.cancel()
            admission.forget(waiting)

    def freed(self) -> None:
        """A request has left the live set."""
        if self._positions or self._admission.reserved:
            self._admission.freed()
            self.advance()

    def advance(self) -> None:
        """Admit the pending requests and make the reservations that are possible now."""
        admission, loop = self._admission, self._loop
        assert loop is not None  # a caller has joined before
        while (waiting := admission.next_in(len(self._ongoing))) is not None:
            if not waiting.done():  # otherwise it was cancelled, and removes itself shortly
                waiting.set_result(True)
        while (caller := admission.next_reservation(len(self._ongoing), loop.time())) is not None:
            self._positions[caller].reserved()
        if self._expiry is None and admission.expires_at is not None:
            self._expiry = loop.call_at(admission.expires_at, self._expire)

    def _expire(self) -> None:
        assert self._loop is not None
        self._expiry = None
        for caller in self._admission.expire(self._loop.time()):
            self._end(self._positions[caller])
        self.advance()

    def _refuse(self, waiting: asyncio.Future[bool]) -> None:
        if not waiting.done():
            self._admission.timed_out(waiting)
            waiting.set_result(False)
            self.advance()

    def _end(self, position: Position) -> None:
        if self._forget(position):
            position.ended()

    def _forget(self, position: Position) -> bool:
        if self._positions.get(position.caller) is not position:
            return False
        del self._positions[position.caller]
        self._admission.leave(position.caller)
        return True


async def serve_position(queue: WaitQueue, caller: str, receive: Receive, send: Send) -> None:
    """Serve a position over a connection: a response that does not end, in which each byte is a reservation.

    The caller leaves by closing the connection. Raises `ReplicaBusy` before anything was sent.
    """
    news = asyncio.Event()
    due = 0
    over = False

    def reserved() -> None:
        nonlocal due
        due += 1
        news.set()

    def ended(*_: object) -> None:
        nonlocal over
        over = True
        news.set()

    position = queue.join(caller, reserved, ended)
    disconnect = asyncio.ensure_future(_until_disconnected(receive))
    disconnect.add_done_callback(ended)
    try:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not over:
            await news.wait()
            news.clear()
            count, due = due, 0
            if count:
                await send({"type": "http.response.body", "body": RESERVATION * count, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        position.leave()
        disconnect.cancel()


async def _until_disconnected(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
