"""The queue of events for the controller. An event wakes the controller."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator

from app_toolkit.clock import Clock, within
from app_toolkit.control.replica_state import Event

SIZE = 100_000
"""The maximum number of queued events. The oldest are dropped: a lost event costs time, but not correctness."""


class Inbox:
    """The queue. Belongs to the event loop on which it was created. Only `put` may be called from another thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque(maxlen=SIZE)
        self._woken: asyncio.Future[None] = self._loop.create_future()

    def put(self, event: Event) -> None:
        self._events.append(event)
        # A launcher may report its last events after the loop has been closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """End the present sleep. If there is none, the next sleep ends at once."""
        if not self._woken.done():
            self._woken.set_result(None)

    def awake(self) -> None:
        """Reset the queue, so that only later calls of `wake` end the next sleep."""
        if self._woken.done():
            self._woken = self._loop.create_future()

    def take(self) -> Iterator[Event]:
        """Remove and yield the events that are queued now. Later events stay for the next call."""
        for _ in range(len(self._events)):
            yield self._events.popleft()

    async def sleep(self, until: float | None) -> None:
        """Sleep until `wake` is called, or until this time on the clock; None: without a limit."""
        if until is None:
            await asyncio.wait({self._woken})
        else:
            await within(self._clock, until - self._clock.now(), self._woken)
