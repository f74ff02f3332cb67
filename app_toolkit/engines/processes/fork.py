"""Forks processes that end with their parent, and have random numbers and a process group of their own."""

import ctypes
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from app_toolkit.userapp.ending import exit_code

end = os._exit
"""Ends a process. User code may replace `os._exit`, and a replica reports its calls (`host/exit_report.py`)."""

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
"""From `linux/prctl.h`."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a program to stop."""

PASSED_ON_S = 0.0005
"""Seconds between two checks whether the kernel has given a process to its new parent."""


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that is its parent ends. Exit if it has ended already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        end(1)


def fork(run: Callable[[], None], name: str) -> int:
    """Run a function in a child of this process, and return its process ID.

    The child has a process group of its own, so that a Ctrl-C in the terminal reaches only this process. It exits with
    the code of `SystemExit`, or with 1 and a traceback if the function raises another error. `name`: the name that the
    system shows, of which the kernel keeps 15 bytes.
    """
    pid = fork_here(name)
    if not pid:
        _live(run)
    return pid


def fork_here(name: str) -> int:
    """Fork this process as `os.fork` does: the child continues here, with 0 as the result.

    A Ctrl-C during the fork reaches only this process. Otherwise this is as `fork`.
    """
    _flush()
    parent = os.getpid()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        pid = os.fork()
        if not pid:
            with _ended_by_errors():
                _begin(name, parent)
                signal.set_wakeup_fd(-1)
                for number in SIGNALS:
                    signal.signal(number, signal.SIG_IGN)  # discards one that waits
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
                    signal.signal(number, signal.SIG_DFL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def fork_for(reaper: int, run: Callable[[], None], name: str) -> None:
    """Run a function in a new child of an ancestor that has called `adopt_orphans`.

    The new process outlives this one, and ends with `reaper`. It keeps the signal handlers, because user code may have
    installed them. Otherwise this is as `fork`.
    """
    _flush()
    between = os.fork()
    if between:
        with suppress(ChildProcessError):  # user code ignores SIGCHLD, so the kernel has reaped it
            os.waitpid(between, 0)
        return
    with _ended_by_errors():
        if os.fork():
            end(0)
        while os.getppid() != reaper:
            if os.getppid() == 1:  # the ancestor has ended
                end(1)
            time.sleep(PASSED_ON_S)
        _begin(name, reaper)
    _live(run)


@contextmanager
def _ended_by_errors() -> Iterator[None]:
    """End this process at an error, with a traceback: it is a child that must not continue as its parent does."""
    try:
        yield
    except BaseException:
        try:
            traceback.print_exc()
            _flush()
        finally:
            end(1)


def _begin(name: str, parent: int) -> None:
    """Set up a new process."""
    end_with_parent(parent)
    os.setpgid(0, 0)
    _reseed()
    _prctl(PR_SET_NAME, name.encode()[:15])


def _live(run: Callable[[], None]) -> None:
    """Run the function of a new process, and end."""
    code = 1
    try:
        run()
        code = 0
    except SystemExit as ended:
        code = exit_code(ended)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            _flush()
        finally:
            end(code)


def _reseed() -> None:
    """Give this process random numbers of its own. Python does so for `secrets`, `uuid` and `ssl`."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _flush() -> None:
    """Write what is buffered, so that no child writes it again."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):  # the terminal was closed
                stream.flush()


def _prctl(option: int, value: int | bytes) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
