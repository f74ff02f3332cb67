"""The event log: the last events and actions of each replica set, with their causes."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from app_toolkit.contract.identity import ReplicaSetKey
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
        """Return the entries, oldest first.

        `subject`: only those of this application or deployment, in all of its live revisions; None: all. `after`: leave
        out so many entries, counted as in `number`.
        """
        skipped = max(0, len(self._entries) - (self.number - after))
        entries = [
            entry
            for entry in islice(self._entries, skipped, None)
            if (subject is None or subject == entry.subject or _is_of(entry.subject, subject))
            and (replica is None or entry.replica == replica)
        ]
        return entries if last is None else entries[max(0, len(entries) - last) :]

    def __len__(self) -> int:
        return len(self._entries)


def _is_of(name: str, subject: str) -> bool:
    """Return whether a replica set belongs to an application, or to a deployment of any of its live revisions."""
    key = ReplicaSetKey.parse(name) if "/" in name else None
    return key is not None and subject in (key.application, key.main.name)
