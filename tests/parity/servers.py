"""Start the application in each of its forms, as a user would, and stop it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.patience import PATIENCE_S

TESTS = Path(__file__).parents[1]
URL = re.compile(r"https?://(?:127\.0\.0\.1|localhost|0\.0\.0\.0):(\d+)\D")


def uvicorn(target: str) -> list[str]:
    return [sys.executable, "-m", "uvicorn", "--app-dir", str(TESTS), "--port", "0", target]


@dataclass(frozen=True)
class Form:
    command: list[str]
    """What starts it; empty if the session's instance serves it."""
    ingresses: int = 1
    """How many kinds of processes serve it."""
    replicas: int = 1
    """How many processes there are of each."""
    instance: str = ""
    """The fixture with the instance of the session that serves it."""


FORMS = {
    "bare": Form(uvicorn("parity.bare:bare")),
    "control": Form(uvicorn("parity.bare:bare")),
    "embedded": Form(uvicorn("parity.served:app")),
    "processes-2": Form([], ingresses=3, replicas=2, instance="processes"),
    "ray-2": Form([], ingresses=3, replicas=2, instance="cluster"),
}


@contextmanager
def running(form: str, log: Path) -> Iterator[int]:
    """The port of a server in this form. Its output goes to `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            FORMS[form].command, stdout=output, stderr=subprocess.STDOUT, cwd=TESTS, env={**os.environ, "NO_COLOR": "1"}
        )
    try:
        yield _port(process, log, time.monotonic() + PATIENCE_S)
    finally:
        # A probe that failed may have left a request open: the second SIGINT does not wait for it.
        for request in (_interrupt, _interrupt, subprocess.Popen.kill):
            request(process)
            try:
                process.wait(PATIENCE_S / 3)
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
    raise AssertionError(f"the server {process.args} said no address; it said:\n{log.read_text(errors='replace')}")
