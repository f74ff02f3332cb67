"""The access log: one line of JSON for each request, written in batches."""

import logging
import re
import time
from collections.abc import Callable

from app_toolkit.errors import InsecurePath
from app_toolkit.observability.records import MIRRORED, Record

logger = logging.getLogger("app_toolkit.access")

BATCH = 100
"""Maximum number of requests that are kept before their lines are written. They are formatted in about 0.3 ms, in which
the event loop serves no others."""

MARK = ',"mirrored":true'
"""The last field in the line of a mirrored request."""

_clean = re.compile(rb"/[!$->@-\[\]-~]*").fullmatch
"""Matches a path that needs no escaping in JSON and has no query to remove."""

_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(32), ord('"'), ord("\\"), *range(127, 256))}


def _now() -> tuple[float, float]:
    return time.time(), time.monotonic()


class AccessLog:
    """Passes the lines of requests to `write`: at every `flush`, and when `BATCH` of them wait.

    If `write` raises an `OSError` (a full disk) or `InsecurePath` (another user has created a file at the path of the
    next log file), the batch is dropped. One warning says so, until a batch is written again. The first line of that
    batch says how many lines were dropped.
    """

    def __init__(self, write: Callable[[str], object], now: Callable[[], tuple[float, float]] = _now) -> None:
        """`now` returns the current time twice: in seconds since 1970, and on the clock of the records."""
        self.dropped = 0
        self._write = write
        self._now = now
        #: The requests whose lines are not written. The lines are formatted together, because that is faster.
        self._records: list[Record] = []
        self._second = -1
        self._stamp = ""

    def add(self, record: Record) -> None:
        """Keep a request until its line is written. Subscribes to `Records`.

        A refused connection gets no line: no request has arrived, and there may be thousands of such connections.
        """
        if record.kind == "connection":
            return
        self._records.append(record)
        if len(self._records) >= BATCH:
            self.flush()

    def _line(self, record: Record, client: str, offset: float) -> str:
        """Return the line of a request. `offset`: the difference of the two clocks in seconds."""
        # The toolkit's own words and the values that were validated before contain nothing that JSON must escape.
        return (
            f'{{"time":"{self._time(record.arrived + offset)}",{client},'
            f'"method":"{record.method.decode()}","path":"{_path(record.path)}","status":{record.status},'
            f'"outcome":"{record.outcome}","bytes":{record.size},"ms":{record.seconds * 1_000:.1f},'
            f'"request_id":"{record.id.decode()}","ingress":"{record.deployment}","replica":"{record.replica}",'
            f'"tries":{record.tries}{MARK if record.kind == MIRRORED else ""}}}\n'
        )

    def flush(self) -> None:
        """Write the lines that wait."""
        if not self._records:
            return
        records, self._records = self._records, []
        wall, monotonic = self._now()
        clients = {peers: _client(peers) for peers in {record.peers for record in records}}
        text = "".join([self._line(record, clients[record.peers], wall - monotonic) for record in records])
        if self.dropped:
            text = f'{{"time":"{self._time(wall)}","dropped":{self.dropped}}}\n{text}'
        try:
            self._write(text)
        except (OSError, InsecurePath) as error:
            if not self.dropped:
                logger.warning("lines of the access log are lost until it can be written again: %s", error)
            self.dropped += len(records)
        else:
            self.dropped = 0

    def _time(self, wall: float) -> str:
        second = int(wall)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._stamp}.{int((wall - second) * 1_000):03d}Z"


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
