"""Shows the output of workers of a local Ray, or the log records of its processes.

It is a small replacement for Ray's log monitor.
"""

import os
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path

from app_toolkit.host.record_output import RecordOutput, write
from app_toolkit.observability.log_formats import escaped, escaped_json

LOG_FOLDER = "app_toolkit"
"""The folder of our log files, in the folder of Ray's log files."""

PROXY = "proxy"
"""The name of a proxy in the output."""

POLL_S = 0.2
"""Seconds between two checks of the files."""

MOST_BYTES = 256 * 1024
"""The maximum number of bytes that are read from one file before the next one is read. A longer line is split."""

ACTOR = b":actor_name:"
"""The prefix of the line in which Ray names the actor that writes the following lines."""

MARKS = ACTOR, b":job_id:", b":task_name:"
"""The prefixes of lines that Ray itself writes, which are not shown."""

JSON = b'{"time":"'
"""The prefix of a line of the access log, or of a log record in JSON. It is shown without the name of
its worker, for programs."""

CYAN, PLAIN = "\x1b[36m", "\x1b[0m"

TAB = re.compile("(\t)")
TAB_OR_COLOUR = re.compile("(\t|\x1b\\[[0-9;:]*m)")
"""What is kept for a terminal: tabs, and sequences that change only the colour or the style of the text."""


class Output:
    """Follows the files of all workers in a folder, and writes their lines to standard output and standard error.

    With a log format, it writes only the records of our log files and the access log, to standard output. Records that
    workers show are in our log files, too.
    """

    def __init__(self, folder: Path, log_format: str | None = None) -> None:
        """`folder`: that of Ray's log files. `log_format`: `text` or `json`; None: write the output of workers.

        Raises `InsecurePath` if the folder of our log files is not this user's alone.
        """
        self._folder = folder
        self._records = None if log_format is None else RecordOutput(folder.resolve() / LOG_FOLDER, log_format)
        self._files: dict[str, _File] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="app-toolkit output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the remaining output, and stop."""
        self._ends.set()
        self._thread.join()

    def _follow(self) -> None:
        with suppress(ValueError):  # this process has closed standard output
            while not self._ends.wait(POLL_S):
                self._read_files()
            self._read_files()
            for file in self._files.values():
                file.flush()
        if self._records is not None:
            self._records.close()

    def _read_files(self) -> None:
        if self._records is not None:
            self._records.show()
        grown = []
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith("worker-") and entry.name.endswith((".out", ".err")):
                    file = self._files.setdefault(entry.name, _File(Path(entry.path), self._records is None))
                    with suppress(FileNotFoundError):  # Ray has rotated the file meanwhile
                        if entry.stat().st_size != file.position:
                            grown.append(file)
        while grown:
            grown = [file for file in grown if file.show()]


class _File:
    """The output file of one worker.

    It is open only during a read, because a long run has the files of thousands of workers that have ended.
    """

    def __init__(self, path: Path, shows_all: bool) -> None:
        """`shows_all`: show everything that the worker writes, and not only the access log of a proxy."""
        self.position = 0
        self._path = path
        self._shows_all = shows_all
        self._actor = "worker"
        self._rest = b""

    def show(self) -> bool:
        """Write the lines of the next `MOST_BYTES`. Return whether there may be more."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.position:
                    self.position = 0  # Ray has rotated the file
                file.seek(self.position)
                data = file.read(MOST_BYTES)
        except OSError:  # the file may exist again at the next check
            return False
        self.position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        self._write(lines)
        return len(data) == MOST_BYTES

    def flush(self) -> None:
        """Write the last line if it has no line end."""
        if self._rest:
            self._write([self._rest])

    def _write(self, lines: list[bytes]) -> None:
        # Look up the streams each time: a live table on the terminal replaces both temporarily.
        stream = sys.stderr if self._path.suffix == ".err" else sys.stdout
        colours = stream.isatty()
        before, after = (CYAN, PLAIN) if colours else ("", "")
        texts = []
        for line in lines:
            text = line.decode(errors="replace")
            if line.startswith(ACTOR):
                self._actor = escaped(text[len(ACTOR) :].strip())
            if line.startswith(JSON) and (self._shows_all or self._has_access_log()):
                texts.append(f"{escaped_json(text.rstrip())}\n")
            elif self._shows_all and not line.startswith(MARKS):
                texts += (f"{before}{self._actor} |{after} {line}\n" for line in _lines(text, colours=colours))
        if texts:
            write(stream, "".join(texts))

    def _has_access_log(self) -> bool:
        return self._path.suffix == ".out" and self._actor == PROXY


def _lines(text: str, *, colours: bool) -> list[str]:
    """Return the lines of a text for a terminal, which no line end separates. Control characters are escaped.

    A progress bar is written with a carriage return for each of its states: each state is a line. `colours`: keep
    sequences that change the colour. They end with the line.
    """
    return [_printable(part, colours=colours) for part in text.split("\r") if part] or [""]


def _printable(line: str, *, colours: bool) -> str:
    if escaped(line) == line:
        return line
    kept = TAB_OR_COLOUR if colours else TAB
    parts = [part if place % 2 else escaped(part) for place, part in enumerate(kept.split(line))]
    return "".join(parts) + (PLAIN if any(part.startswith("\x1b") for part in parts) else "")
