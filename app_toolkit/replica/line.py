"""The line at one replica: callers that found it full, and are offered a slot when one comes free. Nobody polls."""

import asyncio
from collections.abc import Callable, Collection

from app_toolkit.core.admission import Admission
from app_toolkit.errors import ReplicaBusy
from app_toolkit.types import Message, Receive, Send

ON_DECK_S = 0.1
"""How long a request on deck waits for its slot; then it is refused, and its caller keeps its place in line."""

OFFER = b"."
"""One offer, in the answer to a caller that stands in line over the wire."""


class Position:
    """One caller's place in the line."""

    def __init__(self, line: "Line", caller: str, offered: Callable[[], None], ended: Callable[[], None]) -> None:
        self.caller = caller
        self.offered = offered
        self.ended = ended
        self._line = line

    def leave(self) -> None:
        """Leave the line; nothing happens where it has been left, or has ended."""
        self._line.left(self)


class Line:
    """Who stands in line, who was offered a slot, and which requests that claimed one wait for it.

    `core.admission` decides; here it is told what happens, and what it decides is done at once. Not safe across
    threads, but for `len`.
    """

    def __init__(self, slots: int, ongoing: Collection[object]) -> None:
        """`ongoing` is the live set of those inside."""
        self._admission: Admission[asyncio.Future[bool]] = Admission(slots)
        self._ongoing = ongoing
        self._places: dict[str, Position] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lapse: asyncio.TimerHandle | None = None

    @property
    def slots(self) -> int:
        return self._admission.slots

    def __len__(self) -> int:
        """How many callers stand in line."""
        return len(self._places)

    # Callers

    def stand(self, caller: str, offered: Callable[[], None], ended: Callable[[], None]) -> Position:
        """A place at the end of the line.

        `offered` is called whenever a slot is kept for this caller, which then sends a request that claims it;
        `ended` where it is put out of the line. Both may be called before this returns. Who stands there already is
        taken to have left its old place. Raises `ReplicaBusy` where the line is too long, or closed.
        """
        before = self._places.get(caller)
        if before is not None:
            self._end(before)
        if self._closed or not self._admission.stand(caller):
            raise ReplicaBusy(len(self._ongoing))
        self._loop = asyncio.get_running_loop()
        place = self._places[caller] = Position(self, caller, offered, ended)
        self.advance()
        return place

    def left(self, place: Position) -> None:
        if self._forget(place):
            self.advance()

    def resize(self, slots: int) -> None:
        """So many slots from now on. Who is inside stays inside, also where there are more of them."""
        self._admission.slots = slots
        if self._loop is not None:
            self.advance()

    def close(self) -> None:
        """End all places, and refuse whoever waits on deck; nobody stands in line from now on."""
        self._closed = True
        for place in list(self._places.values()):
            self._end(place)
        for waiting in list(self._admission.deck):
            self._refuse(waiting)
        if self._lapse is not None:
            self._lapse.cancel()
            self._lapse = None

    # Requests

    @property
    def admits_stranger(self) -> bool:
        return self._admission.admits_stranger(len(self._ongoing))

    def claim(self, caller: str) -> bool:
        """Claim an offer; False where there is none any more."""
        return self._admission.claim(caller)

    async def come_in(self, caller: str) -> bool:
        """Wait for the slot of a request that claimed an offer; it is to take it at once. False: it is refused."""
        admission = self._admission
        if admission.admits_claim(len(self._ongoing)):
            return True
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[bool] = loop.create_future()
        admission.wait(waiting, caller)
        patience = loop.call_later(ON_DECK_S, self._refuse, waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            admission.forget(waiting)
            self.advance()  # where it had a slot already, that is somebody else's now
            raise
        finally:
            patience.cancel()
            admission.forget(waiting)

    def freed(self) -> None:
        """A request has left the live set."""
        if self._places or self._admission.promised:
            self._admission.freed()
            self.advance()

    def advance(self) -> None:
        """Let in, and make an offer to, whoever it is the turn of."""
        admission, loop = self._admission, self._loop
        assert loop is not None  # somebody stood in line before
        while (waiting := admission.next_in(len(self._ongoing))) is not None:
            if not waiting.done():  # else it was cancelled, and is about to forget itself
                waiting.set_result(True)
        while (caller := admission.next_offer(len(self._ongoing), loop.time())) is not None:
            self._places[caller].offered()
        if self._lapse is None and admission.lapses_at is not None:
            self._lapse = loop.call_at(admission.lapses_at, self._withdraw)

    def _withdraw(self) -> None:
        assert self._loop is not None
        self._lapse = None
        for caller in self._admission.withdraw(self._loop.time()):
            self._end(self._places[caller])
        self.advance()

    def _refuse(self, waiting: asyncio.Future[bool]) -> None:
        if not waiting.done():
            self._admission.in_vain(waiting)
            waiting.set_result(False)
            self.advance()

    def _end(self, place: Position) -> None:
        if self._forget(place):
            place.ended()

    def _forget(self, place: Position) -> bool:
        if self._places.get(place.caller) is not place:
            return False
        del self._places[place.caller]
        self._admission.leave(place.caller)
        return True


async def hold(line: Line, caller: str, receive: Receive, send: Send) -> None:
    """A place in the line over the wire: an answer that does not end, whose every byte is an offer.

    It is left by closing the connection. Raises `ReplicaBusy` before anything was sent.
    """
    news = asyncio.Event()
    due = 0
    over = False

    def offered() -> None:
        nonlocal due
        due += 1
        news.set()

    def ended(*_: object) -> None:
        nonlocal over
        over = True
        news.set()

    place = line.stand(caller, offered, ended)
    gone = asyncio.ensure_future(_gone(receive))
    gone.add_done_callback(ended)
    try:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not over:
            await news.wait()
            news.clear()
            said, due = due, 0
            if said:
                await send({"type": "http.response.body", "body": OFFER * said, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        place.leave()
        gone.cancel()


async def _gone(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
