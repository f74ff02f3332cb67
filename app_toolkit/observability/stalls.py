"""Decides when an event loop counts as blocked, and which line of code blocks it. Reads no clock and no thread."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

WARN_AFTER_S = 1.0
"""Seconds without running a callback after which an event loop is reported as blocked."""

CHECK_INTERVAL_S = 0.25
"""Seconds between two checks of an event loop, and so the most by which a reported duration is too long."""

WATCHDOG = "app_toolkit.watchdog"
"""The logger of the warnings about blocked event loops."""

PYDEVD = re.compile(r"/(pydevd|_pydevd_\w+)/|/(pydev|site-packages|dist-packages)/pydevd\.py$")
"""The files of the debugger that debugpy, VS Code and PyCharm use, in any folder."""

IDLE = ("asyncio/runners.py", "asyncio/base_events.py", "uvicorn/server.py")
"""The files of the innermost frame while the event loop waits for events. If such a loop does not run a callback, the
process got no CPU time, and no code blocks it."""

LINE = re.compile(r" is blocked for \d+ s at (.+?:\d+ in \S+)")

STARTING = ("uvicorn/config.py", "uvicorn/importer.py", "uvicorn/lifespan/on.py")
"""The files that import an app and run its lifespan. No requests are served yet."""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One frame of a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """An event loop that is blocked."""

    seconds: float
    at: str | None
    """The line that blocks the loop, such as `shop.py:19 in block`; None: not known."""

    def __str__(self) -> str:
        return f"blocked for {self.seconds:.0f} s" + (f" at {self.at}" if self.at else "")

    @staticmethod
    def line_in(message: str) -> str | None:
        """Return the line that a log message with a `Blocked` names; None: it names none."""
        named = LINE.search(message)
        return named and named[1]


@dataclass(frozen=True, slots=True)
class Watched:
    """The state of a watched event loop."""

    asked: float | None = None
    """When a callback was scheduled that has not run yet; None: there is none."""
    responded: float | None = None
    """When the loop was last known to run, or its watch began; None: not known. It may be blocked since then."""
    reported: bool = False
    """Whether the present block was reported."""

    def blocked_s(self, now: float) -> float:
        if self.asked is None:
            return 0.0
        return now - (self.asked if self.responded is None else self.responded)

    def next_look_s(self, now: float) -> float:
        """Return the seconds to wait before the next check."""
        if self.asked is None or self.reported:
            return CHECK_INTERVAL_S
        return min(max(self.asked + WARN_AFTER_S - now, 0.0), CHECK_INTERVAL_S)

    def must_report(self, now: float) -> bool:
        return not self.reported and self.asked is not None and now - self.asked >= WARN_AFTER_S

    def paused(self, now: float) -> "Watched":
        """Return the state without the time so far, which does not count, for example because a debugger took it."""
        return self if self.asked is None else replace(self, asked=now, responded=now)


def is_debugging(stack: Iterable[StackFrame], debugger: Collection[str]) -> bool:
    """Return whether a debugger has stopped the thread with this stack.

    `debugger`: the full paths of the files of the standard library's debugger, which ipdb, pudb and remote debuggers
    use. Full paths are necessary because a file of the user may have the same name.
    """
    return any(frame.file in debugger or PYDEVD.search(frame.file) is not None for frame in stack)


def is_starting(stack: Iterable[StackFrame]) -> bool:
    """Return whether the thread with this stack imports the app or runs its lifespan."""
    return any(frame.file.endswith(STARTING) for frame in stack)


def blocking_line(stack: Sequence[StackFrame], libraries: Sequence[str], folders: Sequence[str]) -> str | None:
    """Return the line that blocks the event loop; None: no code runs.

    This is the innermost line of user code, or else the innermost line.

    Parameters:
        stack: The frames of the thread, innermost first.
        libraries: The folders that contain no user code.
        folders: File names are relative to the longest of these folders that contains the file.
    """
    if not stack or stack[0].file.endswith(IDLE):
        return None
    frame = next((frame for frame in stack if is_users(frame.file, libraries)), stack[0])
    inside = [folder for folder in folders if folder and _lies_in(frame.file, folder)]
    name = frame.file.removeprefix(max(inside, key=len).rstrip("/") + "/") if inside else frame.file
    return f"{name}:{frame.line} in {frame.function}"


def is_users(file: str, libraries: Sequence[str]) -> bool:
    """Return whether a file has user code. `libraries`: the folders that contain none."""
    return not file.startswith("<frozen") and not any(_lies_in(file, folder) for folder in libraries)


def _lies_in(file: str, folder: str) -> bool:
    return file.startswith(folder.rstrip("/") + "/")
