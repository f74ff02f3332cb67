"""`app-toolkit run` in a process of its own."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]


class Run:
    """One `run`, and the processes that it started, of which Ray's are the most."""

    def __init__(self, target: str, *options: str, env: Mapping[str, str] | None = None) -> None:
        engine = [] if "--engine" in options else ["--engine", "ray"]
        command = [sys.executable, "-m", "app_toolkit.cli", "run", target, "--port", "0", *engine, *options]
        self.process = subprocess.Popen(
            command,
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
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        self.said += output
        return self.process.returncode

    def kill(self) -> None:
        """Leave nothing of it, in whatever state it is. Its Ray ends by itself."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


Start = Callable[..., Run]
"""Takes what `Run` takes."""


@contextmanager
def runs() -> Iterator[Start]:
    """Gives what starts a run. All of them are killed at the end, if they have not ended."""
    started: list[Run] = []

    def start(target: str, *options: str, env: Mapping[str, str] | None = None) -> Run:
        started.append(Run(target, *options, env=env))
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
