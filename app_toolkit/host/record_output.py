"""Writes the log records of all processes on one node to the standard output of this process."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from app_toolkit.host.interrupts import discard_output
from app_toolkit.observability.log_folder import LogFolder
from app_toolkit.observability.log_formats import shown
from app_toolkit.observability.log_query import LoggedRecord, LogQuery


class RecordOutput:
    """The log records of all processes, from their log files."""

    def __init__(self, folder: Path, log_format: str) -> None:
        """`folder`: that of the log files. `log_format`: `text` or `json`. Raises `InsecurePath` and `OSError`."""
        self._folder = LogFolder(folder)
        self._format = log_format
        self._positions: Mapping[str, str] = {}

    def close(self) -> None:
        self._folder.close()

    def show(self) -> None:
        """Write the records that have been added since the last call."""
        more = True
        while more:
            try:
                page = self._folder.read(LogQuery(), after=self._positions)
            except OSError:  # the files may be readable at the next check
                return
            self._positions, more = page.positions, page.more
            texts = [text for line in page.lines if (text := self._shown(line)) is not None]
            if texts:
                write(sys.stdout, "".join(f"{text}\n" for text in texts))

    def _shown(self, line: str) -> str | None:
        record = LoggedRecord.parse(line)
        if record is None:
            return None
        return line if self._format == "json" else shown(record)


def write(stream: TextIO, text: str) -> None:
    """Write to an output of this process. What it does not accept is lost."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except BrokenPipeError:  # its reader has left
        with suppress(OSError):  # it has no file descriptor
            discard_output(stream.fileno())
    except OSError:  # for example a full disk: drop these lines, but continue with later ones
        pass
