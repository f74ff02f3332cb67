"""Why did this happen? The last things that happened to each group, and what they led to."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

KEPT = 5_000
LONGEST_CAUSE = 4_000
"""Characters. A traceback's end says more than its beginning."""


@dataclass(frozen=True, slots=True)
class Entry:
    at: float
    """On the clock that the story was given."""
    group: str
    replica: str | None
    what: str
    """An event or an action, by its name."""
    cause: str | None


class Story:
    """A ring of the last `size` entries; telling one more forgets the oldest."""

    def __init__(self, now: Callable[[], float], size: int = KEPT) -> None:
        self._now = now
        self._entries: deque[Entry] = deque(maxlen=size)

    def tell(self, group: str, what: str, *, replica: str | None = None, cause: str | None = None) -> None:
        if cause is not None and len(cause) > LONGEST_CAUSE:
            cause = "… " + cause[-LONGEST_CAUSE:]
        self._entries.append(Entry(self._now(), group, replica, what, cause))

    def entries(self, *, group: str | None = None, replica: str | None = None, last: int | None = None) -> list[Entry]:
        """Oldest first. `group` also takes the part before the slash: all groups of an application."""
        found = [
            entry
            for entry in self._entries
            if (group is None or entry.group == group or entry.group.startswith(f"{group}/"))
            and (replica is None or entry.replica == replica)
        ]
        return found if last is None else found[max(0, len(found) - last) :]

    def __len__(self) -> int:
        return len(self._entries)
