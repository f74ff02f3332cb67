"""Which processes the supervisor takes over from a template."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from app_toolkit.engines.processes.capacity import NOTHING
from app_toolkit.engines.processes.services import SUPERVISOR, ProcessServices
from app_toolkit.engines.processes.wire import call
from app_toolkit.errors import ControlError
from tests.engines.supervised import supervised


@pytest.fixture(scope="module")
def supervisor() -> Iterator[tuple[str, int]]:
    """Return the path of its socket, and its process ID."""
    with supervised("registrations") as process:
        services = ProcessServices("registrations")
        with closing(services.folder):
            yield services.path_of(SUPERVISOR), process.pid


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
