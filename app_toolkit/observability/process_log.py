"""Writes the log records of a process, and what it prints, as lines of JSON: whatever logging configuration it has."""

import copy
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from app_toolkit.errors import InsecurePath
from app_toolkit.observability.log_formats import MOST_BYTES, JsonFormatter
from app_toolkit.observability.logs import add_fields
from app_toolkit.observability.secrets import redacted

logger = logging.getLogger("app_toolkit.logs")

OUTPUT = {"stdout": logging.INFO, "stderr": logging.WARNING}
"""The names of the loggers that lines of output have, and their levels."""

MARKS = (":actor_name:", ":job_id:", ":task_name:")
"""The beginnings of lines that Ray writes for its own tools."""


class ProcessLog:
    """The log of one process: its records from a level on, and its output.

    A line is written before the log call returns, so it is complete even if the process is killed. If a line cannot be
    written (a full disk), it is lost. One warning says so. The next line that can be written says how many are lost.
    """

    def __init__(
        self, write: Callable[[str], object], level: str = "info", formatter: logging.Formatter | None = None
    ) -> None:
        """`write`: writes one or more lines. `formatter`: None for lines of JSON."""
        self._write = write
        self._level = getattr(logging, level.upper())
        self._format = (formatter or JsonFormatter()).format
        self._lock = threading.RLock()  # a signal handler may log while its thread writes
        self._lost = 0
        self._undo: list[Callable[[], None]] = []

    def begin(self, *, output: bool = False) -> None:
        """Write all records from now on, and with `output` what is written to `sys.stdout` and `sys.stderr`.

        `Logger.callHandlers` is wrapped, because a handler would be removed by the app's own configuration, and would
        not get the records of loggers that do not propagate.
        """
        global _current
        call_handlers = logging.Logger.callHandlers

        @functools.wraps(call_handlers)
        def call_handlers_and_write(source: logging.Logger, record: logging.LogRecord) -> None:
            self.add(record)
            call_handlers(source, record)

        logging.Logger.callHandlers = call_handlers_and_write  # type: ignore[method-assign, assignment]
        self._undo.append(lambda: setattr(logging.Logger, "callHandlers", call_handlers))
        if output:
            self._begin_output()
        _current = self

    def _begin_output(self) -> None:
        handle = logging.Handler.handle

        @functools.wraps(handle)
        def handle_alone(handler: logging.Handler, record: logging.LogRecord) -> bool:
            # The record is in the log already, so what a handler writes to standard error is not output.
            before, _thread.handles = _thread.handles, True
            try:
                return handle(handler, record)
            finally:
                _thread.handles = before

        logging.Handler.handle = handle_alone  # type: ignore[method-assign, assignment]
        self._undo.append(lambda: setattr(logging.Handler, "handle", handle))
        for name in OUTPUT:
            stream = getattr(sys, name)
            setattr(sys, name, Output(stream, functools.partial(self.add_output, name)))
            self._undo.append(functools.partial(setattr, sys, name, stream))

    def close(self) -> None:
        """Write no more records and output."""
        global _current
        while self._undo:
            self._undo.pop()()
        _current = None

    def add(self, record: logging.LogRecord) -> None:
        """Write a record, if its level is high enough."""
        if record.levelno < self._level:
            return
        try:
            line = self._format(record)
        except Exception:  # user code: the arguments do not fit to the message, or one of them cannot be shown
            substitute = copy.copy(record)
            substitute.msg = record.msg if isinstance(record.msg, str) else object.__repr__(record.msg)
            substitute.args = None
            line = self._format(substitute)
        self._add(line)

    def add_output(self, name: str, line: str) -> None:
        """Write a line that this process has written to its standard output or standard error."""
        if not line.startswith(MARKS):
            record = logging.LogRecord(name, OUTPUT[name], "", 0, line, None, None)
            add_fields(record)
            self._add(self._format(record))

    def _add(self, line: str) -> None:
        with self._lock:
            try:
                if self._lost:
                    sentence = f"{self._lost} lines are lost, because they could not be written"
                    lost = logging.LogRecord(logger.name, logging.WARNING, "", 0, sentence, None, None)
                    add_fields(lost)
                    line = f"\n{self._format(lost)}\n{line}"  # the last line may be incomplete
                self._write(f"{line}\n")
                self._lost = 0
            except (OSError, InsecurePath) as error:
                self._lost += 1
                if self._lost == 1:
                    logger.warning("log records are lost until they can be written again: %s", error)

    def write_to(self, write: Callable[[str], object]) -> None:
        """Write to another file from now on, such as that of a process that was forked from the one that began."""
        self._write = write

    def forked(self) -> None:
        """Write nothing in a child process, whose parent renames the file. The child may have inherited a lock."""
        self._lock = threading.RLock()
        self._write = lambda lines: None


class _Thread(threading.local):
    handles = False
    """Whether the thread runs a handler of a log record."""


_thread = _Thread()
_current: ProcessLog | None = None


def current() -> ProcessLog | None:
    """Return the log of this process; None: it has not begun."""
    return _current


def _forked() -> None:
    if _current is not None:
        _current.forked()


os.register_at_fork(after_in_child=_forked)


class Output:
    """A stream that passes everything on to another one, without secrets, and each line to a function, too.

    What a handler of log records writes is not passed to the function.
    """

    def __init__(self, stream: TextIO, add: Callable[[str], object]) -> None:
        self._stream = stream
        self._add = add
        self._lines = threading.local()

    def write(self, text: str) -> int:
        if not _thread.handles:
            *lines, rest = (getattr(self._lines, "rest", "") + text).split("\n")
            self._lines.rest = rest if len(rest) <= 2 * MOST_BYTES else _cut(rest)
            for line in lines:
                self._add(line)
        self._stream.write(redacted(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _cut(line: str) -> str:
    """Return a long line without its middle. A formatted record has less of it."""
    half = MOST_BYTES // 2
    return f"{line[:half]} ... [{len(line) - 2 * half} characters cut] ... {line[-half:]}"
