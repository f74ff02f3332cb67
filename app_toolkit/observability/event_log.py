"""Why did this happen? The last things that happened to each replica set, and what they led to."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

KEPT = 5_000
LONGEST_CAUSE = 4_000
"""Characters. A traceback's end says more than its beginning."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    at: float
    """On the clock that the story was given."""
    subject: str
    replica: str | None
    what: str
    """An event or an action, by its name."""
    cause: str | None


class EventLog:
    """A ring of the last `size` entries; telling one more forgets the oldest."""

    def __init__(self, now: Callable[[], float], size: int = KEPT) -> None:
        self._now = now
        self._entries: deque[LoggedEvent] = deque(maxlen=size)

    def append(self, subject: str, what: str, *, replica: str | None = None, cause: str | None = None) -> None:
        if cause is not None and len(cause) > LONGEST_CAUSE:
            cause = "… " + cause[-LONGEST_CAUSE:]
        self._entries.append(LoggedEvent(self._now(), subject, replica, what, cause))

    def entries(
        self, *, subject: str | None = None, replica: str | None = None, last: int | None = None
    ) -> list[LoggedEvent]:
        """Oldest first. `subject` also takes the part before the slash: all replica sets of an application."""
        found = [
            entry
            for entry in self._entries
            if (subject is None or entry.subject == subject or entry.subject.startswith(f"{subject}/"))
            and (replica is None or entry.replica == replica)
        ]
        return found if last is None else found[max(0, len(found) - last) :]

    def __len__(self) -> int:
        return len(self._entries)
