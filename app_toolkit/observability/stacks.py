"""The line of user code that a thread of this process runs."""

import os
import sys
from contextlib import suppress
from types import FrameType

from app_toolkit.observability.stalls import StackFrame, blocking_line
from app_toolkit.observability.tracebacks import LIBRARIES

DEEPEST = 500
"""Maximum number of stack frames that are examined."""


def stack_of(thread_id: int) -> list[StackFrame]:
    """Return the stack of a thread, innermost frame first; empty: there is no such thread."""
    frame: FrameType | None = sys._current_frames().get(thread_id)
    stack: list[StackFrame] = []
    while frame is not None and len(stack) < DEEPEST:
        stack.append(StackFrame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return stack


def line_of(stack: list[StackFrame]) -> str | None:
    """Return the line that this stack waits for, such as `shop.py:19 in connect`; None: it runs no code.

    See `blocking_line`.
    """
    folders = [os.path.abspath(folder or os.curdir) for folder in sys.path]
    with suppress(OSError):  # the current folder may have been removed
        folders.append(os.getcwd())
    return blocking_line(stack, LIBRARIES, folders)
