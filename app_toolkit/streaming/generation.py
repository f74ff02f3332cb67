"""Generations: the running generators of resumable responses in this process."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import HTTPException
from starlette.types import Receive

from app_toolkit import clear_deadline
from app_toolkit.streaming.log import MemoryStreamLog, StreamLog
from app_toolkit.streaming.outbox import Outbox
from app_toolkit.streaming.stream_log import Append, Outcome, Page, Renewal, cost
from app_toolkit.streaming.writer import StreamWriter, writer_of

logger = logging.getLogger("app_toolkit.streaming")

T = TypeVar("T")

CLEANUP_S = 10.0
"""Seconds for which a stopped generator may clean up. It is cancelled again after each of these periods."""

AHEAD_BYTES = 2**20
"""Bytes of events that wait for the log. The generator waits if there are more."""

CLIENT_GONE = 499
"""The status of a response that no client receives."""

TAIL_BYTES = 256 * 1024
"""Bytes of accepted events that a reader in this process may be behind. If there are more, it follows the log."""


class Tail:
    """The events that the log has accepted last, for one reader in this process."""

    def __init__(self) -> None:
        self._read: int | None = None
        """The number of the last event that the reader has had; None: there is no reader."""
        self._began: int | None = None
        """Where a reader has begun that has not been reported to the log."""
        self.last = 0
        """The number of the last event that the log has accepted."""
        self._events: list[bytes] | None = []
        """The events that the reader has not had. None: it follows the log."""
        self._size = 0
        self._news = asyncio.Event()

    def report(self) -> int | None:
        """Return the number of the last event that the reader has had, for the log; None: there is no reader.

        A reader that leaves before it was reported is reported once, so that the log learns that it has left.
        """
        began, self._began = self._began, None
        return began if self._read is None else self._read

    def add(self, events: list[bytes]) -> None:
        """Add events that the log has accepted."""
        self.last += len(events)
        if self._events is None or not events:
            return
        self._events += events
        self._size += sum(map(cost, events))
        if self._size > TAIL_BYTES:
            self._events = None
        self._news.set()

    def end(self) -> None:
        """Let the reader follow the log."""
        self._events = None
        self._news.set()

    async def follow(self, after: int) -> AsyncGenerator[Page, None]:
        """Yield the events after a number, as long as they are here."""
        if self._events is None or self.last - len(self._events) != after or self._read is not None:
            return
        self._read = self._began = after
        try:
            while self._events is not None:
                if self._events:
                    page = Page(self.last - len(self._events) + 1, tuple(self._events))
                    self._events, self._size = [], 0
                    yield page
                    self._read = page.first + len(page.events) - 1
                else:
                    self._news.clear()
                    await self._news.wait()
        finally:
            self._read = self._events = None


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
        followed: bool = False,
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
            followed: Whether a reader will call `follow`. Default: False.
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
        self._began = time.monotonic()
        self.renewed_at = self._began
        """The time on `time.monotonic()` of the last append or renewal."""
        self._outbox = Outbox()
        self._tail = Tail()
        if not followed:
            self._tail.end()
        self._has_room = asyncio.Event()
        self._first = asyncio.Event()
        self._over = asyncio.Event()
        """Set when nothing will be appended any more."""
        self._complete = False
        self._is_refused = False
        """Whether the log accepts nothing more."""
        self._ending: Outcome | None = None
        """How the stream ends, if not with its generator."""
        self._cancelled_at = -math.inf
        self._writer: StreamWriter | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._generating: asyncio.Task[None] | None = None

    @property
    def was_stopped(self) -> bool:
        """Whether it ends because of a stop or a limit, and not because a process was lost."""
        return self._ending == "stopped"

    async def begin(self) -> None:
        """Add the stream to the log and start the generator. Raises as `StreamLog.begin` does."""
        await self._log.begin(self.id, self.owner, self._media_type, self._key)
        self._task = asyncio.create_task(self._run(), name=f"app-toolkit stream {self.id}")

    async def adopt(self, stream: str, last: int) -> bool:
        """Continue a lost stream after event number `last`. Return False if it is not lost any more."""
        self.id, self._outbox.last, self._tail.last = stream, last, last
        if not await self._log.adopt(stream, self.owner, last):
            return False
        self._task = asyncio.create_task(self._run(), name=f"app-toolkit stream {self.id}")
        return True

    async def first_event(self, timeout_s: float) -> None:
        """Wait until the log has the first event, or the generator has ended, but at most `timeout_s`.

        The generator has ended if this raises, also if the caller is cancelled.

        Raises:
            Exception: The exception of the generator, if it raised before its first event.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._first.wait()
        except TimeoutError:
            return
        except asyncio.CancelledError:
            await self.cancel()
            raise
        if self.error is not None and not self._outbox.last:
            await self.cancel()
            raise self.error

    def follow(self, after: int) -> AsyncGenerator[Page, None]:
        """Yield the events after number `after` which the log accepts from now on, for one reader in this process.

        It ends if this process does not have the next event any more, and at the end of the stream: the log has the
        rest, and the outcome. The events do not pass the log again on their way to the client that began the stream.
        """
        return self._tail.follow(after)

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
        clear_deadline()  # that of the request, whose client may leave
        outcome: Outcome = "failed"
        self.renewed_at = time.monotonic()
        self._writer = writer_of(self._log)
        self._writer.add(self)
        self._generating = asyncio.create_task(self._generate())
        try:
            await self._over.wait()
            outcome = self._ending or ("failed" if self.error else "finished")
        except asyncio.CancelledError:
            outcome = "lost"
            raise
        finally:
            self._generating.cancel()
            await asyncio.wait([self._generating])
            if self._retry is not None:
                self._retry.cancel()
            await self._writer.remove(self)
            try:
                await self._log.end(self.id, self.owner, outcome)
            except Exception as error:
                logger.warning("the end of stream %s was not written to its log: %s", self.id, error)
            self._tail.end()
            self._first.set()

    async def _generate(self) -> None:
        """Run the generator, and collect its events."""
        try:
            async for item in self._items:
                self._outbox.put(item)
                self._append_soon()
                if self._outbox.size >= AHEAD_BYTES:
                    self._has_room.clear()
                    await self._has_room.wait()
        except Exception as error:
            self.error = error
            if self._outbox.last or self._outbox:
                logger.exception("the generator of stream %s raised", self.id)
        finally:
            try:
                if isinstance(self._items, AsyncGenerator):
                    await self._items.aclose()
            finally:
                self._complete = True
                self._look()

    def _append_soon(self) -> None:
        """Let the writer append what waits, unless it waits until the log has room."""
        if self._writer is not None and self._retry is None:
            self._writer.ready(self)

    def _ask_again(self) -> None:
        self._retry = None
        self._append_soon()

    def next_append(self, most: int) -> Append:
        events = () if self._is_refused else self._outbox.next(most)
        return Append(self.id, self.owner, self._outbox.last + 1, events, self._tail.report())

    def renewed(self, renewal: Renewal | None) -> None:
        now = self.renewed_at = time.monotonic()
        if renewal is None:
            self._stop("lost", refused=True)
        elif (accepted := self._outbox.renewed(renewal, now)) is None:
            logger.warning("stream %s ends, because its log has lost events", self.id)
            self._stop("lost", refused=True)
        else:
            self._tail.add(accepted)
            self._proceed(renewal, now)
        self._look()

    def log_failed(self, error: Exception) -> None:
        logger.warning("stream %s ends, because its log fails: %s", self.id, error)
        self._ending = self._ending or "lost"
        self._over.set()

    def _proceed(self, renewal: Renewal, now: float) -> None:
        """Go on after a renewal."""
        if renewal.last:
            self._first.set()
        if self._outbox.size < AHEAD_BYTES:
            self._has_room.set()
        if self._outbox.is_refused(now):
            logger.warning("stream %s ends, because its log has no room for its next event", self.id)
            self._stop("full", refused=True)
        elif renewal.stop or renewal.unread_s > self._linger_s or now - self._began > self._max_duration_s:
            self._stop("stopped")
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._outbox.retry_s:
            self._retry = asyncio.get_running_loop().call_later(self._outbox.retry_s, self._ask_again)
        elif self._outbox:
            self._append_soon()

    def _stop(self, outcome: Outcome, *, refused: bool = False) -> None:
        """Cancel the generator. `refused`: the log accepts nothing more."""
        assert self._generating is not None, "only a running generation can be stopped"
        if self._over.is_set():
            return
        self._ending = self._ending or outcome
        self._is_refused = self._is_refused or refused
        now = time.monotonic()
        if not self._complete and now - self._cancelled_at >= CLEANUP_S:
            self._cancelled_at = now
            self._generating.cancel()

    def _look(self) -> None:
        """End the stream if its generator has ended and nothing more will be appended."""
        is_blocked = self._ending is not None and self._outbox.retry_s > 0
        if self._complete and (self._is_refused or is_blocked or not self._outbox):
            self._over.set()


