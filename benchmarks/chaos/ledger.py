"""The victim's ledger, which records what its handlers did."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(slots=True)
class Entry:
    """The events of one request ID."""

    starts: int = 0
    ends: int = 0
    cancels: int = 0
    chunks: int = 0
    pids: set[int] = field(default_factory=set)
    started: float = 0.0
    """When it last started: `time.monotonic()`."""
    ended: float = 0.0
    """When it last ended or was cancelled: `time.monotonic()`."""

    @property
    def over(self) -> bool:
        return self.ends + self.cancels >= self.starts


class Ledger:
    """Reads the new lines of the file at each access."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._entries: defaultdict[str, Entry] = defaultdict(Entry)

    def of(self, ids: Iterable[str]) -> dict[str, Entry]:
        """Return the current entries of those IDs for which a handler has started."""
        self._catch_up()
        return {id: replace(self._entries[id]) for id in ids if id in self._entries}

    def _catch_up(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._read)
            news = file.read()
        whole = news[: news.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            event, id, pid, at = line.split(" ")
            entry = self._entries[id]
            entry.pids.add(int(pid))
            match event:
                case "start":
                    entry.starts += 1
                    entry.started = float(at)
                case "end":
                    entry.ends += 1
                    entry.ended = float(at)
                case "cancel":
                    entry.cancels += 1
                    entry.ended = float(at)
                case "chunk":
                    entry.chunks += 1


def executed_twice(entries: Iterable[Entry]) -> int:
    return sum(entry.starts > 1 for entry in entries)


def unended(entries: Iterable[Entry]) -> int:
    """Return how many handlers started without an end in the ledger."""
    return sum(not entry.over for entry in entries)
