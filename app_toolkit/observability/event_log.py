"""The event log: the last events and actions of each replica set, with their causes."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from app_toolkit.core.identity import application_of
from app_toolkit.observability.records import ControllerRecord, Records

KEPT = 5_000
LONGEST_CAUSE = 4_000
"""Maximum length of a cause in characters. The end is kept, because the end of a traceback is more useful."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An entry of the event log, as clients see it."""

    age_s: float
    """Seconds since it happened."""
    subject: str
    """The name of the application or of the replica set; empty: the instance."""
    name: str
    """The name of the action or the event, such as `Applied`, `Scaled`, `Drain` or `Exited`."""
    replica: str | None
    cause: str | None


@dataclass(frozen=True, slots=True)
class EventPage:
    """Entries of the event log of one controller, and where the next ones begin."""

    events: tuple[LoggedEvent, ...]
    epoch: int
    """That of the controller. Another controller has a log of its own."""
    number: int
    """The number of all events so far."""


class EventLog:
    """Creates the records of the controller, and keeps the last `size` of them. A new one replaces the oldest one."""

    def __init__(self, now: Callable[[], float], size: int = KEPT) -> None:
        self._now = now
        self._entries: deque[ControllerRecord] = deque(maxlen=size)
        #: The number of all entries so far, also of those that gave way.
        self.number = 0
        #: Passes each record to its subscribers, of which the log itself is the first.
        self.records = Records(self._keep)

    def _keep(self, record: ControllerRecord) -> None:
        self._entries.append(record)
        self.number += 1

    def append(self, subject: str, name: str, *, replica: str | None = None, cause: str | None = None) -> None:
        """Record an action or an event. All actions of the controller are recorded here."""
        if cause is not None and len(cause) > LONGEST_CAUSE:
            cause = "… " + cause[-LONGEST_CAUSE:]
        self.records.add(ControllerRecord(self._now(), subject, name, replica, cause))

    def entries(
        self, *, subject: str | None = None, replica: str | None = None, last: int | None = None, after: int = 0
    ) -> list[ControllerRecord]:
        """Return the entries, oldest first. `subject` may be an application: then all of its replica sets match.

        `after`: leave out so many entries, counted as in `number`.
        """
        known = max(0, len(self._entries) - (self.number - after))
        found = [
            entry
            for entry in islice(self._entries, known, None)
            if (subject is None or subject == entry.subject or _is_of(entry.subject, subject))
            and (replica is None or entry.replica == replica)
        ]
        return found if last is None else found[max(0, len(found) - last) :]

    def __len__(self) -> int:
        return len(self._entries)


def _is_of(replica_set: str, application: str) -> bool:
    key = application_of(replica_set)
    return key is not None and key.name == application