@asynccontextmanager
async def tied_stream(
    items: AsyncIterator[bytes],
    media_type: str,
    receive: Receive,
    *,
    first_event_s: float,
    max_duration_s: float,
    id: str | None = None,
) -> AsyncIterator[tuple[StreamLog, str]]:
    """Begin a stream that ends with the request which begins it. Gives its log, which is in memory, and its id.

    Raises:
        HTTPException: 499, the client has disconnected before the first event.
        Exception: The exception of the generator, if it raised before its first event.
    """
    log = MemoryStreamLog()
    generation = Generation(log, items, media_type, id=id, linger_s=math.inf, max_duration_s=max_duration_s)

    async def first_event() -> bool:
        await generation.first_event(first_event_s)
        return True

    await generation.begin()
    try:
        if await until_disconnect(receive, first_event()) is None:
            raise HTTPException(CLIENT_GONE, "the client has disconnected")
        yield log, generation.id
    finally:
        await generation.cancel()


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Run a coroutine and return its result. Cancel it when the client disconnects, and return None then.

    A cancellation of the caller is passed on. The coroutine has ended when this function returns.
    """
    running = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((running, watcher), return_when=asyncio.FIRST_COMPLETED)
        gone = watcher.done()
    finally:
        watcher.cancel()
        if not running.done():
            running.cancel()
        # It cannot be a cancel scope of anyio, which would also cancel each `await` in the cleanup of a model.
        await asyncio.gather(running, watcher, return_exceptions=True)
    if not running.cancelled():
        return running.result()
    if not gone:
        raise RuntimeError("the handler of the request was cancelled, although its client is connected")
    return None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
