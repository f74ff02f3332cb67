"""A command of the command line in a fork of this process, which has imported the package already."""

import atexit
import os
import selectors
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

from app_toolkit.userapp.ending import exit_code

CHUNK = 65_536
"""Bytes of output that are read at once."""


class ForkedCommand:
    """A child process as of `subprocess.Popen`, whose standard output is a pipe, without the start of a new Python.

    This process must have no threads, no event loop and no user code.
    """

    def __init__(self, arguments: Sequence[str], run: Callable[[], None]) -> None:
        """Call `run` in a child whose command line has these arguments."""
        self.returncode: int | None = None
        self._output = bytearray()
        sys.stdout.flush()
        sys.stderr.flush()
        self._reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _live(arguments, run, writing)
        os.close(writing)

    def communicate(self, timeout: float) -> tuple[bytes, None]:
        """Read the output until its end, and wait for the end of the process. Return the output.

        Raises `subprocess.TimeoutExpired` with the output so far.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._reading, selectors.EVENT_READ)
            while True:
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(sys.argv, timeout, bytes(self._output))
                data = os.read(self._reading, CHUNK)
                if not data:
                    break
                self._output += data
        if self.returncode is None:
            self._note(os.waitpid(self.pid, 0)[1])
        return bytes(self._output), None

    def poll(self) -> int | None:
        """Return the exit code; None: the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._note(status)
        return self.returncode

    def _note(self, status: int) -> None:
        self.returncode = os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._reading)
        if self.returncode is None:
            self._note(os.waitpid(self.pid, 0)[1])


def _live(arguments: Sequence[str], run: Callable[[], None], output: int) -> NoReturn:
    """Be the child, and end as a program does."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output, 1)
        os.close(output)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        sys.argv[1:] = arguments
        run()
        code = 0
    except SystemExit as ended:
        code = exit_code(ended)
    except BaseException:
        traceback.print_exc()
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # as `Py_FinalizeEx` does
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)
