"""Refuses writes to the unpacked files of an application: the next revision has another copy of them.

The files have no write permission, but root needs none. So an audit hook looks at what Python code opens. Code of other
languages, such as that of some databases, and other processes are only stopped by the permissions.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import parse_qs, unquote

from app_toolkit.config.settings import DATA, data_folder
from app_toolkit.userapp.artifact import CACHE

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Changed = Iterator[tuple[Any, bool]]
"""The paths that an operation changes, each with whether a link is followed."""


def protect(folder: Path, within: Path) -> None:
    """Let code of this process that writes below `within` fail with `PermissionError`, until the process ends.

    `folder`: the files of the app. `within`: the folder of the files of all apps. Code in a folder such as `src` may
    write beside it, which is beside `folder`.
    """
    protected = Protected(folder, within)

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS:  # each audit event of the process comes here
            protected.check(event, arguments)

    sys.addaudithook(check)


class Protected:
    """A folder that must not be changed, and the folder that contains it."""

    def __init__(self, folder: Path, within: Path) -> None:
        self._folder = os.path.realpath(folder)
        self._within = os.path.realpath(within)

    def check(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Raise `PermissionError` if an audit event of `EVENTS` changes the folder."""
        for path, follows in EVENTS[event](*arguments):
            name = self._name(path, follows)
            if name is not None:
                place = f", {folder}" if (folder := data_folder()) else ""
                raise PermissionError(
                    errno.EACCES,
                    f"{name} cannot be written, because each revision of a deployed application has its own copy of "
                    f"its files: keep data in the folder of the environment variable {DATA}{place}",
                )

    def _name(self, path: Any, follows: bool) -> str | None:
        """Return the path relative to the folder; None: it may be changed."""
        if isinstance(path, int):  # `os.truncate` of a file that is open already
            return None
        name = os.fsdecode(path)
        if follows:
            real = os.path.realpath(name)
        else:
            above, last = os.path.split(name.rstrip(os.sep))
            real = os.path.join(os.path.realpath(above), last)
        if not f"{real}{os.sep}".startswith(f"{self._within}{os.sep}") or CACHE in real.split(os.sep):
            return None
        return os.path.relpath(real, self._folder)


def _opened(path: Any, mode: str | None, flags: int) -> Changed:
    # Without a mode it is `os.open`. Its path may begin at the descriptor of a folder, which the event does not tell.
    # Our own log files are opened in this way.
    if isinstance(path, int):  # the descriptor of a file that is open already
        return
    if not flags & WRITES or (mode is None and not os.path.isabs(path) and _caller() == "app_toolkit.private"):
        return
    exists, creates = os.path.lexists(path), bool(flags & os.O_CREAT)
    if exists if creates and flags & os.O_EXCL else not exists and not creates:
        return  # it fails by itself
    yield path, True


def _caller() -> str:
    """Return the module that has caused the audit event."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__"))


def _place(path: Any, at: int) -> Any:
    """Return a path that begins at the descriptor of a folder, or at the current folder if this is -1."""
    # On systems without /proc, such a path is in no folder that has to be protected.
    return path if at == -1 else os.path.join(f"/proc/self/fd/{at}", os.fsdecode(path))


def _created(path: Any, *rest: Any) -> Changed:
    """An entry of a folder is created. It fails by itself if there is one. The last argument: as of `_place`."""
    place = _place(path, rest[-1])
    if not os.path.lexists(place):
        yield place, False


def _removed(path: Any, *rest: Any) -> Changed:
    """An entry of a folder is removed. It fails by itself if there is none. The last argument: as of `_place`."""
    place = _place(path, rest[-1])
    if os.path.lexists(place):
        yield place, False


def _renamed(source: Any, target: Any, source_at: int, target_at: int) -> Changed:
    for removed in _removed(source, source_at):
        yield removed
        yield _place(target, target_at), False


def _linked(source: Any, target: Any, *at: int) -> Changed:
    yield from _created(target, at[-1])


def _truncated(path: Any, length: int) -> Changed:
    yield path, True


def _connected(database: Any) -> Changed:
    """A SQLite database is opened: for writing, unless a URI says otherwise."""
    name = os.fsdecode(database)
    if name.startswith("file:"):
        name, _, query = name.removeprefix("file:").partition("#")[0].partition("?")
        options = parse_qs(query)
        if options.get("mode", [""])[0] in ("ro", "memory") or options.get("immutable") == ["1"]:
            return
        name = unquote(name)
        name = name.removeprefix("//localhost").removeprefix("//")
    if name not in ("", ":memory:"):
        yield name, True


EVENTS: Mapping[str, Callable[..., Changed]] = {
    "open": _opened,
    "os.mkdir": _created,
    "os.remove": _removed,
    "os.rmdir": _removed,
    "os.rename": _renamed,
    "os.link": _linked,
    "os.symlink": _linked,
    "os.truncate": _truncated,
    "sqlite3.connect": _connected,
}
"""The audit events of operations that may change files, each with a function that returns what is changed."""
