"""The output of the processes of an instance, if one process writes all log records."""

import threading
from contextlib import suppress
from pathlib import Path

from app_toolkit.config import settings
from app_toolkit.host.interrupts import discard_output
from app_toolkit.host.record_output import RecordOutput

POLL_S = 0.2
"""Seconds between two checks of the log files."""

STDOUT, STDERR = 1, 2


class RecordFollower:
    """Writes the log records of all processes to the standard output of this process, on a thread."""

    def __init__(self, folder: Path) -> None:
        """`folder`: that of the log files."""
        self._records = RecordOutput(folder, settings.start_options().log_format)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="app-toolkit output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the remaining records, and stop."""
        self._ends.set()
        self._thread.join()

    def _follow(self) -> None:
        with suppress(ValueError):  # this process has closed standard output
            while not self._ends.wait(POLL_S):
                self._records.show()
            self._records.show()
        self._records.close()


def begin_output(role: str) -> None:
    """Write nothing from this process, if another one writes its log records. A proxy still writes its access log."""
    if settings.start_options().log_file == "-":
        if role != "template":
            discard_output(STDERR)
        if role != "proxy":
            discard_output(STDOUT)


def end_reports() -> None:
    """End the error reports of a template, which come from a plan, if another process writes its log records."""
    if settings.start_options().log_file == "-":
        discard_output(STDERR)
