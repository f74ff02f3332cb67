"""The files that the processes of one session of an engine keep on one host."""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app_toolkit import private
from app_toolkit.config.settings import RUNTIME_DIR, runtime_folder
from app_toolkit.errors import InsecurePath
from app_toolkit.wire.sockets import close_in_children

logger = logging.getLogger("app_toolkit.runtime")

LOGS = "logs"
LOGS_KEPT_S = 7 * 86_400.0
"""Seconds after their last line for which the logs of an ended session are kept."""


class RuntimeFolder:
    """The folder for sockets, locks, unpacked applications and access logs of one session, private to this user.

    Each process that uses the folder holds a shared lock on it until the process ends. The folders of other sessions
    that no process has locked are removed if possible. (`systemd-tmpfiles` does not clean up a folder that is locked.)
    """

    def __init__(self, session: str, base: Path | None = None) -> None:
        """Create and lock the folder. Raises `InsecurePath` if another user could read, change or replace its files."""
        base = check_runtime_folder(base)
        self._lock = _lock_folder(base / session)
        self.path = base / session
        close_in_children(self)
        _remove_ended(base, session)

    def fileno(self) -> int:
        return self._lock

    def folder(self, name: str) -> Path:
        """Create a private folder in this folder, unless it exists, and return it."""
        return private.folder(self.path / name)

    def end(self) -> None:
        """Remove the files, except logs, because the session has ended. Then release the lock."""
        with suppress(OSError):  # user code has left files that cannot be removed
            _empty(self.path)
        self.close()

    def close(self) -> None:
        """Release the lock, because this process uses the folder no more. The end of a process also releases it."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def check_runtime_folder(base: Path | None = None) -> Path:
    """Create this user's runtime folder, unless it exists, and return it. Raises `InsecurePath`."""
    try:
        return private.folder(base or runtime_folder())
    except InsecurePath as error:
        hint = f"set {RUNTIME_DIR} to a folder that only user {os.geteuid()} and root can replace"
        raise InsecurePath(f"no private folder for sockets and logs: {error}; {hint}") from None


@contextmanager
def locked() -> Iterator[None]:
    """Keep other processes of this user out of this block. They wait for its end."""
    folder = os.open(check_runtime_folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _lock_folder(path: Path) -> int:
    """Create the folder, unless it exists, and lock it against removal."""
    while True:
        private.folder(path)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:  # another process has removed the folder
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(lock), os.lstat(path)):
                return lock
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # the folder was removed before it was locked


def _remove_ended(base: Path, session: str) -> None:
    for folder in base.iterdir():
        if folder.name == session or folder.is_symlink() or not folder.is_dir():
            continue
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _empty(folder)
            finally:
                os.close(lock)
        except BlockingIOError:
            pass  # a process of the session has locked the folder
        except OSError as error:  # another process removes the folder, or user code left files that cannot be removed
            logger.debug("the folder %s of an ended session could not be removed: %s", folder, error)


def _empty(folder: Path) -> None:
    """Remove the folder, except logs that are newer than `LOGS_KEPT_S`."""
    kept = False
    for folder_entry in folder.iterdir():
        if folder_entry.name == LOGS and _age(folder_entry) < LOGS_KEPT_S:
            kept = True
        elif folder_entry.is_dir() and not folder_entry.is_symlink():
            private.remove_tree(folder_entry)
        else:
            folder_entry.unlink()
    if not kept:
        folder.rmdir()


def _age(logs: Path) -> float:
    written = max((log.stat().st_mtime for log in logs.iterdir()), default=0.0)
    return time.time() - written
