"""When an event loop counts as blocked, and which line of code blocks it. Nothing here asks a clock or a thread."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

WARN_AFTER_S = 1.0
"""A loop that has not turned for so long is reported."""

LOOK_S = 0.5
"""How often a loop is asked whether it turns."""

OURS = "app_toolkit/replica/breakpoints.py"
"""Waits for the client of a debugger."""

PYDEVD = re.compile(r"/(pydevd|_pydevd_\w+)/|/(pydev|site-packages|dist-packages)/pydevd\.py$")
"""The debugger behind debugpy, VS Code and PyCharm, wherever it is installed."""

IDLE = ("asyncio/runners.py", "asyncio/base_events.py", "uvicorn/server.py")
"""The innermost frame lies here when the loop waits for events: the process got no CPU, and no code blocks it."""


STARTING = ("uvicorn/importer.py", "uvicorn/lifespan/on.py")
"""These import an app and run its lifespan: nothing is served yet."""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One function of a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """An event loop that does not turn."""

    seconds: float
    at: str | None
    """The line that blocks it, as `shop.py:19 in block`; None: not known."""

    def __str__(self) -> str:
        return f"blocked for {self.seconds:.0f} s" + (f" at {self.at}" if self.at else "")


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known of a loop: since when it owes a turn, and whether that was reported."""

    asked: float | None = None
    reported: bool = False

    def blocked_s(self, now: float) -> float:
        return 0.0 if self.asked is None else now - self.asked

    def next_look_s(self, now: float) -> float:
        """How long to wait before the next look."""
        if self.asked is None or self.reported:
            return LOOK_S
        return min(max(self.asked + WARN_AFTER_S - now, 0.0), LOOK_S)

    def must_report(self, now: float) -> bool:
        return not self.reported and self.blocked_s(now) >= WARN_AFTER_S

    def paused(self, now: float) -> "Watched":
        """Time that a debugger takes does not count."""
        return self if self.asked is None else replace(self, asked=now)


def is_debugging(stack: Iterable[StackFrame], debugger: Collection[str]) -> bool:
    """Whether a debugger holds the thread that has this stack.

    `debugger`: full paths of the standard library's debugger, on which ipdb, pudb and remote debuggers are built. A
    user's own file may have the name of one of them.
    """
    return any(
        frame.file in debugger or frame.file.endswith(OURS) or PYDEVD.search(frame.file) is not None for frame in stack
    )


def is_starting(stack: Iterable[StackFrame]) -> bool:
    """Whether the app that has this stack is imported, or its lifespan runs."""
    return any(frame.file.endswith(STARTING) for frame in stack)


def blocking_line(stack: Sequence[StackFrame], libraries: Sequence[str], folders: Sequence[str]) -> str | None:
    """The line that blocks: the innermost one of user code, else the innermost of all. `stack`: innermost first.

    `libraries` are the folders that hold no user code; of `folders`, the longest one that a file lies in is left out
    of its name. None where no code runs.
    """
    if not stack or stack[0].file.endswith(IDLE):
        return None
    frame = next((frame for frame in stack if _is_users(frame.file, libraries)), stack[0])
    inside = [folder for folder in folders if folder and _lies_in(frame.file, folder)]
    name = frame.file.removeprefix(max(inside, key=len).rstrip("/") + "/") if inside else frame.file
    return f"{name}:{frame.line} in {frame.function}"


def _is_users(file: str, libraries: Sequence[str]) -> bool:
    return not file.startswith("<frozen") and not any(_lies_in(file, folder) for folder in libraries)


def _lies_in(file: str, folder: str) -> bool:
    return file.startswith(folder.rstrip("/") + "/")
