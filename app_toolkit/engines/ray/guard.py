"""Starts and ends a local Ray, in a session of its own.

Signals for the process group of `run` (from a terminal or `timeout`) must not reach Ray, because in-flight requests
finish on it. So `ray start` runs in the session of another process, the guard. The guard holds one end of a pipe. When
the other end closes, because `run` has ended or was killed, the guard ends every process of its session, and those that
an app has started in another one. This file runs as a script and imports nothing of app_toolkit, so that the guard
needs little memory.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""

STARTED = b"started\n"
"""The line that the guard writes to standard output when Ray runs."""

OUTPUT = "start.log"
"""The file with the output of `ray start`."""

API_SERVER = "/ray/dashboard/dashboard.py"
"""The end of an argument of Ray's API server. Ray starts this server even without a dashboard, and has no option to
prevent that. The server has no function then, and `ray start` continues if it ends."""

ANY_PORT = ("--min-worker-port=0", "--max-worker-port=0")
"""Lets the kernel choose the port of each process that runs on Ray, the driver included. By default Ray chooses a port
that is free, and the process opens it later. If another program has taken it meanwhile, such as another local Ray, the
process ends at once."""

START = """
import sys
# Optional groups of Ray's commands, whose imports take as long as Ray's own. It goes on without what it cannot import.
sys.modules.update(dict.fromkeys(("ray.serve.scripts", "ray.util.state.state_cli", "ray.dashboard.modules.job.cli")))
from ray.scripts.scripts import main
main()
"""
"""The command `ray`."""

SET_CHILD_SUBREAPER = 36
"""From `linux/prctl.h`."""


def _watch(folder: Path, options: list[str]) -> None:
    """Run the guard: start Ray, wait until the pipe closes, and end Ray."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    if sys.platform == "linux":
        # The processes that `ray start` leaves become children of this process, so that it can wait for their end.
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = [
        *(sys.executable, "-P", "-c", START, "start", "--head", "--port=0"),
        *("--disable-usage-stats", "--no-monitor", "--include-log-monitor=false", "--include-dashboard=false"),
        *(*ANY_PORT, f"--temp-dir={folder}", *options),
    ]
    try:
        with (folder / OUTPUT).open("wb") as output:
            start = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        while start.poll() is None:
            _end_api_server(start.pid)
            time.sleep(0.05)
        if start.returncode == 0:
            sys.stdout.buffer.write(STARTED)
            sys.stdout.buffer.flush()
            sys.stdin.read()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end(os.getpid())
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _end_api_server(parent: int) -> None:
    with suppress(psutil.Error):
        for process in psutil.Process(parent).children():
            if any(argument.endswith(API_SERVER) for argument in process.cmdline()):
                process.kill()


def end(session: int) -> None:
    """End the raylet, which ends its workers and agents, and then all other processes of the session of the guard.

    `session`: the pid of the guard. If the guard was killed, another process calls this.
    """
    _signal(signal.SIGTERM, session, [process for process in _members(session) if _name(process) == "raylet"])
    _signal(signal.SIGKILL, session, _members(session))


def _members(session: int) -> list[psutil.Process]:
    """Return the processes of this user in a session that have not ended, except this process.

    Also return those of other sessions that they have started, if the guard has not been killed.
    """
    found, others = [], set[psutil.Process]()
    with suppress(psutil.Error):
        others.update(psutil.Process(session).children(recursive=True))
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            belongs = (os.getsid(process.pid) == session or process in others) and process.pid != os.getpid()
            if belongs and process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _signal(number: signal.Signals, session: int, processes: list[psutil.Process]) -> None:
    """Send a signal to processes of a session, and wait at most `GRACE_S` until they have ended."""
    deadline = time.monotonic() + GRACE_S
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)
    while time.monotonic() < deadline and any(process in processes for process in _members(session)):
        time.sleep(0.02)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:  # the process has ended
        return ""


if __name__ == "__main__":
    _watch(Path(sys.argv[1]), sys.argv[2:])
