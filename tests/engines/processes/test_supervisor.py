"""Which processes the supervisor takes over from a template, and how it starts and ends an instance."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from app_toolkit.control.queries import GetStatus
from app_toolkit.engines.processes.capacity import NOTHING
from app_toolkit.engines.processes.client import ProcessClient
from app_toolkit.engines.processes.engine import ProcessEngine
from app_toolkit.engines.processes.services import SUPERVISOR, ProcessServices
from app_toolkit.engines.processes.sessions import named
from app_toolkit.engines.processes.supervisor import orphans
from app_toolkit.engines.processes.wire import call
from app_toolkit.errors import ControlError
from app_toolkit.operate.remote import RemoteClient
from tests.engines.supervised import IDLE, supervised
from tests.groups import ROOT
from tests.patience import PATIENCE_S, wait_until

REGISTER = """
import sys
from app_toolkit.engines.processes.capacity import NOTHING
from app_toolkit.engines.processes.wire import call
call(sys.argv[1], "register", "shop.api-1-3", "template-1", NOTHING, int(sys.argv[2]), timeout_s=0.1)
"""
"""A process that does not wait for the answer."""

CANNOT_FORK_AT_FIRST = """
fork, failures = os.fork, [BlockingIOError(11, "Resource temporarily unavailable")]
def fail_once():
    if failures:
        raise failures.pop()
    return fork()
os.fork = fail_once
"""


@pytest.fixture(scope="module")
def supervisor() -> Iterator[tuple[str, int]]:
    """Return the path of its socket, and its process ID."""
    with supervised("registrations") as process:
        services = ProcessServices("registrations")
        with closing(services.folder):
            yield services.path_of(SUPERVISOR), process.pid


def test_a_command_does_not_hand_over_an_instance_that_has_ended() -> None:
    services = ProcessServices("ended")
    with closing(services.folder):
        assert not ProcessClient(services, is_local=True).hand_over()


def test_a_replica_that_was_killed_before_it_could_register_is_refused(supervisor: tuple[str, int]) -> None:
    path, controller = supervisor
    call(path, "kill", "shop.api-1-1")
    with pytest.raises(ControlError, match=r"'shop\.api-1-1' has ended already: it was killed while it started"):
        call(path, "register", "shop.api-1-1", "template-1", NOTHING, controller)


def test_a_replica_whose_controller_has_ended_is_refused(supervisor: tuple[str, int]) -> None:
    path, _ = supervisor
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(ControlError, match=f"the controller {ended.pid} that has ordered"):
        call(path, "register", "shop.api-1-2", "template-1", NOTHING, ended.pid)
    assert call(path, "running") == {}


def test_a_replica_that_ends_while_it_registers_is_refused(supervisor: tuple[str, int]) -> None:
    path, controller = supervisor
    process = psutil.Process(controller)
    process.suspend()
    try:
        ended = subprocess.run(
            [sys.executable, "-c", REGISTER, path, str(controller)], cwd=ROOT, capture_output=True, text=True
        )
        assert "TimeoutError" in ended.stderr
    finally:
        process.resume()
    assert call(path, "running") == {}


def test_a_replica_that_has_not_registered_yet_is_no_orphan() -> None:
    assert orphans({10: 0.2, 11: 3600.0}) == [11]


def test_a_controller_that_cannot_be_forked_is_started_later() -> None:
    with supervised("cannot-fork", CANNOT_FORK_AT_FIRST) as supervisor:
        wait_until(lambda: psutil.Process(supervisor.pid).children() != [])


def test_an_instance_whose_owner_ends_before_it_has_started_ends_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path))
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        number = theirs.fileno()
        command = [sys.executable, "-c", IDLE, "ownerless", str(number), ""]
        assert subprocess.run(command, pass_fds=[number], cwd=ROOT, timeout=PATIENCE_S).returncode == 0
    assert not list(tmp_path.glob("*/ownerless"))


def test_a_signal_while_the_controller_is_replaced_shuts_the_instance_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path))
    client = ProcessEngine().start(address=None, with_lease=False)
    assert isinstance(client, RemoteClient)
    client.execute(GetStatus())
    (session,) = named("auto")
    supervisor = psutil.Process(int(session.split("-")[1]))
    (controller,) = [process for process in supervisor.children() if process.name() == "at-controller"]
    controller.kill()
    wait_until(lambda: not controller.is_running())
    supervisor.send_signal(signal.SIGTERM)
    try:
        wait_until(lambda: not supervisor.is_running() or supervisor.status() == psutil.STATUS_ZOMBIE)
    finally:
        client.close()
