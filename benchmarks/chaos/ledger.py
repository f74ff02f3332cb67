"""The victim's ledger: the one source of truth for what its handlers did."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(slots=True)
class Entry:
    """What is written of one id."""

    starts: int = 0
    ends: int = 0
    cancels: int = 0
    chunks: int = 0
    pids: set[int] = field(default_factory=set)
    started: float = 0.0
    """When it started last, and when it was over: `time.monotonic()`."""
    ended: float = 0.0

    @property
    def over(self) -> bool:
        return self.ends + self.cancels >= self.starts


class Ledger:
    """Reads what is new each time it is asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._entries: defaultdict[str, Entry] = defaultdict(Entry)

    def of(self, ids: Iterable[str]) -> dict[str, Entry]:
        """Those that a handler has begun to serve, as it is now."""
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
    """Handlers that began and of whose end nothing is written."""
    return sum(not entry.over for entry in entries)
