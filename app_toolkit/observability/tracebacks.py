"""Tracebacks that name the files of an application by their paths in its own folder, and fold the code of packages."""

import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

from app_toolkit.observability.stalls import is_users

unpacked = ""
"""The folder of the application's files in this process, with a separator at its end; "": its paths are not changed."""

LIBRARIES = [
    str(Path(__file__).parents[1]),
    *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
]
"""Folders that contain no user code."""

MOST_PACKAGES = 4
"""Maximum number of packages that are named for frames that are left out."""

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def shorten_paths(folder: Path) -> None:
    """Leave this folder out of tracebacks from now on. It is where this process has unpacked its application."""
    global unpacked
    unpacked = f"{folder}{os.sep}"


def shortened(traceback: str) -> str:
    """Return a traceback with the paths of the application's files relative to the folder of `shorten_paths`."""
    return traceback.replace(f'File "{unpacked}', 'File "') if unpacked else traceback


def folded(information: ExceptionInfo) -> str:
    """Return the traceback of an exception with one line for each row of frames that are not of user code.

    The frame that raised an exception is always shown, also if it is not of user code. If there is no user code in the
    traceback, its causes and its groups, all frames are shown.
    """
    try:
        return _folded(information)
    except (
        Exception
    ):  # a traceback is shown in any case, also if a version of Python calls `_FoldedStack` in another way
        return "".join(traceback.format_exception(*information)).removesuffix("\n")


def _folded(information: ExceptionInfo) -> str:
    shown = traceback.TracebackException(*information, compact=True)
    parts = [*_parts(shown)]
    if any(is_users(frame.filename, LIBRARIES) for part in parts for frame in part.stack):
        for part in parts:
            stack = _FoldedStack()
            stack.extend(part.stack)
            part.stack = stack
    return "".join(shown.format()).removesuffix("\n")


def _parts(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield the exception, its causes and contexts, and the members of groups."""
    parts = [shown]
    while parts:
        part = parts.pop()
        yield part
        parts += [cause for cause in (part.__cause__, part.__context__, *(part.exceptions or ())) if cause is not None]


class _FoldedStack(traceback.StackSummary):
    def format(self, **options: Any) -> list[str]:  # Python 3.13 passes options, such as `colorize`
        lines: list[str] = []
        last = self[-1:]
        for _, row in groupby(self, key=lambda frame: frame is last[0] or is_users(frame.filename, LIBRARIES)):
            frames = [*row]
            if len(frames) == 1 or frames[0] is last[0] or is_users(frames[0].filename, LIBRARIES):
                lines += traceback.StackSummary.from_list(frames).format(**options)
            else:
                lines.append(f"  ... {len(frames)} frames of {_packages(frames)}\n")
        return lines


def _packages(frames: Iterable[traceback.FrameSummary]) -> str:
    names = [*dict.fromkeys(_package(frame.filename) for frame in frames)]
    more = f" and {len(names) - MOST_PACKAGES} more" if len(names) > MOST_PACKAGES else ""
    return ", ".join(names[:MOST_PACKAGES]) + more


def _package(file: str) -> str:
    """Return the name of the package or module that is imported from a file which is not of user code."""
    folders = [str(Path(LIBRARIES[0]).parent), *LIBRARIES[1:]]
    folder = max((library for library in folders if file.startswith(library + os.sep)), key=len, default="")
    name = file.removeprefix(folder).strip(os.sep).partition(os.sep)[0]
    return name.removeprefix("<frozen ").partition(".")[0]
