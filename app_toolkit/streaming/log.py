"""Stream logs: where the events of resumable responses are kept, so that clients can read them again."""

import asyncio
import contextvars
import ctypes
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Protocol

from app_toolkit.streaming.stream_log import Append, Outcome, Page, Renewal, StreamLimits, StreamTable

CLEANUP_INTERVAL_S = 1.0
"""Seconds between two searches for streams that are lost or old."""

TRIM_BYTES = 32 * 2**20
"""Bytes of removed events after which the memory is given back to the operating system. The allocator of the C library
keeps it otherwise.
"""

LARGE_BYTES = 256 * 1024
"""Bytes from which on an event is large, see `map_large`."""

M_MMAP_THRESHOLD = -3
"""From `malloc.h` of glibc."""


class StreamLog(Protocol):
    """A stream log.

    Each stream has one owner, the process that generates it. The owner appends events, or renews its lease, at least
    every `lease_s` seconds. All methods but `append` and `end` raise `StreamUnknown` for a stream that the log does not
    have.
    """

    async def begin(self, stream: str, owner: str, media_type: str, key: str | None) -> None:
        """Add a stream. Raises `StreamActive` if a stream with this key has not ended, and `StreamLogFull`."""

    async def append(self, appends: Sequence[Append]) -> list[Renewal | None]:
        """Append events to streams, and renew the leases on them.

        Return a renewal for each of them; None: the log does not have the stream, or it has ended or has another owner.
        To append the same events again changes nothing. The log accepts the events that fit its limits; `Renewal.last`
        has the last one.
        """

    async def end(self, stream: str, owner: str, outcome: Outcome) -> None:
        """End a stream. Nothing happens if it has ended, or if it has another owner."""

    async def stop(self, stream: str) -> bool:
        """Ask the owner to end a stream. Return False if it has ended."""

    async def adopt(self, stream: str, owner: str, last: int) -> bool:
        """Become the owner of a lost stream, which continues after event number `last`.

        Return False if the stream is not lost, or has other events: another process has continued it.
        """

    async def remove(self, stream: str) -> bool:
        """Remove a stream and its events, whether it has ended or not. Return False if there is no such stream."""

    async def find(self, key: str) -> str | None:
        """Return the id of the newest stream with this key; None: there is none."""

    async def media_type(self, stream: str) -> str:
        """Return the media type of a stream."""

    async def outcome(self, stream: str, after: int) -> Outcome | None:
        """Return how a stream ended. None: it has not ended, or has events after number `after`."""

    async def last(self, stream: str) -> int:
        """Return the number of the newest event; 0: there is none."""

    def follow(self, stream: str, after: int) -> AsyncGenerator[Page, None]:
        """Yield the events after number `after`, those that are there first, and new ones as they are appended.

        The last page has an `outcome`. Each running iteration counts as one reader of the stream, which has had a page
        when it asks for the next one. The generator waits for its readers, see `StreamLimits.max_bytes`.
        """


class MemoryStreamLog:
    """A stream log in the memory of this process. It ends with the process.

    It works in one process, and for a deployment with one replica. Use it in one event loop only.
    """

    def __init__(self, limits: StreamLimits | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._table = StreamTable(limits)
        self._now = now
        self._news: dict[str, asyncio.Event] = {}
        self._most = 0
        """The most bytes since memory was given back last."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that cleans up, while there are streams."""

    async def begin(self, stream: str, owner: str, media_type: str, key: str | None) -> None:
        self._table.begin(stream, owner, media_type, key, self._now())
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop = loop
            self._clean_up_later(loop)

    async def append(self, appends: Sequence[Append]) -> list[Renewal | None]:
        now = self._now()
        renewals = []
        if has_large(appends):
            map_large()
        for append in appends:
            renewals.append(self._table.append(append, now))
            self._most = max(self._most, self._table.size)
            if append.events:
                self._wake(append.stream)
        return renewals

    async def end(self, stream: str, owner: str, outcome: Outcome) -> None:
        self._table.end(stream, owner, outcome, self._now())
        self._wake(stream)

    async def stop(self, stream: str) -> bool:
        return self._table.stop(stream)

    async def adopt(self, stream: str, owner: str, last: int) -> bool:
        return self._table.adopt(stream, owner, last, self._now())

    async def remove(self, stream: str) -> bool:
        removed = self._table.remove(stream)
        self._wake(stream)
        return removed

    async def find(self, key: str) -> str | None:
        return self._table.find(key)

    async def media_type(self, stream: str) -> str:
        return self._table.get(stream).media_type

    async def outcome(self, stream: str, after: int) -> Outcome | None:
        entry = self._table.get(stream)
        return None if entry.last > after else entry.outcome

    async def last(self, stream: str) -> int:
        return self._table.get(stream).last

    async def follow(self, stream: str, after: int) -> AsyncGenerator[Page, None]:
        reader = self._table.enter(stream, after, self._now())
        try:
            while True:
                page = self._table.read(stream, reader, self._now())
                if page.events or page.evicted or page.outcome is not None:
                    yield page
                    if page.outcome is not None:
                        return
                else:
                    await self._news.setdefault(stream, asyncio.Event()).wait()
        finally:
            self._table.leave(stream, reader, self._now())

    def look(self) -> None:
        """Mark streams whose lease has expired as lost, and remove old ones.

        `StreamLogDeployment` calls it, whose owners are other processes.
        """
        for stream in self._table.look(self._now()):
            self._wake(stream)

    def _clean_up_later(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(CLEANUP_INTERVAL_S, self._clean_up, loop, context=contextvars.Context())

    def _clean_up(self, loop: asyncio.AbstractEventLoop) -> None:
        # No lease is checked: an owner in this process ends its streams, also after it was paused by a debugger.
        self._table.remove_old(self._now())
        if self._most - self._table.size >= TRIM_BYTES:
            self._most = self._table.size
            trim()
        if self._loop is not loop:
            return
        if len(self._table):
            self._clean_up_later(loop)
        else:
            self._loop = None

    def _wake(self, stream: str) -> None:
        """Wake the readers of a stream."""
        if (news := self._news.pop(stream, None)) is not None:
            news.set()


def has_large(appends: Sequence[Append]) -> bool:
    return any(len(event) >= LARGE_BYTES for append in appends for event in append.events)


@cache
def map_large() -> None:
    """Let the C library give each block of `LARGE_BYTES` or more back as soon as it is free, if it can do that.

    By default, glibc does so only until the first one is freed. Then it keeps the gaps between blocks of different
    sizes, so that large events take twice their size. Each allocation is slower afterwards, so a process calls this
    only when it has a large event.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def trim() -> None:
    """Give free memory back to the operating system, if the C library can do that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


DEFAULT: StreamLog = MemoryStreamLog()
"""The log of this process."""
