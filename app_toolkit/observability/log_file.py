"""Log files of one process, which grow up to a bound."""

import fcntl
import io
import os
from contextlib import suppress
from pathlib import Path

from app_toolkit import private

MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of a log file in bytes. The previous file is kept beside it."""


class LogFile:
    """A file that lines are appended to. A file that would exceed `most` bytes is renamed, and a new one begins.

    No other user can open it: it has mode 0600, even if it existed before with another mode. It has a shared lock while
    a process writes to it.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES, *, dir_fd: int | None = None) -> None:
        """Open the file. The previous one is kept with `.1` at the end of its name.

        Raises `OSError`, and `InsecurePath` for a path that is not this user's own file, such as a symbolic link.
        `dir_fd`: the descriptor of the folder that a relative path begins at.
        """
        self._path = path
        self._most = most
        self._dir_fd = dir_fd
        self._file = self._open()

    def write(self, text: str) -> None:
        data = text.encode()
        if self._file.tell() + len(data) > self._most and self._file.tell():
            with suppress(FileNotFoundError):  # another process has removed it
                os.replace(self._path, f"{self._path}.1", src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)
            before, self._file = self._file, self._open()
            before.close()
        if self._file.write(data) != len(data):
            raise OSError("the disk took a part of the lines")

    def close(self) -> None:
        self._file.close()

    def _open(self) -> io.FileIO:
        opened = private.open_file(self._path, os.O_WRONLY | os.O_APPEND, dir_fd=self._dir_fd)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return os.fdopen(opened, "ab", buffering=0)
