"""Formats of log records: lines of text, and lines of JSON. A record is never longer than `MOST_BYTES`.

No formatter needs the fields of `observability.logs`: a record that lacks one is shown without it.
"""

import json
import logging
import re
from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from app_toolkit.observability.log_query import LoggedRecord
from app_toolkit.observability.secrets import redacted
from app_toolkit.observability.tracebacks import ExceptionInfo, folded, shortened

FIELDS = ("request_id", "request_ids", "trace_id", "application", "revision", "deployment", "replica")
"""The fields that each record of a replica has, in the order in which JSON shows them."""

MOST_BYTES = 32 * 1024
"""Maximum size of a formatted record in bytes of UTF-8, with its line end. A longer one lacks the middle of its message
or traceback, which have the bytes that say why it failed at their ends."""

MOST_BYTES_OF_A_NAME = 512
"""Maximum size in bytes of each other part: the level, the name of the logger, and the fields."""

MOST_BYTES_OF_REQUEST_IDS = 4 * 1024
"""Maximum size in bytes of the request ids of a batch."""

NOTE_BYTES = 40
"""More bytes than the note about a cut has."""

TIME = "%Y-%m-%d %H:%M:%S"

_CODES = (
    *range(0x20),  # C0, such as NUL, CR, LF and the escape character of ANSI sequences
    *range(0x7F, 0xA0),  # DEL and C1, such as NEL, which ends a line, and CSI, which begins an ANSI sequence
    *(0x2028, 0x2029),  # separators of lines and paragraphs
    *range(0x202A, 0x202F),  # these and the next ones show a text in another order than it has
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),  # surrogates, which have no UTF-8
)
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CODES}
_ESCAPES.update({ord(character): repr(character)[1:-1] for character in "\t\n\r"})
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _CODES if code != ord("\t")}
_find_unsafe = re.compile(f"[{''.join(map(re.escape, map(chr, _ESCAPES)))}]").search


def escaped(text: str) -> str:
    r"""Return a text as one printable line: control characters are written as in Python, such as `\n` and `\x1b`."""
    return text if _find_unsafe(text) is None else text.translate(_ESCAPES)


def escaped_json(text: str) -> str:
    """Return a line of JSON whose control characters, except for tabs, are escaped. The value of valid JSON stays."""
    return text if _find_unsafe(text) is None else text.translate(_JSON_ESCAPES)


def indented(text: str) -> str:
    """Return the lines of a text, each escaped and after a line end and two spaces, as no record begins."""
    return "".join(f"\n  {escaped(line)}" for line in text.split("\n"))


def bounded(text: str, most: int, escape: Callable[[str], str] = escaped) -> str:
    """Return the escaped text, with at most `most` bytes. Of a longer one, the middle is replaced by a note.

    Parameters:
        text: Any text.
        most: Maximum size of the result in bytes of UTF-8; at least 100.
        escape: Must not make a text smaller, nor make it larger if characters are left out. Its result has UTF-8.
    """
    if len(text) <= most:  # otherwise its size need not be known
        whole = escape(text)
        if len(whole.encode()) <= most:
            return whole
    room = (most - NOTE_BYTES) // 2
    counts = range(min(len(text), room) + 1)
    head = bisect_right(counts, room, key=lambda count: len(escape(text[:count]).encode())) - 1
    end = bisect_right(counts, room, key=lambda count: len(escape(text[len(text) - count :]).encode())) - 1
    tail = max(head, len(text) - end)
    size = len(text[head:tail].encode("utf-8", "surrogatepass"))
    return f"{escape(text[:head])} ... [{size} bytes cut] ... {escape(text[tail:])}"


class TextFormatter(logging.Formatter):
    """One line for each record, `TIME LEVEL LOGGER [REQUEST ID]: MESSAGE`, and the lines of its traceback, indented."""

    def __init__(self, level: str = "info") -> None:
        """`level`: the log level of the process. With "debug", tracebacks have all frames."""
        super().__init__(datefmt=TIME)
        self._trace = _whole if level == "debug" else folded

    def format(self, record: logging.LogRecord) -> str:
        request = getattr(record, "request_id", "")
        parts = (record.levelname, record.name, *([f"[{request}]"] if request else ()))
        named = " ".join(bounded(part, MOST_BYTES_OF_A_NAME) for part in parts)
        head = f"{self.formatTime(record, TIME)}.{int(record.msecs):03d} {named}: "
        trace = _trace(record, self._trace)
        lines = bounded(trace, MOST_BYTES // 2, indented) if trace else ""
        room = MOST_BYTES - len(head.encode()) - len(lines.encode()) - 1
        return f"{head}{bounded(_message(record), room)}{lines}"


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record, in ASCII. Fields that a record does not have are left out.

    Tracebacks have all frames, on every level.
    """

    def __init__(self, level: str = "info") -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        # A record begins like a line of the access log: `run` shows such lines as they are (`engines/ray/output.py`).
        head = f'{{"time":"{time}","level":{_quoted(record.levelname)},"logger":{_quoted(record.name)},"message":"'
        fields = ((name, getattr(record, name, "")) for name in FIELDS)
        tail = "".join(
            f',"{name}":{_list(value) if name == "request_ids" else _quoted(value)}'
            for name, value in fields
            if value is not None and value != ""
        )
        if trace := _trace(record, _whole):
            tail += f',"exception":"{bounded(trace, MOST_BYTES // 2, _json)}"'
        room = MOST_BYTES - len(head) - len(tail) - len('""}\n')
        return f'{head}{bounded(_message(record), room, _json)}"{tail}}}'


def shown(record: LoggedRecord) -> str:
    """Return a record of a log file for a terminal: `REPLICA | ` and what `TextFormatter` shows of it."""
    try:
        time = f"{datetime.fromisoformat(record.time).astimezone():{TIME}}.{record.time[20:23]}"
    except ValueError:
        time = record.time
    request = [f"[{record.request_id}]"] if record.request_id else []
    parts = (record.replica or "-", "|", time, record.level, record.logger, *request)
    trace = indented(record.exception) if record.exception else ""
    return f"{escaped(' '.join(parts))}: {escaped(record.message)}{trace}"


FORMATTERS: dict[str, type[TextFormatter | JsonFormatter]] = {"text": TextFormatter, "json": JsonFormatter}
"""The formatters by the value of the option `log_format`."""


def _json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _quoted(value: Any) -> str:
    if type(value) is int:
        return str(value)
    return f'"{bounded(str(value), MOST_BYTES_OF_A_NAME, _json)}"'


def _list(value: Any) -> str:
    listed = json.dumps(str(value).split(","), separators=(",", ":"))
    return listed if len(listed) <= MOST_BYTES_OF_REQUEST_IDS + 2 else "[]"  # the app has set the attribute itself


def _message(record: logging.LogRecord) -> str:
    return redacted(record.getMessage()).rstrip("\n")  # uvicorn separates some messages by an empty line


def _whole(information: ExceptionInfo) -> str:
    return logging.Formatter().formatException(information)


def _trace(record: logging.LogRecord, formatted: Callable[[ExceptionInfo], str]) -> str:
    """Return the traceback of the record's exception, and its stack if it has one."""
    parts = []
    if isinstance(record.exc_info, tuple) and record.exc_info[0] is not None:
        parts.append(shortened(formatted(record.exc_info)))
    elif record.exc_text:  # the record comes from another process
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(shortened(record.stack_info))
    return redacted("\n".join(parts))
