"""The end of a process that has imported user code, which may have started threads and processes."""

import atexit
import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

from app_toolkit.observability.stacks import line_of, stack_of

CHILDREN_S = 1.0
"""Seconds that processes have to end after SIGTERM. Then they are killed."""

SAID_AFTER_S = 1.0
"""Seconds after which a message says what the end of a process waits for."""

SET_CHILD_SUBREAPER = 36
"""From `linux/prctl.h`."""


def adopt_orphans() -> None:
    """Make a process whose parent ends a child of this process, so that it ends with this one. Only on Linux.

    The caller waits for such children, or ends soon: nobody else waits for them when they end.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def exit_code(ended: SystemExit) -> int:
    """Return the exit code with which Python ends a process after this exception."""
    return ended.code if isinstance(ended.code, int) else int(ended.code is not None)


@contextmanager
def bounded_end(seconds: float) -> Iterator[None]:
    """Run user code in the block, and then end this process within some seconds, and all that it has started.

    After the block, Python waits for threads that are no daemons and calls the functions of `atexit`. If that takes
    longer than `SAID_AFTER_S`, a line on standard error says what it waits for. After `seconds`, the process ends with
    the exit code that the block has set.
    """
    atexit.register(_end_descendants)  # called last, because it is registered before those of user code
    code = 1
    try:
        yield
        code = 0
    except SystemExit as ended:
        code = exit_code(ended)
        raise
    finally:
        with suppress(OSError):  # its reader has left
            sys.stdout.flush()
        threading.Thread(target=_end, args=(seconds, code), name="app-toolkit end", daemon=True).start()


def _end(seconds: float, code: int) -> None:
    time.sleep(min(SAID_AFTER_S, seconds))
    if seconds > SAID_AFTER_S:
        rest = seconds - SAID_AFTER_S
        text = f"The app has stopped, and its process waits for {waited_for()}. It is ended after {rest:.2g} s.\n"
        with suppress(OSError):
            os.write(2, text.encode())
        time.sleep(rest)
    _end_descendants()
    os._exit(code)


def _end_descendants() -> None:
    end_processes(descendants(os.getpid()))


def waited_for() -> str:
    """Return what the end of this process waits for: threads, or else functions of `atexit`. Each with its line."""
    main = threading.main_thread()
    threads = [thread for thread in threading.enumerate() if not thread.daemon and thread is not main]
    if threads:
        return f"its threads: {', '.join(f'{thread.name}{_at(thread)}' for thread in threads)}"
    return f"the functions of atexit{_at(main)}"


def _at(thread: threading.Thread) -> str:
    line = line_of(stack_of(thread.ident)) if thread.ident is not None else None
    return f" ({line})" if line else ""


def descendants(pid: int) -> list[psutil.Process]:
    """Return the processes that a process has started, and those that they have started. None if it has ended."""
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def end_processes(processes: Sequence[psutil.Process]) -> None:
    """Send SIGTERM to processes, wait at most `CHILDREN_S`, and kill those that have not ended."""
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    for process in psutil.wait_procs(processes, CHILDREN_S)[1]:
        with suppress(psutil.Error):
            process.kill()
