"""Start and stop contenders, find their processes and read their CPU time."""

import http.client
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil

from benchmarks.contenders import Contender
from benchmarks.peers import interpreter

APPS = Path(__file__).parent / "apps"
START_S = 180.0
POLL_S = 0.01
LOOK_EACH = 50
"""Attempts to get the first response after which the processes are listed, which takes CPU time from the start."""
STOP_S = 20.0
JSON = {"content-type": "application/json"}


class CannotStart(Exception):
    """A contender did not start."""


class Server:
    """A running contender."""

    def __init__(self, contender: Contender, port: int, process: psutil.Process, folder: Path) -> None:
        self.contender = contender
        self.folder = folder
        """Its working directory, which is deleted with it."""
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.process = process
        self.first_response_s = 0.0
        """Seconds from the start of the command to its first response."""
        self.admin_url = ""
        """The URL of the admin server, if the command has the placeholder `{admin_port}`."""
        self.seen: set[psutil.Process] = set()
        """All its processes so far, so that processes whose parent ended first are found, too."""

    def family(self) -> list[psutil.Process]:
        """Return all its running processes. After it has ended, only its own."""
        found = [self.process]
        with suppress(psutil.NoSuchProcess):
            found += self.process.children(recursive=True)
        self.seen.update(found)
        return found

    def of_role(self, role: str) -> list[psutil.Process]:
        return [each for each in self.family() if _role(each, self.contender.roles) == role]

    def cpu(self) -> Counter[str]:
        """Return the CPU seconds that its processes have used so far, by role: user and system time."""
        used: Counter[str] = Counter()
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used[_role(process, self.contender.roles)] += times.user + times.system  # type: ignore[assignment]
        return used


def _role(process: psutil.Process, roles: Mapping[str, str]) -> str:
    with suppress(psutil.NoSuchProcess):
        return role_of(" ".join(process.cmdline()), roles)
    return "other"


def role_of(command_line: str, roles: Mapping[str, str]) -> str:
    """Return the role of a process by its command line."""
    return next((role for role, mark in roles.items() if mark in command_line), "other")


def python_of(contender: Contender) -> Path | None:
    """Return the interpreter of a contender; None if its environment does not exist."""
    return Path(sys.executable) if contender.peer is None else interpreter(contender.peer)


@contextmanager
def started(contender: Contender) -> Iterator[Server]:
    """Run a contender until the end of the block. Raises `CannotStart` with its output."""
    port, admin_port = free_port(), free_port()
    words = shlex.split(contender.command)
    places = {"python": python_of(contender), "apps": APPS, "port": port, "admin_port": admin_port}
    command = [word.format(**places) for word in words]
    environ = {**os.environ, "PYTHONPATH": str(APPS), **contender.environ}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each start compiles what is not installed
    # Some contenders write files to their working directory.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environ, cwd=folder
        )
        server = Server(contender, port, psutil.Process(process.pid), Path(folder))
        server.admin_url = f"http://127.0.0.1:{admin_port}"
        try:
            for number in count():
                if number % LOOK_EACH == LOOK_EACH - 1:
                    server.family()  # before the parent of a process ends
                if _up(server, output.fileno()):
                    break
                if process.poll() is not None or time.perf_counter() - began > START_S:
                    output.seek(0)
                    raise CannotStart(f"{contender.name} did not start: ...{output.read()[-2_000:]}")
                time.sleep(POLL_S)
            server.first_response_s = time.perf_counter() - began
            server.family()
            yield server
        finally:
            _stop(process, server)


def _up(server: Server, output: int) -> bool:
    text = os.pread(output, 1_000_000, 0).decode(errors="replace")
    if server.contender.says not in text:
        return False
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    with suppress(OSError, http.client.HTTPException), closing(connection):
        if server.contender.posts is None:
            connection.request("GET", server.contender.gets)
        else:
            path, body = server.contender.posts
            connection.request("POST", path, body, JSON)
        return 200 <= connection.getresponse().status < 300
    return False


def _stop(process: subprocess.Popen[bytes], server: Server) -> None:
    server.family()
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    # psutil compares start times, so it does not kill another process with a reused ID.
    for left in server.seen:
        with suppress(psutil.NoSuchProcess):
            left.kill()
    process.wait(STOP_S)
    psutil.wait_procs(server.seen, timeout=STOP_S)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
