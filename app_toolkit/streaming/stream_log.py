"""What a stream log keeps of resumable responses, for how long, and how far a generator may be ahead of its readers.

A *stream* is the sequence of events of one response. Its events are numbered from 1. Each stream has one *owner*, the
process that generates it, and any number of readers. The owner renews its lease on the stream; a stream whose lease
expires is lost. Plain data; the caller passes the time in seconds.

All limits are in bytes. The log accepts events only as long as they fit, and the owner appends the others again later.
A position in a stream is also an *offset*: the bytes of all events up to it, evicted ones included.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from app_toolkit import StreamActive, StreamLogFull, StreamUnknown

Outcome = Literal["finished", "stopped", "failed", "full", "lost"]
"""How a stream ended: by itself, by a stop, with an exception, because the log had no room, or as its owner died."""

PAGE = 256
"""Events that one page has at most."""

PAGE_BYTES = 256 * 1024
"""Bytes that one page has at most. A page with a single event may be larger."""

EVENT_BYTES = 128
"""Bytes that an event counts for in addition to its length."""

STALLED_S = 5.0
"""Seconds without progress after which the generator does not wait for a reader any more, if another reader is faster.
"""


GROUP = 8
"""Streams from which on a full log frees more at a time, because it looks at all of them."""

SPARE_BYTES = 1_024
"""Bytes that a full log frees at a time in addition to what it needs, for every `GROUP` streams."""

PAUSE_S = 0.000_1
"""Seconds after which a full log that has found nothing to evict looks again, for every `GROUP` streams."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The limits of a stream log."""

    max_streams: int = 10_000
    """Streams that are kept, active ones included."""
    max_unread_streams: int = 1_000
    """Active streams whose readers have all left. If there are so many, no stream can begin."""
    max_bytes: int = 16 * 2**20
    """Bytes that are kept of one stream. Each event counts for its length and 128 bytes.

    While a stream has readers, its generator is at most half of this ahead of the slowest one, and the oldest events
    that all of them have had are evicted. Without a reader, nothing is evicted and the generator waits at the limit.
    """
    max_total_bytes: int = 512 * 2**20
    """Bytes that are kept of all streams.

    The streams that ended first and have no readers are removed. If that is not enough, the events that all readers
    have had are evicted, then those of active streams without a reader, and then the generators wait.
    """
    keep_s: float = 600.0
    """Seconds that a stream is kept after its end. Readers keep it longer."""
    lease_s: float = 10.0
    """Seconds without a renewal after which a stream is lost."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a stream."""

    first: int
    """The number of the first event in `events`."""
    events: tuple[bytes, ...]
    outcome: Outcome | None = None
    """How the stream ended, if no event follows; None: it has not ended, or more events follow."""
    evicted: bool = False
    """Whether events before `first` that the reader has not seen are no longer kept."""


@dataclass(frozen=True, slots=True)
class Append:
    """Events that the owner of a stream appends. Without events, the owner only renews its lease."""

    stream: str
    owner: str
    first: int = 1
    """The number of the first event in `events`."""
    events: tuple[bytes, ...] = ()
    read: int | None = None
    """The number of the last event that a reader in the process of the owner has had, which does not follow the log.

    None: there is none.
    """


@dataclass(frozen=True, slots=True)
class Renewal:
    """What the owner of a stream learns when it appends events or renews its lease."""

    stop: bool
    """Whether the owner should end the stream, because it was stopped."""
    unread_s: float
    """Seconds since the stream had its last reader; 0: it has readers now."""
    last: int = 0
    """The number of the newest event that the log has. It did not accept those that follow."""
    room: int = 0
    """Bytes that the owner may append now."""
    full: bool = False
    """Whether an event was not accepted because of `max_total_bytes`, or because it is larger than `max_bytes`."""


def cost(event: bytes) -> int:
    """Return the bytes that an event counts for."""
    return len(event) + EVENT_BYTES


@dataclass(slots=True)
class StreamReader:
    """One reader of a stream."""

    after: int
    """The number of the last event that it was given."""
    taken: int
    """The offset of the last event that it has had: it has asked for those that follow."""
    taken_at: float
    """When it had an event last, or when events began to wait for it."""


OWN = 0
"""The id of the reader in the process of the owner."""


