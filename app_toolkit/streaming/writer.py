"""Writers: the events of all streams that this process generates are appended to their log in one call at a time."""

import asyncio
import contextvars
import logging
import time
from typing import Protocol

from app_toolkit.streaming.log import TRIM_BYTES, StreamLog, has_large, map_large, trim
from app_toolkit.streaming.stream_log import Append, Renewal, cost

logger = logging.getLogger("app_toolkit.streaming")

RENEW_S = 0.5
"""Seconds between two renewals of a lease. A stop and the end of `linger_s` are noticed this late."""

TURN_S = 0.01
"""Seconds that a writer waits at most between two calls. It waits as long as the last call took, so that more events
come together if the log or this process is busy.
"""

BATCH_BYTES = 2 * 2**20
"""Bytes of events that one call has at most. A call with a single event may be larger."""


TRIM_S = 5.0
"""Seconds after the end of the last stream until its memory is given back. Its readers may still receive events."""


class WrittenStream(Protocol):
    """A stream that this process generates."""

    renewed_at: float
    """The time on `time.monotonic()` of the last append or renewal."""

    def next_append(self, most: int) -> Append:
        """Return the events to append next, of `most` bytes, or a single one."""

    def renewed(self, renewal: Renewal | None) -> None:
        """Note what the log has accepted. None: the log does not have the stream any more."""

    def log_failed(self, error: Exception) -> None:
        """Note that events could not be appended."""


class StreamWriter:
    """Appends the events of streams to one log, and renews their leases. It has a task while there are streams."""

    def __init__(self, log: StreamLog) -> None:
        self._log = log
        self._streams: set[WrittenStream] = set()
        self._ready: dict[WrittenStream, None] = {}
        """The streams that have something to append or to renew, in this order."""
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._appended = 0
        """Bytes of the events since there was no stream."""

    def add(self, stream: WrittenStream) -> None:
        """Renew the lease on this stream from now on."""
        self._streams.add(stream)
        if self._task is None:
            # The task outlives the request that starts it, so it must not have the deadline of the request.
            context = contextvars.Context()
            self._task = asyncio.create_task(self._run(), name="app-toolkit stream writer", context=context)
            context.run(self._renew_later)

    def ready(self, stream: WrittenStream) -> None:
        """Append the events of this stream with the next call."""
        if stream in self._streams:
            self._ready[stream] = None
            self._woken.set()

    async def remove(self, stream: WrittenStream) -> None:
        """Do not renew the lease on this stream any more."""
        self._streams.discard(stream)
        self._ready.pop(stream, None)
        if not self._streams and self._task is not None:
            task, self._task = self._task, None
            if _writers.get(self._log) is self:
                del _writers[self._log]
            if self._timer is not None:
                self._timer.cancel()
            task.cancel()
            if self._appended >= TRIM_BYTES:
                asyncio.get_running_loop().call_later(TRIM_S, trim, context=contextvars.Context())
            await asyncio.wait([task])

    def _renew_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(RENEW_S, self._renew)

    def _renew(self) -> None:
        now = time.monotonic()
        for stream in self._streams:
            # Half of the interval, because a renewal is noted a little after the tick that has caused it.
            if now - stream.renewed_at >= RENEW_S / 2:
                self.ready(stream)
        self._renew_later()

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            while batch := self._next_batch():
                began = time.monotonic()
                await self._append(batch)
                await asyncio.sleep(min(time.monotonic() - began, TURN_S))

    def _next_batch(self) -> list[tuple[WrittenStream, Append]]:
        batch, room = [], BATCH_BYTES
        while self._ready and room > 0:
            stream = next(iter(self._ready))
            del self._ready[stream]
            append = stream.next_append(room)
            size = sum(map(cost, append.events))
            room -= size
            self._appended += size
            batch.append((stream, append))
        return batch

    async def _append(self, batch: list[tuple[WrittenStream, Append]]) -> None:
        appends = [append for _, append in batch]
        if has_large(appends):
            map_large()
        try:
            renewals = await self._log.append(appends)
        except Exception as error:
            writing = [stream for stream, append in batch if append.events]
            logger.warning(
                "the events of %d streams were not appended, and the leases of %d were not renewed: %s",
                len(writing),
                len(batch),
                error,
            )
            for stream in writing:
                if stream in self._streams:
                    stream.log_failed(error)
            return
        for (stream, _), renewal in zip(batch, renewals, strict=True):
            if stream in self._streams:
                stream.renewed(renewal)


_writers: dict[StreamLog, StreamWriter] = {}
"""By log. A log has an entry while this process generates a stream of it."""


def writer_of(log: StreamLog) -> StreamWriter:
    """Return the writer of this process for a log."""
    if log not in _writers:
        _writers[log] = StreamWriter(log)
    return _writers[log]
