"""The log files of the processes of one node: created, bounded, and read for queries."""

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from heapq import heappop, heappush
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from app_toolkit import private
from app_toolkit.observability.log_file import LogFile
from app_toolkit.observability.log_query import MOST_PAGE_BYTES, MOST_RECORDS, LogQuery, NodeLogs, time_of

SUFFIX = ".log"
PREVIOUS = f"{SUFFIX}.1"

MOST_BYTES = 16 * 1024 * 1024
"""Maximum size of one file in bytes. A process has two: the present one and the previous one."""

KEPT_BYTES = 512 * 1024 * 1024
KEPT_FILES = 1_000
"""The most that the files of processes that have ended may have together on one node. The oldest ones are removed."""

BLOCK = 256 * 1024
"""Bytes that are read at once."""

LONGEST_LINE = 64 * 1024
"""More bytes than any line has that a process has written as a whole."""

SEARCH_S = 10.0
"""Seconds after which a search ends, even if it has not read all files."""


class LogFolder:
    """The folder with the log files of the processes of one node, `NAME.log` and `NAME.log.1`.

    It may be in a folder that other users can write to.
    """

    def __init__(self, path: Path) -> None:
        """Create the folder unless it exists. Raises `InsecurePath` if it is not this user's alone, and `OSError`."""
        self._folder = private.open_folder(path)

    def close(self) -> None:
        os.close(self._folder)

    def create(self, name: str) -> LogFile:
        """Create the file of a process, or open the present one. Remove files of ended processes that are too many."""
        self._remove_oldest()
        return LogFile(Path(f"{safe(name)}{SUFFIX}"), MOST_BYTES, dir_fd=self._folder)

    def read(
        self,
        query: LogQuery,
        last: int = MOST_RECORDS,
        after: Mapping[str, str] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> NodeLogs:
        """Return lines that match a query, in the order of their time. They have at most `MOST_PAGE_BYTES` together.

        Parameters:
            query: Selects the lines.
            last: Without `after`: at most so many lines, the newest ones.
            after: The positions of the page before: only what was written since. None: there was none.
            now: Returns the current time in seconds. The search ends after `SEARCH_S`.
        """
        until = now() + SEARCH_S
        names = sorted({file.removesuffix(".1").removesuffix(SUFFIX) for file in self._files()})
        chosen = [name for name in names if query.reads(name)]
        if after is None:
            return self._newest(chosen, query, min(last, MOST_RECORDS), lambda: now() > until)
        return self._since(chosen, query, after, lambda: now() > until)

    def _newest(self, names: Sequence[str], query: LogQuery, last: int, is_late: Callable[[], bool]) -> NodeLogs:
        positions: dict[str, str] = {}
        kept: list[tuple[str, int, str]] = []  # a heap, with the oldest line first
        size, is_full = 0, False
        for number, name in enumerate(names):
            with self._opened(name) as files:
                ends = [_end_of_lines(file) for file in files]
                if files:
                    positions[name] = _position(files[0], ends[0])
                backwards = (_backwards(file, end, query, is_late) for file, end in zip(files, ends, strict=True))
                for order, line in enumerate(chain.from_iterable(backwards)):
                    text = line.decode(errors="replace")
                    # Of the same time, the later line of a file is the newer one.
                    entry = (time_of(text), number * 2**40 - order, text)
                    if is_full and entry[0] < kept[0][0]:
                        break
                    heappush(kept, entry)
                    size += len(text) + 1
                    while len(kept) > last or (size > MOST_PAGE_BYTES and len(kept) > 1):
                        size -= len(heappop(kept)[2]) + 1
                        is_full = True
        return NodeLogs(tuple(text for *_, text in sorted(kept)), positions, is_full or is_late())

    def _since(
        self, names: Sequence[str], query: LogQuery, after: Mapping[str, str], is_late: Callable[[], bool]
    ) -> NodeLogs:
        positions = {name: position for name, position in after.items() if name in names}
        lines: list[str] = []
        room, more = MOST_PAGE_BYTES, False
        for name in names:
            with self._opened(name) as files:
                for file, start in _unread(files, positions.get(name, "")):
                    end = start
                    for line, end_of_line in _forwards(file, start):
                        if room <= 0 or is_late():
                            more = True
                            break
                        end = end_of_line
                        if query.matches(line):
                            lines.append(line.decode(errors="replace"))
                            room -= len(line) + 1
                    positions[name] = _position(file, end)
                    if more:
                        break
            if more:
                break
        return NodeLogs(tuple(sorted(lines, key=time_of)), positions, more)

    @contextmanager
    def _opened(self, name: str) -> Iterator[list[BinaryIO]]:
        """Open the files of a process to read them: the present one first, and then the previous one, if there is one.

        If the process renames its file meanwhile, a file is opened once.
        """
        with ExitStack() as stack:
            files: dict[int, BinaryIO] = {}
            for suffix in (SUFFIX, PREVIOUS):
                with suppress(FileNotFoundError):
                    opened = os.open(f"{name}{suffix}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
                    file = stack.enter_context(os.fdopen(opened, "rb", buffering=0))
                    files.setdefault(os.fstat(opened).st_ino, file)
            yield list(files.values())

    def _files(self) -> dict[str, os.stat_result]:
        """Return the log files in this folder."""
        files = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith((SUFFIX, PREVIOUS)) and stat.S_ISREG(status.st_mode):
                        files[entry.name] = status
        return files

    def _remove_oldest(self) -> None:
        """Remove the oldest files of processes that have ended, while there are too many."""
        ended = {}
        for name, status in self._files().items():
            with suppress(OSError):  # a process still writes to the file, or another one has removed it
                opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    ended[name] = status
                finally:
                    os.close(opened)
        oldest_first = sorted(ended, key=lambda name: ended[name].st_mtime)
        size = sum(status.st_size for status in ended.values())
        while oldest_first and (size > KEPT_BYTES or len(oldest_first) > KEPT_FILES):
            name = oldest_first.pop(0)
            size -= ended[name].st_size
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder)


def safe(name: str) -> str:
    """Return the name of a process as a name of a file."""
    return re.sub(r"[^A-Za-z0-9_@.-]", "_", name)


def _position(file: BinaryIO, offset: int) -> str:
    return f"{os.fstat(file.fileno()).st_ino}:{offset}"


def _unread(files: Sequence[BinaryIO], position: str) -> list[tuple[BinaryIO, int]]:
    """Return the files that have lines after a position, the previous one first, and where these begin."""
    inode, _, offset = position.partition(":")
    unread = []
    for file in files:
        if str(os.fstat(file.fileno()).st_ino) == inode:
            unread.append((file, int(offset)))
            break
        unread.append((file, 0))
    return unread[::-1]


def _end_of_lines(file: BinaryIO) -> int:
    """Return the end of the last complete line of a file."""
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - LONGEST_LINE)
    file.seek(start)
    return start + file.read(size - start).rfind(b"\n") + 1


def _backwards(file: BinaryIO, end: int, query: LogQuery, is_late: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the lines before `end` that match, the last one first, until it is late."""
    rest = b""
    while end > 0 and not is_late():
        start = max(0, end - BLOCK)
        file.seek(start)
        lines = (file.read(end - start) + rest).split(b"\n")
        end = start
        rest = lines.pop(0) if start else b""
        if len(rest) > LONGEST_LINE:  # no line of a process
            rest = b""
        for line in reversed(lines):
            if line and query.matches(line):
                yield line


def _forwards(file: BinaryIO, start: int) -> Iterator[tuple[bytes, int]]:
    """Yield the complete lines from `start` on, each with its end."""
    rest = b""
    file.seek(start)
    while block := file.read(BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            start += len(line) + 1
            if line:
                yield line, start
