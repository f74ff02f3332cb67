"""`run` as a program that others start: its exit codes, under systemd, and as the first process of a container."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from app_toolkit.engines.processes.engine import ProcessEngine
from app_toolkit.errors import ConfigError
from tests.patience import PATIENCE_S, wait_until
from tests.running import Run, runs

APP = """
import asyncio, os, subprocess, sys
from collections.abc import AsyncIterator
from fastapi.responses import StreamingResponse
from app_toolkit import Toolkit

app = Toolkit()

@app.get("/variables")
async def variables() -> list[str]:
    return list(os.environ)

@app.get("/endless")
async def endless() -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.sleep(600)

    return StreamingResponse(parts())

@app.post("/orphan")
async def orphan() -> int:
    code = "import subprocess; print(subprocess.Popen(['sleep', '0.1']).pid)"
    return int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout)
"""

FAILING = """
from app_toolkit import Toolkit

async def fail(app):
    raise ValueError("no database")
    yield

app = Toolkit(lifespan=fail)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the apps, of which other tests find no instance."""
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path))
    (tmp_path / "serving.py").write_text(APP)
    (tmp_path / "failing.py").write_text(FAILING)
    return tmp_path


def test_an_app_that_does_not_start_ends_the_program_with_its_error(folder: Path) -> None:
    with runs() as start:
        run = start(str(folder / "failing.py"), "--engine", "processes")
        assert run.wait() == 2
        assert "Error: 'app' did not come up: ValueError: no database" in run.said


def test_a_termination_drains_and_succeeds(folder: Path) -> None:
    with runs() as start:
        run = start(str(folder / "serving.py"), "--engine", "processes")
        run.url()
        assert run.end(signal.SIGTERM) == 0
        assert "Draining." in run.said


def _serves_alone(run: Run) -> None:
    """Wait until the command has ended."""
    supervisor = psutil.Process(run.process.pid)

    def is_alone() -> bool:
        try:
            return "app-toolkit" not in [child.name() for child in supervisor.children()]
        except psutil.NoSuchProcess:  # a child has ended meanwhile
            return False

    wait_until(is_alone)


def test_an_instance_drains_after_its_command_has_handed_over(folder: Path) -> None:
    with runs() as start:
        run = start(str(folder / "serving.py"), "--engine", "processes")
        run.url()
        _serves_alone(run)
        assert run.end(signal.SIGTERM) == 0
        assert run.said.count("Draining. Press Ctrl-C again to stop at once.") == 1
        assert run.left() == []


def test_a_second_signal_cuts_the_requests_after_the_command_has_handed_over(folder: Path) -> None:
    with runs() as start:
        run = start(str(folder / "serving.py"), "--engine", "processes")
        url = run.url()
        _serves_alone(run)

        def has_ended() -> bool:
            run.process.terminate()  # at once after another signal, it counts as the same one
            return run.process.poll() is not None

        with httpx.stream("GET", f"{url}/endless", timeout=PATIENCE_S, trust_env=False):
            wait_until(has_ended)
        assert run.wait() == 143
        assert "Stopped waiting. The remaining requests are aborted." in run.said


def test_a_handed_over_instance_that_a_command_shuts_down_says_so(folder: Path) -> None:
    with runs() as start:
        run = start(str(folder / "serving.py"), "--engine", "processes")
        run.url()
        _serves_alone(run)
        with ProcessEngine().connect("auto") as client:
            client.shutdown()
        assert run.wait() == 0
        assert "The instance has ended: it was shut down." in run.said


SYSTEMD = """
import os, sys

os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", NOTIFY_SOCKET=sys.argv[2])
os.execv(sys.executable, [sys.executable, "-m", "app_toolkit.cli", "run", *sys.argv[3:]])
"""
"""Starts a service as systemd does."""


@pytest.fixture
def notified(folder: Path) -> Iterator[socket.socket]:
    """The socket at which systemd receives the states of a service."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(str(folder / "notify"))
        receiving.settimeout(PATIENCE_S)
        yield receiving


def test_a_service_accepts_at_the_socket_of_its_unit_and_reports_its_state(
    folder: Path, notified: socket.socket
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor, (host, port) = listener.fileno(), listener.getsockname()
        os.set_inheritable(descriptor, True)
        with subprocess.Popen(
            [sys.executable, "-c", SYSTEMD, str(descriptor), notified.getsockname(), str(folder / "serving.py")],
            pass_fds=[descriptor],
        ) as service:
            try:
                # The connection waits for the first proxy.
                seen = httpx.get(f"http://{host}:{port}/variables", timeout=PATIENCE_S, trust_env=False).json()
                assert not {"LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET"} & {*seen}
                assert notified.recv(100) == b"READY=1"
                service.terminate()
                assert notified.recv(100) == b"STOPPING=1"
                assert service.wait(PATIENCE_S) == 0
            finally:
                service.kill()


def test_several_sockets_of_a_unit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "2")
    with pytest.raises(ConfigError, match="systemd passes 2 sockets"):
        ProcessEngine().inherited_address()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root creates a namespace of processes")
def test_the_first_process_of_a_container_reaps_and_drains(folder: Path) -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "app_toolkit.cli", "run"]
    with subprocess.Popen(
        [*command, str(folder / "serving.py"), "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as unshare:
        try:
            assert unshare.stdout is not None
            url = next(line.split(" at ")[1].strip() for line in unshare.stdout if line.startswith("Serving"))
            (first,) = psutil.Process(unshare.pid).children()
            httpx.post(f"{url}/orphan", timeout=PATIENCE_S, trust_env=False).raise_for_status()
            wait_until(lambda: not [child for child in first.children() if child.name() == "sleep"])
            first.terminate()
            output, _ = unshare.communicate(timeout=PATIENCE_S)
            assert "Draining." in output
            assert unshare.returncode == 0
        finally:
            unshare.kill()
