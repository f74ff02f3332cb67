"""The requests in a replica, in sets by the resource that they occupy."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Protocol

from app_toolkit.config.models import CorsSettings
from app_toolkit.replica.generators import notice_generators
from app_toolkit.types import OnDisconnect

SWEEP_S = 0.25
"""The interval in seconds at which the requests are checked. From the second check on, a request is watched for a
disconnect.
"""


class Live(Protocol):
    """A request in the replica."""

    request_id: str | None

    def check(self, now: float) -> None:
        """Check the deadline and the client; called at every sweep. `now`: `time.monotonic()`."""
        ...

    def unfinished(self) -> str:
        """Name the part of the request that has not ended, for a log."""
        ...


class LiveSets:
    """The requests in a replica. All numbers that the replica reports are sizes of these sets.

    * `ongoing`: HTTP requests that hold a slot. A request leaves when its response is complete or becomes an open
      stream.
    * `slow_bodies`: those of the ongoing requests whose body arrives, or arrived, slowly.
    * `streams`: responses that are open streams. They hold no slot.
    * `running`: HTTP requests whose coroutine has not ended, with their background tasks.
    * `websockets`: WebSockets that are open or being opened, or whose handler has not ended.
    """

    def __init__(self, max_open_streams: int, on_disconnect: OnDisconnect, cors: Sequence[CorsSettings] = ()) -> None:
        self.max_open_streams = max_open_streams
        self.on_disconnect: OnDisconnect = on_disconnect
        #: The settings of each `CORSMiddleware` of the app, for errors that replace its responses.
        self.cors = cors
        #: How many of the ongoing requests may be in `slow_bodies`.
        self.max_slow_bodies = 1
        self.ongoing: set[Live] = set()
        self.slow_bodies: set[Live] = set()
        self.streams: set[Live] = set()
        self.running: set[Live] = set()
        self.websockets: set[Live] = set()
        #: How many requests have entered since the start.
        self.received = 0
        #: Is called when a request has released its slot.
        self.freed: Callable[[], None]
        self._drained: asyncio.Event | None = None
        self._sweeping = False
        # Not the context of a request, because the sweeps would keep it alive.
        self._context = Context()

    def enter(self, request: Live, kind: str) -> None:
        """Add a request that was admitted. `kind`: the type of its ASGI scope."""
        if not self._sweeping:
            self._sweep_later()
        self.received += 1
        if kind == "http":
            self.running.add(request)
            self.ongoing.add(request)
        else:
            self.websockets.add(request)

    @property
    def admits_slow_body(self) -> bool:
        return len(self.slow_bodies) < self.max_slow_bodies

    def slow_body(self, request: Live) -> bool:
        """Record that the body of an ongoing request arrives slowly. Return False if too many do."""
        if request not in self.slow_bodies and request in self.ongoing:
            if not self.admits_slow_body:
                return False
            self.slow_bodies.add(request)
        return True

    def open_stream(self, request: Live) -> bool:
        """Make the response an open stream. Return False, and keep the slot, if too many are open."""
        if request not in self.ongoing or len(self.streams) >= self.max_open_streams:
            return False
        self.leave_slot(request)
        self.streams.add(request)
        return True

    def leave_slot(self, request: Live) -> None:
        """Remove a request whose response is complete or will never come."""
        if request in self.ongoing:
            self.ongoing.remove(request)
            self.slow_bodies.discard(request)
            self.freed()
        else:
            self.streams.discard(request)

    def leave(self, request: Live) -> None:
        """Remove a request whose coroutine has ended."""
        if request in self.ongoing:
            self.leave_slot(request)
        self.streams.discard(request)
        self.running.discard(request)
        self.websockets.discard(request)
        if self._drained is not None and not self._runs:
            self._drained.set()

    @property
    def _runs(self) -> bool:
        """Whether the coroutine of an HTTP request or of a WebSocket has not ended."""
        return bool(self.running or self.websockets)

    async def until_drained(self, timeout: float | None) -> bool:
        """Wait until no request and no handler of a WebSocket runs. Return whether that happened within `timeout`
        seconds."""
        if not self._runs:
            return True
        if self._drained is None:
            self._drained = asyncio.Event()
        try:
            async with asyncio.timeout(timeout):
                await self._drained.wait()
        except TimeoutError:
            return not self._runs
        return True

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeping = True
        notice_generators()
        loop.call_later(SWEEP_S, self._sweep, context=self._context)

    def _sweep(self) -> None:
        """Check the requests, as long as there are any. So a short request needs no watcher of its own."""
        self._sweeping = False
        now = time.monotonic()
        for request in (*self.ongoing, *self.streams, *self.websockets):
            request.check(now)
        if self._runs:
            self._sweep_later()
