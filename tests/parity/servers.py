"""Start the application in each of its forms, as a user would, and stop it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parents[1]
URL = re.compile(r"https?://(?:127\.0\.0\.1|localhost|0\.0\.0\.0):(\d+)")


def uvicorn(target: str) -> list[str]:
    return [sys.executable, "-m", "uvicorn", "--app-dir", str(TESTS), "--port", "0", target]


def by_hand(replicas: int) -> list[str]:
    return [sys.executable, "-m", "parity.pieces", str(replicas)]


def on_ray(replicas: int) -> list[str]:
    served = TESTS / "parity" / "served.py"
    return [
        sys.executable,
        "-m",
        "app_toolkit.cli.main",
        "run",
        str(served),
        "--port",
        "0",
        "-n",
        str(replicas),
    ]


FORMS = {
    "bare": (uvicorn("parity.bare:bare"), 20),
    "control": (uvicorn("parity.bare:bare"), 20),
    "embedded": (uvicorn("parity.served:app"), 20),
    "pieces-2": (by_hand(2), 60),
    "ray-1": (on_ray(1), 90),
    "ray-2": (on_ray(2), 90),
}
"""Form → its command, and how many seconds it may take to start."""


@contextmanager
def running(form: str, log: Path) -> Iterator[int]:
    """The port of a server in this form. Its output goes to `log`."""
    command, patience = FORMS[form]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=TESTS,
            env={**os.environ, "NO_COLOR": "1"},
        )
    try:
        yield _port(process, log, time.monotonic() + patience)
    finally:
        # A probe that failed may have left a request open: the second SIGINT does not wait for it.
        for request in (_interrupt, _interrupt, subprocess.Popen.kill):
            request(process)
            try:
                process.wait(10)
                break
            except subprocess.TimeoutExpired:
                continue


def _interrupt(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)


def _port(process: "subprocess.Popen[bytes]", log: Path, deadline: float) -> int:
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        if found := URL.search(text):
            return int(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise AssertionError(
        f"the server {process.args} said no address; it said:\n{log.read_text(errors='replace')}"
    )
