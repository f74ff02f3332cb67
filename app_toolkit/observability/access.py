"""The access log: one line of JSON for each request, formatted and written many at a time."""

import io
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app_toolkit import private
from app_toolkit.errors import InsecurePath

Entry = tuple[float, bytes, bytes, bytes, int, str, int, float, bytes, str, str, int]
"""(arrived, as `time.monotonic()` counts; the client's address and port with a space between, whatever follows them;
method; path; status; outcome; bytes of the answer; seconds; request id; ingress; replica; tries).
A tuple without names, because one is made for each request."""

BATCH = 500
"""Entries that are kept at most before they are written: formatting them takes about a millisecond."""

LONGEST_PATH = 2_000
"""Bytes of a path that are kept."""

MOST_BYTES = 64 * 1024 * 1024
"""A log's file holds so much; the one before it is kept beside it."""

_clean = re.compile(rb"/[!$->@-\[\]-~]*").fullmatch
"""A path that stands in JSON as it is, and that nothing has to be taken from."""

_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(32), ord('"'), ord("\\"), *range(127, 256))}


def _now() -> tuple[float, float]:
    return time.time(), time.monotonic()


class AccessLog:
    """Takes entries one by one, and gives their lines to `write` in batches: at every `flush`, and when many wait.

    Where `write` raises an `OSError` (a disk that is full), or `InsecurePath` (another user has put a file where the
    next one should begin), the batch is dropped; how many lines that were is the first line of the next one.
    """

    def __init__(self, write: Callable[[str], object], now: Callable[[], tuple[float, float]] = _now) -> None:
        """`now` gives the time twice: since 1970, and on the clock of the entries."""
        self.dropped = 0
        self._write = write
        self._now = now
        self._entries: list[Entry] = []
        self._second = -1
        self._stamp = ""

    def note(self, entry: Entry) -> None:
        self._entries.append(entry)
        if len(self._entries) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if not self._entries:
            return
        entries, self._entries = self._entries, []
        wall, monotonic = self._now()
        offset = wall - monotonic
        clients: dict[bytes, str] = {}
        lines = [f'{{"time":"{self._time(wall)}","dropped":{self.dropped}}}\n'] if self.dropped else []
        for arrived, peers, method, path, status, outcome, size, seconds, identity, ingress, replica, tries in entries:
            client = clients.get(peers)
            if client is None:
                client = clients[peers] = _client(peers)
            # Words of ours, and what was held against a grammar before, hold nothing that JSON would escape.
            lines.append(
                f'{{"time":"{self._time(arrived + offset)}",{client},'
                f'"method":"{method.decode()}","path":"{_path(path)}","status":{status},"outcome":"{outcome}",'
                f'"bytes":{size},"ms":{seconds * 1_000:.1f},"request_id":"{identity.decode()}",'
                f'"ingress":"{ingress}","replica":"{replica}","tries":{tries}}}\n'
            )
        try:
            self._write("".join(lines))
        except (OSError, InsecurePath):
            self.dropped += len(entries)
        else:
            self.dropped = 0

    def _time(self, wall: float) -> str:
        second = int(wall)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._stamp}.{int((wall - second) * 1_000):03d}Z"


class LogFile:
    """A file that lines are appended to. One that would hold more than `most` bytes is begun anew, the last is kept.

    No other user can open it: it has mode 0600, also if it existed before with another mode.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES) -> None:
        """Raises `InsecurePath` for what is no file of this user's own, such as a symbolic link, and `OSError`."""
        self._path = path
        self._most = most
        self._file = _open(path)

    def write(self, text: str) -> None:
        data = text.encode()
        if self._file.tell() + len(data) > self._most and self._file.tell():
            with suppress(FileNotFoundError):  # somebody took it away
                os.replace(self._path, f"{self._path}.1")
            before, self._file = self._file, _open(self._path)
            before.close()
        if self._file.write(data) != len(data):
            raise OSError("the disk took a part of the lines")

    def close(self) -> None:
        self._file.close()


def _open(path: Path) -> io.FileIO:
    return os.fdopen(private.open_file(path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)


def _client(peers: bytes) -> str:
    host, port = peers.split(b" ", 2)[:2]
    return f'"client":"{_text(host)}","port":{int(port)}'


def _path(path: bytes) -> str:
    """Without a query, which may hold secrets, and without what comes before the path in a target that was refused."""
    if _clean(path):
        return path.decode()
    if path[:1] not in (b"/", b"*"):
        return "-"
    return _text(path.partition(b"?")[0].partition(b"#")[0])


def _text(data: bytes) -> str:
    return data.decode("latin-1").translate(_ESCAPES)
