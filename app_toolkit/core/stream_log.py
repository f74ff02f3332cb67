"""What a stream log keeps of resumable responses, and for how long.

A *stream* is the sequence of events of one response. Its events are numbered from 1. Each stream has one *owner*, the
process that generates it, and any number of readers. The owner renews its lease on the stream; a stream whose lease
expires is lost. Plain data; the caller passes the time in seconds.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from app_toolkit.errors import StreamActive, StreamLogFull, StreamUnknown

Outcome = Literal["finished", "stopped", "failed", "lost"]
"""How a stream ended: by itself, by a stop, with an exception, or because its owner died."""

PAGE = 256
"""Events that one page has at most."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The limits of a stream log."""

    max_streams: int = 10_000
    """Streams that are kept, active ones included."""
    max_events: int = 100_000
    """Events that are kept of one stream. The oldest are evicted."""
    max_bytes: int = 16 * 2**20
    """Bytes that are kept of one stream. The oldest events are evicted."""
    max_total_bytes: int = 512 * 2**20
    """Bytes that are kept of all streams.

    The streams that ended first and have no readers are removed. If that is not enough, the oldest events of the
    largest stream are evicted.
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
class Renewal:
    """What the owner of a stream learns when it appends events or renews its lease."""

    stop: bool
    """Whether the owner should end the stream, because it was stopped, or has another owner now."""
    unread_s: float
    """Seconds since the stream had its last reader; 0: it has readers now."""


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
    first: int = 1
    """The number of the oldest event that is kept."""
    size: int = 0
    """Bytes of the kept events."""
    readers: int = 0
    stop: bool = False
    outcome: Outcome | None = None
    ended_at: float | None = None

    @property
    def last(self) -> int:
        """The number of the newest event; 0: there is none."""
        return self.first + len(self.events) - 1

    def page(self, after: int) -> Page:
        """Return the events that follow number `after`."""
        first = max(after + 1, self.first)
        skipped = first - self.first
        events = tuple(self.events[index] for index in range(skipped, min(len(self.events), skipped + PAGE)))
        complete = first + len(events) > self.last
        return Page(first, events, self.outcome if complete else None, evicted=first > after + 1)

    def extend(self, events: Sequence[bytes], limits: StreamLimits) -> int:
        """Append events and evict the oldest ones beyond the limits. Return the change of the size in bytes."""
        before = self.size
        self.events.extend(events)
        self.size += sum(map(len, events))
        while self.events and (len(self.events) > limits.max_events or self.size > limits.max_bytes):
            self.evict()
        return self.size - before

    def evict(self) -> int:
        """Evict the oldest event. Return its size in bytes."""
        size = len(self.events.popleft())
        self.size -= size
        self.first += 1
        return size


class StreamTable:
    """All streams of one log."""

    def __init__(self, limits: StreamLimits | None = None) -> None:
        self.limits = limits or StreamLimits()
        self._streams: dict[str, LoggedStream] = {}
        self._ended: OrderedDict[str, LoggedStream] = OrderedDict()
        """The streams that have ended, in the order of their ends."""
        self._keys: dict[str, str] = {}
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
            StreamLogFull: The log has `max_streams` streams, and each of them is active or has readers.
        """
        if id in self._streams:
            raise StreamActive(f"there is a stream {id!r} already")
        before = None if key is None else self.find(key)
        if before is not None and self._streams[before].outcome is None:
            raise StreamActive(f"the stream of {key!r} has not ended")
        self._make_room(self.limits.max_streams - 1)
        if len(self._streams) >= self.limits.max_streams:
            raise StreamLogFull(
                f"the stream log has {self.limits.max_streams:,} streams that are active or have readers"
            )
        self._streams[id] = LoggedStream(id, owner, media_type, renewed_at=now, unread_since=now, key=key)
        if key is not None:
            self._keys[key] = id

    def append(self, id: str, owner: str, first: int, events: Sequence[bytes], now: float) -> Renewal:
        """Append events, the first of which has the number `first`, and renew the lease.

        Events that the log has had already are skipped. Nothing is appended if the stream has ended or has another
        owner.

        Raises:
            StreamUnknown: The log has no such stream.
            ValueError: Events between the last one and number `first` are missing.
        """
        stream = self.get(id)
        if stream.owner != owner or stream.outcome is not None:
            return Renewal(stop=True, unread_s=0.0)
        if first > stream.last + 1:
            raise ValueError(f"event {first} of stream {id!r} cannot follow event {stream.last}")
        self.size += stream.extend(events[stream.last + 1 - first :], self.limits)
        stream.renewed_at = now
        self._make_room(self.limits.max_streams)
        return Renewal(stream.stop, 0.0 if stream.readers else now - stream.unread_since)

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

    def renew(self, id: str, owner: str, now: float) -> Renewal:
        """Renew the lease on a stream. Raises `StreamUnknown`."""
        return self.append(id, owner, self.get(id).last + 1, (), now)

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
        return True

    def remove(self, id: str) -> bool:
        """Remove a stream and its events. Return False if there is no such stream."""
        stream = self._streams.get(id)
        if stream is not None:
            self._remove(stream)
        return stream is not None

    def enter(self, id: str) -> None:
        """Count one reader more."""
        self.get(id).readers += 1

    def leave(self, id: str, now: float) -> None:
        """Count one reader less."""
        if (stream := self._streams.get(id)) is not None:
            stream.readers -= 1
            stream.unread_since = now

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
            if stream.ended_at is not None and now - stream.ended_at > self.limits.keep_s and not stream.readers:
                self._remove(stream)

    def _end(self, stream: LoggedStream, outcome: Outcome, now: float) -> None:
        stream.outcome, stream.ended_at = outcome, now
        self._ended[stream.id] = stream

    def _make_room(self, streams: int) -> None:
        """Remove the streams that ended first, and evict events, until `streams` and `max_total_bytes` are kept.

        Streams that are active or have readers are not removed.
        """
        total = self.limits.max_total_bytes
        if len(self._streams) <= streams and self.size <= total:
            return
        unread, count, size = [], len(self._streams), self.size
        for stream in self._ended.values():
            if count <= streams and size <= total:
                break
            if not stream.readers:
                unread.append(stream)
                count, size = count - 1, size - stream.size
        for stream in unread:
            self._remove(stream)
        while self.size > total:
            largest = max(self._streams.values(), key=lambda stream: stream.size)
            while largest.events and self.size > total:
                self.size -= largest.evict()

    def _remove(self, stream: LoggedStream) -> None:
        del self._streams[stream.id]
        self._ended.pop(stream.id, None)
        self.size -= stream.size
        if stream.key is not None and self._keys.get(stream.key) == stream.id:
            del self._keys[stream.key]
