"""Ends what is left of a Ray of our own after the process that started it was killed.

Most of Ray ends with that process, its agents only after a minute in which they try to report a death to nobody. The
guard is a process beside: it holds one end of a pipe, and when the other end closes without a word, it waits a little
and kills those it was told of. Run as a script it imports nothing of ours, so it costs next to nothing.
"""

import os
import subprocess
import sys
from contextlib import suppress

import psutil

GRACE_S = 5.0
"""What ends by itself may take this long."""

FAREWELL = "all is well"


class Guard:
    """Holds the pipe. Everything that descends from this process when it is made is guarded, until `dismiss`."""

    def __init__(self) -> None:
        family = psutil.Process(os.getpid()).children(recursive=True)
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # a Ctrl-C is not for it
        )
        assert self._process.stdin is not None
        for process in family:
            with suppress(psutil.NoSuchProcess):
                # A pid alone may belong to another by then.
                print(process.pid, process.create_time(), file=self._process.stdin)
        self._process.stdin.flush()

    def dismiss(self) -> None:
        """What was guarded has been ended properly, or is not ours to end."""
        with suppress(BrokenPipeError):
            self._process.communicate(FAREWELL)


def _watch() -> None:
    told = sys.stdin.read()
    if FAREWELL in told:
        return
    guarded = [process for line in told.splitlines() if (process := _same(*line.split())) is not None]
    _, left = psutil.wait_procs(guarded, timeout=GRACE_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _same(pid: str, created: str) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(pid))
        if process.create_time() == float(created):
            return process
    return None


if __name__ == "__main__":
    _watch()
