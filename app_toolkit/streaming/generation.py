"""Generations: the running generators of resumable responses in this process."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator

from app_toolkit.core.stream_log import Outcome, Renewal
from app_toolkit.observability.context import DEADLINE
from app_toolkit.streaming.leases import StreamLease, leases
from app_toolkit.streaming.log import StreamLog

logger = logging.getLogger("app_toolkit.streaming")

CLEANUP_S = 10.0
"""Seconds for which a stopped generator may clean up. It is cancelled again after each of these periods."""

AHEAD = 1_024
"""Events that wait for the log. A generator that is faster waits."""


class Generation:
    """One generator, whose events are written to a log."""

    def __init__(
        self,
        log: StreamLog,
        items: AsyncIterator[bytes],
        media_type: str,
        *,
        id: str | None = None,
        key: str | None = None,
        linger_s: float = 60.0,
        max_duration_s: float = 3_600.0,
    ) -> None:
        """Prepare a generation; `begin` starts it.

        Parameters:
            log: The stream log.
            items: The encoded events. If the iterator is an async generator, it is closed at the end.
            media_type: The media type of the response.
            id: The id of the stream. Default: a random one.
            key: Another name of the stream, of which one stream at a time can be active.
            linger_s: Seconds without a reader after which the generation is stopped. Default: 60.
            max_duration_s: Seconds after which the generation is stopped. Default: 3600.
        """
        self.id = id or secrets.token_urlsafe(16)
        self.owner = secrets.token_hex(8)
        self.error: Exception | None = None
        """The exception of the generator."""
        self._log = log
        self._items = items
        self._media_type = media_type
        self._key = key
        self._linger_s = linger_s
        self._max_duration_s = max_duration_s
        self._last = 0
        self._began = time.monotonic()
        self._waiting: list[bytes] = []
        self._has_room = asyncio.Event()
        self._has_events = asyncio.Event()
        self._first = asyncio.Event()
        self._complete = False
        self._stopped: Outcome | None = None
        self._cancelled_at = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._generating: asyncio.Task[None] | None = None

    @property
    def was_stopped(self) -> bool:
        """Whether it ends because of a stop or a limit, and not because a process was lost."""
        return self._stopped == "stopped"

    async def begin(self) -> None:
        """Add the stream to the log and start the generator. Raises as `StreamLog.begin` does."""
        await self._log.begin(self.id, self.owner, self._media_type, self._key)
        self._task = asyncio.create_task(self._run(), name=f"app-toolkit stream {self.id}")

    async def adopt(self, stream: str, last: int) -> bool:
        """Continue a lost stream after event number `last`. Return False if it is not lost any more."""
        self.id, self._last = stream, last
        if not await self._log.adopt(stream, self.owner, last):
            return False
        self._task = asyncio.create_task(self._run(), name=f"app-toolkit stream {self.id}")
        return True

    async def first_event(self, timeout_s: float) -> None:
        """Wait until the log has the first event, or the generator has ended, but at most `timeout_s`.

        Raises:
            Exception: The exception of the generator, if it raised before its first event.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._first.wait()
        except TimeoutError:
            return
        if self.error is not None and not self._last:
            raise self.error

    async def ended(self) -> None:
        """Wait until the generator has ended. If the caller is cancelled, the generator is cancelled, too."""
        assert self._task is not None, "the generation has begun"
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            await self.cancel()
            raise

    async def cancel(self) -> None:
        """Cancel the generator, and wait for its end."""
        assert self._task is not None, "the generation has begun"
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        DEADLINE.set(None)  # that of the request, whose client may leave
        outcome: Outcome = "failed"
        self._generating = asyncio.create_task(self._generate())
        lease, kept = StreamLease(self.id, self.owner, self._apply_renewal, time.monotonic()), leases(self._log)
        kept.add(lease)
        try:
            await self._write(lease)
            outcome = self._stopped or ("failed" if self.error else "finished")
        except asyncio.CancelledError:
            outcome = "lost"
            raise
        except Exception as error:
            logger.warning("stream %s ends, because its log fails: %s", self.id, error)
        finally:
            self._generating.cancel()
            await asyncio.wait([self._generating])
            await kept.remove(lease)
            try:
                await self._log.end(self.id, self.owner, outcome)
            except Exception as error:
                logger.warning("the end of stream %s was not written to its log: %s", self.id, error)
            self._first.set()

    async def _generate(self) -> None:
        """Run the generator, and collect its events."""
        try:
            async for item in self._items:
                self._waiting.append(item)
                self._has_events.set()
                if len(self._waiting) >= AHEAD:
                    self._has_room.clear()
                    await self._has_room.wait()
        except Exception as error:
            self.error = error
            if self._last or self._waiting:
                logger.exception("the generator of stream %s raised", self.id)
        finally:
            try:
                if isinstance(self._items, AsyncGenerator):
                    await self._items.aclose()
            finally:
                self._complete = True
                self._has_events.set()

    async def _write(self, lease: StreamLease) -> None:
        """Append what has been collected, as many events at a time as came during the append before."""
        while True:
            if self._waiting:
                events, self._waiting = self._waiting, []
                self._has_room.set()
                renewal = await self._log.append(self.id, self.owner, self._last + 1, events)
                self._last += len(events)
                lease.renewed_at = time.monotonic()
                self._first.set()
                self._apply_renewal(renewal)
            elif self._complete:
                return
            else:
                self._has_events.clear()
                await self._has_events.wait()

    def _apply_renewal(self, renewal: Renewal | None) -> None:
        if renewal is None:
            self._stop("lost")
            return
        duration = time.monotonic() - self._began
        if renewal.stop or renewal.unread_s > self._linger_s or duration > self._max_duration_s:
            self._stop("stopped")

    def _stop(self, outcome: Outcome) -> None:
        assert self._generating is not None, "only a running generation can be stopped"
        now = time.monotonic()
        if not self._complete and now - self._cancelled_at >= CLEANUP_S:
            self._stopped = self._stopped or outcome
            self._cancelled_at = now
            self._generating.cancel()