@dataclass(slots=True)
class LoggedStream:
    """One stream."""

    id: str
    owner: str
    media_type: str
    renewed_at: float
    unread_since: float
    key: str | None = None
    events: deque[bytes] = field(default_factory=deque)
    ends: deque[int] = field(default_factory=deque)
    """The offset of each event in `events`."""
    first: int = 1
    """The number of the oldest event that is kept."""
    start: int = 0
    """The offset of the newest event that was evicted."""
    readers: dict[int, StreamReader] = field(default_factory=dict)
    was_read: bool = False
    """Whether there was a reader, so that the stream is unread while there is none."""
    stop: bool = False
    outcome: Outcome | None = None
    ended_at: float | None = None

    @property
    def last(self) -> int:
        """The number of the newest event; 0: there is none."""
        return self.first + len(self.events) - 1

    @property
    def end(self) -> int:
        """The offset of the newest event."""
        return self.ends[-1] if self.ends else self.start

    @property
    def size(self) -> int:
        """Bytes of the kept events."""
        return self.end - self.start

    def offset(self, number: int) -> int:
        """Return the offset of an event. An evicted one has that of the newest evicted one."""
        index = number - self.first
        if index < 0:
            return self.start
        return self.ends[index] if index < len(self.ends) else self.end

    def page(self, after: int) -> Page:
        """Return the events that follow number `after`."""
        first = max(after + 1, self.first)
        skipped = first - self.first
        events: list[bytes] = []
        size = 0
        for index in range(skipped, min(len(self.events), skipped + PAGE)):
            size += len(self.events[index])
            if events and size > PAGE_BYTES:
                break
            events.append(self.events[index])
        complete = first + len(events) > self.last
        return Page(first, tuple(events), self.outcome if complete else None, evicted=first > after + 1)

    def had(self, now: float) -> int | None:
        """Return the offset up to which all readers have had the events; None: there are no readers.

        A reader that is stalled does not count, unless it is the fastest one.
        """
        if not self.readers:
            return None
        fastest = max(reader.taken for reader in self.readers.values())
        return min(
            reader.taken
            for reader in self.readers.values()
            if reader.taken == fastest or now - reader.taken_at <= STALLED_S
        )

    def room(self, limits: StreamLimits, now: float) -> int:
        """Return the bytes that may be appended. One event may be larger if all others have been read."""
        had = self.had(now)
        if had is None:
            return limits.max_bytes - self.size
        return max(0, limits.max_bytes // 2 - (self.end - had))

    def largest(self, limits: StreamLimits, now: float) -> int:
        """Return the bytes that the next event may have."""
        return limits.max_bytes if self.had(now) == self.end else self.room(limits, now)

    def fitting(self, events: Sequence[bytes], limits: StreamLimits, now: float) -> int:
        """Return how many of the events may be appended."""
        room = self.room(limits, now)
        size = 0
        for count, event in enumerate(events):
            size += cost(event)
            if size > room and (count or size > self.largest(limits, now)):
                return count
        return len(events)

    def extend(self, events: Sequence[bytes], limits: StreamLimits, now: float) -> None:
        """Append events that fit, and evict the oldest ones beyond `max_bytes`."""
        end = self.end
        for reader in self.readers.values():
            if reader.taken == end:  # until now, nothing has waited for it
                reader.taken_at = now
        for event in events:
            self.events.append(event)
            end += cost(event)
            self.ends.append(end)
        self.evict(self.size - limits.max_bytes, end)

    def take(self, reader: int, number: int, now: float) -> None:
        """Note that a reader has had all events up to a number."""
        self.was_read = True
        taken = self.offset(number)
        found = self.readers.setdefault(reader, StreamReader(number, taken, now))
        if taken > found.taken:
            found.taken, found.taken_at = taken, now

    def evict(self, missing: int, up_to: int) -> int:
        """Evict the oldest events up to an offset, until `missing` bytes are free. Return the bytes that are free."""
        before = self.start
        while self.start - before < missing and self.ends and self.ends[0] <= up_to:
            self.events.popleft()
            self.start = self.ends.popleft()
            self.first += 1
        return self.start - before


class StreamTable:
    """All streams of one log."""

    def __init__(self, limits: StreamLimits | None = None) -> None:
        self.limits = limits or StreamLimits()
        self._streams: dict[str, LoggedStream] = {}
        self._ended: OrderedDict[str, LoggedStream] = OrderedDict()
        """The streams that have ended, in the order of their ends."""
        self._unread: set[str] = set()
        """The active streams whose readers have all left."""
        self._keys: dict[str, str] = {}
        self._entered = 0
        self._search_at = {False: -math.inf, True: -math.inf}
        """When events may be evicted again for a stream without readers, and for one with readers."""
        self.size = 0
        """Bytes of all kept events."""

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, id: str) -> bool:
        return id in self._streams

    def begin(self, id: str, owner: str, media_type: str, key: str | None, now: float) -> None:
        """Add a stream.

        A stream with the same key that has ended, or is lost, is no longer found by the key. It keeps its id.

        Raises:
            StreamActive: A stream with this key has not ended, or the log has a stream with this id.
            StreamLogFull: The log has `max_streams` streams, and each of them is active or has readers. Or it has
                `max_unread_streams` that are active and have no reader any more, or no room for an event.
        """
        if id in self._streams:
            raise StreamActive(f"there is a stream {id!r} already")
        before = None if key is None else self.find(key)
        if before is not None and self._streams[before].outcome is None:
            raise StreamActive(f"the stream of {key!r} has not ended")
        if len(self._unread) >= self.limits.max_unread_streams:
            raise too_many_unread(self.limits)
        self._remove_ended(len(self._streams) + 1 - self.limits.max_streams, 0)
        if len(self._streams) >= self.limits.max_streams:
            raise too_many_streams(self.limits)
        stream = LoggedStream(id, owner, media_type, renewed_at=now, unread_since=now, key=key)
        if not self._make_room(EVENT_BYTES, stream, now):
            raise StreamLogFull(
                f"the events of active streams fill the stream log: its max_total_bytes is "
                f"{self.limits.max_total_bytes:,}"
            )
        self._streams[id] = stream
        if key is not None:
            self._keys[key] = id

    def append(self, append: Append, now: float) -> Renewal | None:
        """Append the events that fit, and renew the lease.

        Return None if the log has no such stream, or if it has ended or has another owner. Events that the log has had
        already are skipped. Nothing is appended if events between the last one and these are missing.
        """
        stream = self._streams.get(append.stream)
        if stream is None or stream.owner != append.owner or stream.outcome is not None:
            return None
        stream.renewed_at = now
        full = False
        if append.first <= stream.last + 1:
            full = self._extend(stream, append.events[stream.last + 1 - append.first :], now)
        if append.read is not None:
            stream.take(OWN, append.read, now)
            self._unread.discard(stream.id)
        else:
            self.leave(stream.id, OWN, now)
        unread_s = 0.0 if stream.readers else now - stream.unread_since
        return Renewal(stream.stop, unread_s, stream.last, stream.largest(self.limits, now), full)

    def _extend(self, stream: LoggedStream, events: Sequence[bytes], now: float) -> bool:
        """Append the events that fit. Return whether one was not accepted that no reader can make room for."""
        count = stream.fitting(events, self.limits, now)
        if not count:
            return bool(events) and cost(events[0]) > self.limits.max_bytes
        sizes = [cost(event) for event in events[:count]]
        if not self._make_room(sum(sizes), stream, now):
            room = self.limits.max_total_bytes - self.size
            accepted, size = 0, sizes[0]
            while size <= room:  # not all of them fit
                accepted += 1
                size += sizes[accepted]
            count, full = accepted, True
        else:
            full = False
        before = stream.size
        stream.extend(events[:count], self.limits, now)
        self.size += stream.size - before
        return full

    def end(self, id: str, owner: str, outcome: Outcome, now: float) -> None:
        """End a stream. Nothing happens if it has ended, or has another owner."""
        stream = self._streams.get(id)
        if stream is not None and stream.owner == owner and stream.outcome is None:
            self._end(stream, "stopped" if stream.stop and outcome != "failed" else outcome, now)

    def stop(self, id: str) -> bool:
        """Ask the owner of a stream to end it. Return False if the stream has ended."""
        stream = self.get(id)
        if stream.outcome is not None:
            return False
        stream.stop = True
        return True

    def adopt(self, id: str, owner: str, last: int, now: float) -> bool:
        """Make this process the owner of a lost stream whose last event it has seen.

        Return False if the stream is not lost, or its last event does not have the number `last`.
        """
        stream = self.get(id)
        if stream.outcome != "lost" or stream.last != last:
            return False
        stream.owner, stream.outcome, stream.ended_at = owner, None, None
        stream.renewed_at = now
        del self._ended[id]
        if not stream.readers and stream.was_read:
            self._unread.add(id)
        return True

    def remove(self, id: str) -> bool:
        """Remove a stream and its events. Return False if there is no such stream."""
        stream = self._streams.get(id)
        if stream is not None:
            self._remove(stream)
        return stream is not None

    def enter(self, id: str, after: int, now: float) -> int:
        """Add a reader of the events after a number. Return its id."""
        stream = self.get(id)
        self._entered += 1
        stream.take(self._entered, after, now)
        self._unread.discard(id)
        return self._entered

    def read(self, id: str, reader: int, now: float) -> Page:
        """Return the next events for a reader, which has had those of the page before. Raises `StreamUnknown`."""
        stream = self.get(id)
        entry = stream.readers.get(reader)
        if entry is None:  # the stream was removed, and another one has its id
            raise StreamUnknown(f"there is no stream {id!r} any more")
        stream.take(reader, entry.after, now)
        page = stream.page(entry.after)
        entry.after = page.first + len(page.events) - 1
        return page

    def leave(self, id: str, reader: int, now: float) -> None:
        """Remove a reader."""
        stream = self._streams.get(id)
        if stream is None or stream.readers.pop(reader, None) is None:
            return
        stream.unread_since = now
        if not stream.readers and stream.outcome is None:
            self._unread.add(id)

    def get(self, id: str) -> LoggedStream:
        """Raises `StreamUnknown`."""
        stream = self._streams.get(id)
        if stream is None:
            raise StreamUnknown(f"there is no stream {id!r}")
        return stream

    def find(self, key: str) -> str | None:
        """Return the id of the newest stream with this key."""
        return self._keys.get(key)

    def look(self, now: float) -> list[str]:
        """Mark streams whose lease has expired as lost, and remove old ones. Return the ids of those that were lost."""
        active = (stream for stream in self._streams.values() if stream.outcome is None)
        lost = [stream for stream in active if now - stream.renewed_at > self.limits.lease_s]
        for stream in lost:
            self._end(stream, "lost", now)
        self.remove_old(now)
        return [stream.id for stream in lost]

    def remove_old(self, now: float) -> None:
        """Remove the streams without readers that ended more than `keep_s` ago."""
        for stream in list(self._ended.values()):
            if stream.ended_at is None or now - stream.ended_at <= self.limits.keep_s:
                break  # the others ended later
            if not stream.readers:
                self._remove(stream)

    def _end(self, stream: LoggedStream, outcome: Outcome, now: float) -> None:
        self.leave(stream.id, OWN, now)
        stream.outcome, stream.ended_at = outcome, now
        self._ended[stream.id] = stream
        self._unread.discard(stream.id)

    def _make_room(self, size: int, stream: LoggedStream, now: float) -> bool:
        """Free so many bytes for events of a stream. Return whether there is room for all of them."""
        missing = self.size + size - self.limits.max_total_bytes
        if missing > 0:
            missing -= self._remove_ended(0, missing)
        is_preferred = bool(stream.readers) or stream.id not in self._streams
        if missing <= 0 or now < self._search_at[is_preferred]:
            return missing <= 0
        groups = len(self._streams) // GROUP
        spare = min(groups * SPARE_BYTES, self.limits.max_total_bytes // 64)
        read = ((stream, stream.had(now)) for stream in self._streams.values())
        missing -= self._evict(missing + spare, [(stream, had) for stream, had in read if had is not None])
        if missing > 0 and is_preferred:
            unread = [stream for stream in self._streams.values() if not stream.readers]
            missing -= self._evict(missing + spare, [(stream, stream.end) for stream in unread])
        if missing > 0:
            self._search_at[is_preferred] = now + groups * PAUSE_S
        return missing <= 0

    def _remove_ended(self, streams: int, size: int) -> int:
        """Remove streams without readers, those that ended first, to free so many streams and bytes.

        Return the bytes that are free.
        """
        free = 0
        if streams <= 0 and size <= 0:
            return free
        for stream in list(self._ended.values()):
            if streams <= 0 and free >= size:
                break
            if not stream.readers:
                self._remove(stream)
                streams, free = streams - 1, free + stream.size
        return free

    def _evict(self, missing: int, streams: list[tuple[LoggedStream, int]]) -> int:
        """Evict events of streams up to offsets, most of the largest first. Return the bytes that are free."""
        free = 0
        for stream, up_to in sorted(streams, key=lambda candidate: candidate[0].start - candidate[1]):
            if free >= missing:
                break
            free += stream.evict(missing - free, up_to)
        self.size -= free
        return free

    def _remove(self, stream: LoggedStream) -> None:
        del self._streams[stream.id]
        self._ended.pop(stream.id, None)
        self._unread.discard(stream.id)
        self.size -= stream.size
        if stream.key is not None and self._keys.get(stream.key) == stream.id:
            del self._keys[stream.key]


def too_many_streams(limits: StreamLimits) -> StreamLogFull:
    """Return the error of a log with `max_streams`."""
    return StreamLogFull(f"the stream log has {limits.max_streams:,} streams that are active or have readers")


def too_many_unread(limits: StreamLimits) -> StreamLogFull:
    """Return the error of a log with `max_unread_streams`."""
    return StreamLogFull(
        f"the stream log has {limits.max_unread_streams:,} active streams whose readers have left, "
        f"and its max_unread_streams is {limits.max_unread_streams:,}"
    )
