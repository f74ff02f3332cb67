"""The event log: the last events and actions of each replica set, with their causes."""

from collections import deque
from collections.abc import Callable

from app_toolkit.core.identity import application_of
from app_toolkit.observability.records import ControllerRecord, Records

KEPT = 5_000
LONGEST_CAUSE = 4_000
"""Maximum length of a cause in characters. The end is kept, because the end of a traceback is more useful."""


class EventLog:
    """Creates the records of the controller, and keeps the last `size` of them. A new one replaces the oldest one."""

    def __init__(self, now: Callable[[], float], size: int = KEPT) -> None:
        self._now = now
        self._entries: deque[ControllerRecord] = deque(maxlen=size)
        #: Passes each record to its subscribers, of which the log itself is the first.
        self.records = Records(self._entries.append)

    def append(self, subject: str, name: str, *, replica: str | None = None, cause: str | None = None) -> None:
        """Record an action or an event. All actions of the controller are recorded here."""
        if cause is not None and len(cause) > LONGEST_CAUSE:
            cause = "… " + cause[-LONGEST_CAUSE:]
        self.records.add(ControllerRecord(self._now(), subject, name, replica, cause))

    def entries(
        self, *, subject: str | None = None, replica: str | None = None, last: int | None = None
    ) -> list[ControllerRecord]:
        """Return the entries, oldest first. `subject` may be an application: then all of its replica sets match."""
        found = [
            entry
            for entry in self._entries
            if (subject is None or subject in (entry.subject, application_of(entry.subject)))
            and (replica is None or entry.replica == replica)
        ]
        return found if last is None else found[max(0, len(found) - last) :]

    def __len__(self) -> int:
        return len(self._entries)
