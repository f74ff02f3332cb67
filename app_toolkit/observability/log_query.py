"""Log records as clients see them, and which of them a query asks for."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from heapq import nlargest
from typing import Any, Literal, Self

from app_toolkit.contract.identity import ReplicaSetKey, proxy_set_of, replica_set_of
from app_toolkit.types import ReplicaId

Level = Literal["debug", "info", "warning", "error", "critical"]

LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

TIME = slice(9, 33)
"""Where a line has its time, which is UTC in the form `2026-05-04T09:30:00.123Z`. Such times are ordered as texts."""

MOST_PAGE_BYTES = 1024 * 1024
"""Maximum size of a page in bytes: the sum of its lines. A page has at least one record, if there is one."""

MOST_RECORDS = 10_000
"""Maximum number of records of a page."""

ProcessKind = Literal["replicas", "proxies", "controller"]


def kind_of(process: str) -> ProcessKind:
    """Return what kind of process has this name, which is the name of its log file, too.

    A process that imports an app for replicas counts as one of them.
    """
    if proxy_set_of(process) is not None:
        return "proxies"
    return "controller" if process.startswith("controller") else "replicas"


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which records a client asks for. A field that is None selects nothing, so that all records match it."""

    application: str | None = None
    """The name of an application."""
    deployment: str | None = None
    revision: int | None = None
    """The number of a revision: records of the replicas that started in it."""
    kind: ProcessKind | None = None
    replica: str | None = None
    """The id of a replica or of another process."""
    request_id: str | None = None
    """Records of this request, and of batches that contain one of its items."""
    level: Level | None = None
    """The lowest level."""

    def reads(self, process: str) -> bool:
        """Return whether the process of this name may have records that match."""
        if self.replica is not None and not process.startswith(self.replica):
            return False
        if self.kind is not None and kind_of(process) != self.kind:
            return False
        if self.application is None and self.deployment is None and self.revision is None:
            return True
        if kind_of(process) != "replicas" or "." not in process:
            return False
        key = replica_set_of(ReplicaId(process))
        return isinstance(key, ReplicaSetKey) and (
            self.application in (None, key.application) and self.deployment in (None, key.deployment)
        )

    def matches(self, line: bytes) -> bool:
        """Return whether a line of a log file has a record that matches, if `reads` returned True for the file."""
        if self.request_id is not None and self.request_id.encode() not in line:  # most lines need not be parsed
            return False
        if self.request_id is None and self.level is None and self.replica is None and self.revision is None:
            return True
        record = LoggedRecord.parse(line)
        return record is not None and (
            self.request_id in (None, record.request_id, *record.request_ids)
            and self.replica in (None, record.replica)
            and self.revision in (None, record.revision)
            and (self.level is None or LEVELS.get(record.level.lower(), 50) >= LEVELS[self.level])
        )


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A log record, or a line that a replica has written to its standard output or standard error."""

    time: str
    """UTC, in the form `2026-05-04T09:30:00.123Z`."""
    level: str
    logger: str
    """The name of the logger; `stdout` or `stderr`: a line of output."""
    message: str
    request_id: str = ""
    request_ids: tuple[str, ...] = ()
    """For a record of a batch: the ids of its requests, at most 100."""
    trace_id: str = ""
    application: str = ""
    revision: int | None = None
    """The number of the revision; None: not known."""
    deployment: str = ""
    replica: str = ""
    """The id of the replica or of another process."""
    exception: str = ""
    """The traceback; empty: there is none."""

    @classmethod
    def parse(cls, line: str | bytes) -> Self | None:
        """Return the record of a line of a log file. None: the line is not complete, as after a full disk."""
        try:
            values: dict[str, Any] = json.loads(line)
            arguments = {field.name: values[field.name] for field in fields(cls) if field.name in values}
            return cls(**{**arguments, "request_ids": tuple(arguments.get("request_ids", ()))})
        except (ValueError, TypeError):
            return None

    @property
    def line(self) -> str:
        """The record as one line of JSON, in ASCII, without the fields that are empty."""
        return json.dumps({name: value for name, value in asdict(self).items() if value}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class NodeLogs:
    """What the log files of one node have for a query."""

    lines: tuple[str, ...] = ()
    """In the order of their time."""
    positions: Mapping[str, str] = field(default_factory=dict)
    """How far the files were read, by the name of the process."""
    more: bool = False
    """Whether the files have more lines that match, which did not fit or were not searched in time."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """Some log records of an instance, and where the next ones begin. Plain data that JSON can represent."""

    records: tuple[LoggedRecord, ...]
    """In the order of their time."""
    positions: Mapping[str, Mapping[str, str]]
    """How far the files were read, by the address of the node and the name of the process."""
    more: bool = False
    """Whether there are more records that match: of a first page, older ones; of another page, newer ones."""
    missing: tuple[str, ...] = ()
    """The addresses of the nodes whose files could not be read, because no proxy answered there."""


def time_of(line: str) -> str:
    """Return the time of a line of a log file."""
    return line[TIME]


def newest(lines: Iterable[str], last: int, most_bytes: int = MOST_PAGE_BYTES) -> list[str]:
    """Return the newest `last` of these lines in the order of their time, and as many as have `most_bytes` together.

    Lines of the same time keep their order.
    """
    numbered = nlargest(last, enumerate(lines), key=lambda numbered_line: (time_of(numbered_line[1]), numbered_line[0]))
    kept: list[str] = []
    size = 0
    for _, line in numbered:
        size += len(line) + 1
        if kept and size > most_bytes:
            break
        kept.append(line)
    return kept[::-1]


def page(
    nodes: Mapping[str, NodeLogs], last: int | None, missing: Iterable[str], before: Mapping[str, Mapping[str, str]]
) -> LogPage:
    """Combine what the nodes have, by their addresses.

    Parameters:
        nodes: What each node that answered has.
        last: At most so many records, the newest ones; None: all, because these follow another page.
        missing: The addresses of nodes that did not answer.
        before: The positions of the page that these records follow.
    """
    lines = [line for node_page in nodes.values() for line in node_page.lines]
    kept = sorted(lines, key=time_of) if last is None else newest(lines, last)
    records = tuple(record for line in kept if (record := LoggedRecord.parse(line)) is not None)
    more = any(node_page.more for node_page in nodes.values()) or len(kept) < len(lines)
    return LogPage(
        records,
        {**before, **{address: node_page.positions for address, node_page in nodes.items()}},
        more,
        tuple(missing),
    )
