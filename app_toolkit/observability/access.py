"""The access log: one line of JSON for each request, formatted and written in batches."""

import io
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app_toolkit import private
from app_toolkit.errors import InsecurePath

logger = logging.getLogger("app_toolkit.access")

Entry = tuple[float, bytes, bytes, bytes, int, str, int, float, bytes, str, str, int]
"""The time of arrival on `time.monotonic()`; the client's address and port, separated by a space (what follows is
ignored); method; path; status; outcome; bytes of the response; seconds; request id; ingress; replica; attempts.

A plain tuple without names, because one is created for each request.
"""

BATCH = 500
"""Maximum number of entries that are kept before they are written. Formatting them takes about a millisecond."""

LONGEST_PATH = 2_000
"""Bytes of a path that are kept."""

MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of a log file in bytes. The previous file is kept beside it."""

_clean = re.compile(rb"/[!$->@-\[\]-~]*").fullmatch
"""Matches a path that needs no escaping in JSON and has no query to remove."""

_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(32), ord('"'), ord("\\"), *range(127, 256))}


def _now() -> tuple[float, float]:
    return time.time(), time.monotonic()


class AccessLog:
    """Collects entries and passes their lines to `write` in batches: at every `flush`, and when `BATCH` entries wait.

    If `write` raises an `OSError` (a full disk) or `InsecurePath` (another user has created a file at the path of the
    next log file), the batch is dropped. One warning says so, until a batch is written again. The first line of that
    batch says how many lines were dropped.
    """

    def __init__(self, write: Callable[[str], object], now: Callable[[], tuple[float, float]] = _now) -> None:
        """`now` returns the current time twice: in seconds since 1970, and on the clock of the entries."""
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
        """Write the entries that wait."""
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
            # The toolkit's own words and the values that were validated before contain nothing that JSON must escape.
            lines.append(
                f'{{"time":"{self._time(arrived + offset)}",{client},'
                f'"method":"{method.decode()}","path":"{_path(path)}","status":{status},"outcome":"{outcome}",'
                f'"bytes":{size},"ms":{seconds * 1_000:.1f},"request_id":"{identity.decode()}",'
                f'"ingress":"{ingress}","replica":"{replica}","tries":{tries}}}\n'
            )
        try:
            self._write("".join(lines))
        except (OSError, InsecurePath) as error:
            if not self.dropped:
                logger.warning("lines of the access log are lost until it can be written again: %s", error)
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
    """A file that lines are appended to. A file that would exceed `most` bytes is renamed, and a new one begins.

    No other user can open it: it has mode 0600, even if it existed before with another mode.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES) -> None:
        """Raises `OSError`, and `InsecurePath` for a path that is not this user's own file, such as a symbolic link."""
        self._path = path
        self._most = most
        self._file = _open(path)

    def write(self, text: str) -> None:
        data = text.encode()
        if self._file.tell() + len(data) > self._most and self._file.tell():
            with suppress(FileNotFoundError):  # another process has removed it
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
    """Return the path without its query, which may hold secrets. `-` for a refused request whose target has no path."""
    if _clean(path):
        return path.decode()
    if path[:1] not in (b"/", b"*"):
        return "-"
    return _text(path.partition(b"?")[0].partition(b"#")[0])


def _text(data: bytes) -> str:
    return data.decode("latin-1").translate(_ESCAPES)
