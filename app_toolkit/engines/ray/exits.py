"""Why a process has ended, as far as it can be found out.

The parent of a process is a process of Ray, which does not keep the exit code or the signal. So each way of ending is
recognized by what it leaves behind: Ray's description, a call of `os._exit` that was noted, the signal that Ray's
handler wrote to the standard error of the process, or nothing, which is SIGKILL.
"""

import glob
import os
import re
from contextlib import suppress
from pathlib import Path

from ray.exceptions import OutOfMemoryError, RayError

PID = re.compile(r"^\s*pid: (\d+)$", re.MULTILINE)
EXIT_CODE = re.compile(r"[Ee]xit(?:s with an exit)? code:? (\d+)")
SIGNAL = re.compile(rb"^\*\*\* (SIG[A-Z]+) received at", re.MULTILINE)
KILLED_WITHOUT_A_TRACE = "Worker unexpectedly exits with a connection error"

TAIL_BYTES = 256 * 1024
"""Bytes of the standard error of a process that are searched, from its end."""

VMSTAT = Path("/proc/vmstat")
MEMORY_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Exits:
    """Finds out why processes have ended. It knows more about those on its own node."""

    def __init__(self, logs: Path) -> None:
        """`logs`: the folder of Ray's log files on this node."""
        self._logs = logs
        self._oom_kills = oom_kills()

    def why(self, error: RayError, *, is_local: bool) -> str:
        """Return why the process of an actor ended, as a sentence. `is_local`: it ran on this node."""
        if isinstance(error, OutOfMemoryError):
            return f"Ray's memory monitor ended the process: {' '.join(str(error).split())}"
        message = str(error)
        pid = PID.search(message)
        if not is_local or pid is None or KILLED_WITHOUT_A_TRACE not in message:
            return exit_sentence(message)
        before, self._oom_kills = self._oom_kills, oom_kills()
        return exit_sentence(message, self._tail(pid[1]), oom_killed=self._oom_kills > before)

    def _tail(self, pid: str) -> bytes | None:
        for path in glob.iglob(f"{glob.escape(str(self._logs))}/worker-*-{pid}.err"):
            with suppress(OSError), open(path, "rb") as file:  # Ray may have rotated it
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                return file.read()
        return None


def exit_sentence(message: str, error_output: bytes | None = None, *, oom_killed: bool = False) -> str:
    """Return why a process ended, as a sentence.

    Parameters:
        message: That of Ray's error.
        error_output: The end of the standard error of the process. None: not known, for example because it ran on
            another node.
        oom_killed: Whether the kernel's out-of-memory killer has ended a process since the last one ended.
    """
    why = " ".join(message.partition("The actor is dead because ")[2].partition(" Some common causes")[0].split())
    if KILLED_WITHOUT_A_TRACE in message:
        if error_output is None:
            return "the process ended: a signal or os._exit ended it, and which one is not known"
        signals = SIGNAL.findall(error_output)
        if signals:
            return f"the process ended: {signals[-1].decode()} ended it"
        if oom_killed:
            return f"the process ended: SIGKILL ended it, probably the kernel's out-of-memory killer{_memory_limit()}"
        return "the process ended: SIGKILL ended it, or native code that called _exit"
    if "SIGTERM" in why:
        return "the process ended: SIGTERM ended it"
    if (code := EXIT_CODE.search(why)) is not None:
        return f"the process ended with exit code {code[1]}"
    return f"the process ended: {why}" if why else "the process ended"


def oom_kills() -> int:
    """Return how many processes the kernel's out-of-memory killer has ended on this machine; 0: not known."""
    try:
        lines = VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _memory_limit() -> str:
    for path in MEMORY_LIMITS:
        try:
            limit = path.read_text().strip()
        except OSError:
            continue
        if limit.isdigit() and int(limit) < 2**60:  # a limit that is not set is `max` or nearly 2**63
            return f"; the memory limit is {int(limit) / 2**30:.1f} GiB"
    return ""
