"""`app-toolkit run` in a process of its own."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.groups import ROOT
from tests.patience import PATIENCE_S
from tests.prepared import COMMAND, Program


class Run:
    """One `run`, and the processes that it started, of which Ray's are the most."""

    def __init__(
        self, target: str, *options: str, env: Mapping[str, str] | None = None, forked: bool | None = None
    ) -> None:
        """Start it.

        Parameters:
            target: The app or the file that it serves.
            options: More arguments. Without `--engine`, the engine is Ray.
            env: The environment. None: that of this process.
            forked: Whether the process is a fork that has imported the package. None: unless the engine is Ray.
        """
        on_ray = "--engine" not in options
        arguments = ["run", target, "--port", "0", *(["--engine", "ray"] if on_ray else []), *options]
        self.process: subprocess.Popen[str] | Program
        if forked or (forked is None and not on_ray):
            self.process = Program(COMMAND, *arguments, env=env, stderr=subprocess.STDOUT)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app_toolkit.cli", *arguments],
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.said = ""
        self._family: set[psutil.Process] = set()

    def url(self) -> str:
        """Of the next application that it says it serves."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if found := re.search(r"Serving .* at (http\S+)", line):
                self._family = set(psutil.Process(self.process.pid).children(recursive=True))
                return found[1]
        raise AssertionError(f"it never served: {self.said}")

    def until_said(self, *parts: str) -> list[str]:
        """The lines that it prints until each of these parts was in one of them."""
        assert self.process.stdout is not None
        lines: list[str] = []
        while missing := [part for part in parts if not any(part in line for line in lines)]:
            line = self.process.stdout.readline()
            assert line, f"it ended without {missing}: {self.said}"
            self.said += line
            lines.append(line.rstrip())
        return lines

    def left(self) -> list[str]:
        """Those of its processes that still run."""
        return [
            f"{process.pid} {process.name()}"
            for process in self._family
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        ]

    def end(self, number: signal.Signals) -> int:
        """Its exit code after this signal."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self.process.stdout is not None
        self.said += self.process.stdout.read()
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Leave nothing of it, in whatever state it is. Its Ray ends by itself."""
        if self.process.poll() is None:
            self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.read()  # to its end, when nothing of the run holds the pipe any more
        self.process.wait(PATIENCE_S)
        self.process.close() if isinstance(self.process, Program) else self.process.stdout.close()


Start = Callable[..., Run]
"""Takes what `Run` takes."""


@contextmanager
def runs() -> Iterator[Start]:
    """Gives what starts a run. All of them are killed at the end, if they have not ended."""
    started: list[Run] = []

    def start(target: str, *options: str, **more: Any) -> Run:
        started.append(Run(target, *options, **more))
        return started[-1]

    try:
        yield start
    finally:
        for run in started:
            run.kill()


SCRIPT = """
import app_toolkit
from app_toolkit import Toolkit

app = Toolkit(title="Script")

@app.get("/")
async def root() -> str:
    return __name__

if __name__ == "__main__":
    app_toolkit.run(app, OPTIONS, port=0, blocking=True)
    print("ended", flush=True)
"""


def serve_until_interrupted(folder: Path, options: str) -> None:
    """Assert that a script that calls `run` with these options serves, and leaves nothing after SIGINT."""
    (folder / "served.py").write_text(SCRIPT.replace("OPTIONS", options))
    script = subprocess.Popen(
        [sys.executable, "served.py"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert script.stdout is not None
        where = re.fullmatch(r"Serving Script at (http\S+)\n", script.stdout.readline())
        assert where is not None
        assert httpx.get(where[1], trust_env=False, timeout=PATIENCE_S).json() == "served"
        family = psutil.Process(script.pid).children(recursive=True)
        # To the last line before: `communicate` does not know of what was read ahead.
        assert "Press Ctrl-C to drain and stop.\n" in iter(script.stdout.readline, "")
        script.send_signal(signal.SIGINT)
        said, complained = script.communicate(timeout=PATIENCE_S)
    finally:
        script.kill()
    assert script.returncode == 0, said + complained
    assert said == "ended\n"
    assert "Traceback" not in complained
    assert psutil.wait_procs(family, timeout=PATIENCE_S)[1] == []
