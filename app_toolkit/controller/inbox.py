"""What the controller sleeps on: events, and whatever else wants its attention."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator

from app_toolkit.clock import Clock
from app_toolkit.controller.board import within
from app_toolkit.core.replica_state import Event

SIZE = 100_000
"""Events not yet taken. The oldest give way: a lost event costs time, never correctness."""


class Inbox:
    """Belongs to the event loop that it is made on; `put` alone may come from another thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque(maxlen=SIZE)
        self._woken: asyncio.Future[None] = self._loop.create_future()

    def put(self, event: Event) -> None:
        self._events.append(event)
        # A launcher's last words may come after the loop has gone; nobody is there to hear them.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """End the sleep that is under way, or the next one before it begins."""
        if not self._woken.done():
            self._woken.set_result(None)

    def awake(self) -> None:
        """Everything until now has been noticed; only what comes from now on ends the next sleep."""
        if self._woken.done():
            self._woken = self._loop.create_future()

    def take(self) -> Iterator[Event]:
        """Those that are there now; what comes meanwhile is for the next time."""
        for _ in range(len(self._events)):
            yield self._events.popleft()

    async def sleep(self, until: float | None) -> None:
        """Until somebody wakes us, or until this time on the clock; None: for as long as that takes."""
        if until is None:
            await asyncio.wait({self._woken})
        else:
            await within(self._clock, until - self._clock.now(), self._woken)
