"""The event log: the last events and actions of each replica set, with their causes."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

KEPT = 5_000
LONGEST_CAUSE = 4_000
"""Maximum length of a cause in characters. The end is kept, because the end of a traceback is more useful."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    at: float
    """Time of the event on the clock of the `EventLog`."""
    subject: str
    replica: str | None
    what: str
    """The name of the event or the action."""
    cause: str | None


class EventLog:
    """A ring buffer of the last `size` entries. A new entry replaces the oldest one."""

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
        """Return the entries, oldest first. `subject` may be an application: then all of its replica sets match."""
        found = [
            entry
            for entry in self._entries
            if (subject is None or entry.subject == subject or entry.subject.startswith(f"{subject}/"))
            and (replica is None or entry.replica == replica)
        ]
        return found if last is None else found[max(0, len(found) - last) :]

    def __len__(self) -> int:
        return len(self._entries)
