"""What the owner of a stream has generated and the stream log has not accepted, and when it appends that.

Plain data; the caller passes the time in seconds.
"""

from collections import deque
from dataclasses import dataclass, field

from app_toolkit.streaming.stream_log import Renewal, cost

FIRST_RETRY_S, LAST_RETRY_S = 0.01, 0.5
"""Seconds after which the owner asks again whether the log has room. They double while it has none."""

FULL_S = 15.0
"""Seconds without room for any event, because of the limit of all streams, after which the stream ends."""


@dataclass(slots=True)
class Outbox:
    """The events of one stream that wait for the log."""

    last: int = 0
    """The number of the last event that the log has accepted."""
    size: int = 0
    """Bytes of the events that wait."""
    events: deque[bytes] = field(default_factory=deque)
    room: int | None = None
    """Bytes that the log accepts, as far as the owner knows; None: it has not said."""
    most_room: int = 0
    """The most bytes that the log has ever said it accepts."""
    retry_s: float = 0.0
    """Seconds after which the owner asks the log again, because it has no room; 0: it may append now."""
    full_since: float | None = None

    def __len__(self) -> int:
        return len(self.events)

    def put(self, event: bytes) -> None:
        """Add an event."""
        self.events.append(event)
        self.size += cost(event)

    def next(self, most: int) -> tuple[bytes, ...]:
        """Return the events to append next: `most` bytes, or a single event. Nothing if the log has no room.

        An event that is larger than all room so far is offered, because the log says only then that it never fits.
        """
        pieces: list[bytes] = []
        size = 0
        for event in self.events:
            size += cost(event)
            has_room = self.room is None or size <= self.room or (not pieces and size > self.most_room)
            if not has_room or (pieces and size > most):
                break
            pieces.append(event)
        return tuple(pieces)

    def renewed(self, renewal: Renewal, now: float) -> list[bytes] | None:
        """Remove and return what the log has accepted. Return None if the log has lost events that it had accepted."""
        if renewal.last < self.last:
            return None
        accepted = [self.events.popleft() for _ in range(min(renewal.last - self.last, len(self.events)))]
        self.size -= sum(map(cost, accepted))
        self.last = renewal.last
        self.most_room = max(self.most_room, renewal.room)
        if renewal.full:
            self.full_since = now if accepted or self.full_since is None else self.full_since
        elif accepted:
            self.full_since = None
        # An event that the log said it had room for, and did not accept, is offered again after a pause.
        self.room = None if renewal.full else renewal.room
        if not self.events or (not renewal.full and cost(self.events[0]) <= renewal.room):
            self.retry_s = 0.0
        elif accepted:
            self.retry_s = FIRST_RETRY_S
        else:
            self.retry_s = min(max(2 * self.retry_s, FIRST_RETRY_S), LAST_RETRY_S)
        return accepted

    def is_refused(self, now: float) -> bool:
        """Return whether the log has had no room for any event for too long, because of the limit of all streams."""
        return bool(self.events) and self.full_since is not None and now - self.full_since >= FULL_S
