"""Programs in forks of one Python process that has imported the package, because each import takes most of a second.

A program here is a process of its own with a session, an environment, a folder and a standard output of its own, and it
ends as Python ends. It differs from `python -c` in two ways: the modules in `IMPORTED` are imported already, and all
programs have the same seed of hashes.
"""

import atexit
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, Self

from tests.groups import ROOT
from tests.patience import PATIENCE_S

IMPORTED = (
    "app_toolkit.cli.main",
    "app_toolkit.cli.plan",
    "app_toolkit.cli.dev",
    "app_toolkit.engines.processes.inheritance",
    "app_toolkit.host.preparation",
    "app_toolkit.host.process",
    "app_toolkit.declare.toolkit",
    "app_toolkit.userapp.artifact",
    "app_toolkit.userapp.ending",
    "app_toolkit.userapp.read_only",
    "tests.host.test_process",
    "uvicorn",
)

LARGEST = 1 << 17
"""Bytes of the largest message between the tests and the process that forks."""

COMMAND = "from app_toolkit.cli.main import main\nmain()"
"""The program that `python -m app_toolkit.cli` is."""


class Program:
    """One program, with a part of the interface of `subprocess.Popen`."""

    def __init__(
        self,
        code: str,
        *arguments: object,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        stderr: int | None = None,
    ) -> None:
        """Start it.

        Parameters:
            code: Of the program.
            arguments: `sys.argv[1:]`.
            cwd: Its folder.
            env: Its environment. None: the one of this process.
            stderr: The descriptor of its standard error. None: a pipe. `subprocess.STDOUT`: its standard output.
        """
        self.returncode: int | None = None
        self._output: dict[int, bytes] = {}
        request = {
            "code": code,
            "arguments": [str(argument) for argument in arguments],
            "folder": str(cwd),
            "environment": dict(os.environ if env is None else env),
        }
        self._stdout, writing = os.pipe()
        theirs = [writing]
        self._pipes = [self._stdout]
        if stderr == subprocess.STDOUT:
            stderr = writing
        elif stderr is None:
            reading, stderr = os.pipe()
            self._pipes.append(reading)
            theirs.append(stderr)
        try:
            self.pid = _forks().start(request, [writing, stderr])
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._open = set(self._pipes)
        self.stdout = open(self._stdout, encoding="utf-8", closefd=False)  # noqa: SIM115 - `close` closes it
        """Its standard output as text, for a program whose output `communicate` does not return."""

    def communicate(self, timeout: float = PATIENCE_S) -> tuple[bytes, bytes]:
        """Return what it has written, when it has ended and nothing else holds its pipes.

        Raises `subprocess.TimeoutExpired` with the output so far.
        """
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for pipe in self._open:
                selector.register(pipe, selectors.EVENT_READ)
            while self._open:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise subprocess.TimeoutExpired("a program", timeout, self._output.get(self._stdout))
                for key, _ in ready:
                    data = os.read(key.fd, LARGEST)
                    self._output[key.fd] = self._output.get(key.fd, b"") + data
                    if not data:
                        selector.unregister(key.fd)
                        self._open.discard(key.fd)
        self.wait(max(0.0, deadline - time.monotonic()))
        written = [self._output[pipe] for pipe in self._pipes]
        return written[0], b"".join(written[1:])

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float = PATIENCE_S) -> int:
        if self.returncode is None:
            self.returncode = _forks().exit_code(self.pid, timeout)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the ends of its pipes."""
        self.stdout.close()
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is not None:
            self.kill()
        self.wait()


def run(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program until its end. `options`: those of `Program`."""
    with Program(code, *arguments, **options) as program:
        output, errors = program.communicate()
        return subprocess.CompletedProcess(code, program.wait(), output.decode(), errors.decode())


class Forks:
    """The process that forks, as the tests see it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"from tests.prepared import next_program\nexec(next_program({theirs.fileno()}))"
        with theirs:
            self._process = subprocess.Popen(
                # -P: as the command starts its children.
                [sys.executable, "-P", "-c", code],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._exit_codes: dict[int, int] = {}

    def start(self, request: dict[str, Any], outputs: list[int]) -> int:
        """Start a program, and return its process."""
        socket.send_fds(self._socket, [json.dumps(request).encode()], outputs)
        self._socket.settimeout(PATIENCE_S)
        while (message := self._receive())[0] != "started":
            self._exit_codes[message[1]] = message[2]
        return message[1]

    def exit_code(self, pid: int, timeout: float) -> int:
        """Wait for the end of a program. Raises `subprocess.TimeoutExpired`."""
        deadline = time.monotonic() + timeout
        while pid not in self._exit_codes:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                _, ended, code = self._receive()
            except TimeoutError:
                raise subprocess.TimeoutExpired("a program", timeout) from None
            self._exit_codes[ended] = code
        return self._exit_codes[pid]

    def _receive(self) -> Any:
        message = self._socket.recv(LARGEST)
        assert message, "the process that forks has ended"
        return json.loads(message)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(PATIENCE_S)


@functools.cache
def _forks() -> Forks:
    forks = Forks()
    atexit.register(forks.close)
    return forks


def next_program(descriptor: int) -> CodeType:
    """Fork for each request. Return only in a fork, with the program that it runs."""
    for name in IMPORTED:
        import_module(name)
    children: dict[int, int] = {}
    with socket.socket(fileno=descriptor) as tests:
        while True:
            with selectors.DefaultSelector() as selector:
                for watched in (tests.fileno(), *children):
                    selector.register(watched, selectors.EVENT_READ)
                ready = [key.fd for key, _ in selector.select()]
            for pidfd in children.keys() & ready:
                os.close(pidfd)
                pid = children.pop(pidfd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                tests.send(json.dumps(["ended", pid, code]).encode())
            if descriptor in ready:
                message, outputs, _, _ = socket.recv_fds(tests, LARGEST, 2)
                if not message:
                    sys.exit()
                pid = os.fork()
                if not pid:
                    break
                children[os.pidfd_open(pid)] = pid
                for output in outputs:
                    os.close(output)
                tests.send(json.dumps(["started", pid, None]).encode())
    for pidfd in children:
        os.close(pidfd)
    return _begin(json.loads(message), outputs)


def _begin(request: dict[str, Any], outputs: list[int]) -> CodeType:
    """Be the process of a program."""
    os.setsid()
    for number, output in enumerate(outputs, 1):
        os.dup2(output, number)
        os.close(output)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    return compile(request["code"], "<string>", "exec")
