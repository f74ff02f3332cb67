"""The Ray of `run`: where it keeps its files, and how it ends if its guard was killed."""

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from app_toolkit.engines.ray import guard
from app_toolkit.engines.ray.local import LocalRay
from app_toolkit.errors import ConfigError, InsecurePath
from tests.patience import PATIENCE_S
from tests.security.other_user import shared_folder


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_folder() as folder:
        yield folder


def test_local_ray_does_not_start_if_others_can_replace_its_files(shared: Path) -> None:
    said = f"no private folder for the local Ray: the folder {shared} has mode 0777: other users can replace"
    with pytest.raises(InsecurePath, match=f"^{re.escape(said)}.*; set RAY_TMPDIR to a folder that only user"):
        LocalRay(1, shared)
    assert not list(shared.iterdir())


def test_a_folder_that_cannot_be_made_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = f"the local Ray cannot keep its files in {tmp_path / 'file' / 'ray'}: Not a directory; set RAY_TMPDIR to"
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        LocalRay(1, tmp_path / "file" / "ray")


def members(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


GUARD = """
import ctypes, subprocess, sys, time
from app_toolkit.engines.ray.guard import SET_CHILD_SUBREAPER
ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
app = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=2).pid, flush=True)"
subprocess.run([sys.executable, "-c", app])
time.sleep(600)
"""


def test_no_process_that_an_app_has_started_in_another_session_outlives_the_local_ray() -> None:
    command = [sys.executable, "-c", GUARD]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = psutil.Process(int(process.stdout.readline()))
        guard.end(process.pid)
    started.wait(PATIENCE_S)


UNREACHABLE = """
from types import SimpleNamespace
from app_toolkit.engines.ray import starting

starting.LocalRay = lambda *_: SimpleNamespace(address="127.0.0.1:1", close=lambda: print("stopped"))
try:
    starting.start_instance(num_cpus=1)
except starting.ConfigError as error:
    print(error)
"""


def test_a_local_ray_that_cannot_be_joined_is_stopped_and_the_error_names_it(tmp_path: Path) -> None:
    command, environment = [sys.executable, "-c", UNREACHABLE], {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.splitlines() == [
        "stopped",
        "the local Ray has started, but this process cannot join it: no Ray cluster answers at 127.0.0.1:1: "
        "Connection refused; it was stopped again",
    ]


@pytest.mark.ray
def test_local_ray_ends_completely_also_if_its_guard_is_killed(shared: Path) -> None:
    shared.chmod(0o755)
    ray = LocalRay(1, shared / "made")
    try:
        (folder,) = (shared / "made").iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (raylet,) = [process for process in psutil.process_iter(["name", "cmdline"]) if is_raylet(process, ray.address)]
        # Otherwise two clusters may choose one port for two processes, and one of these ends. It may be the driver.
        assert {"--min_worker_port=0", "--max_worker_port=0"} <= set(raylet.cmdline())
        session = os.getsid(raylet.pid)
        assert len(members(session)) > 2
        os.kill(session, signal.SIGKILL)
    finally:
        ray.close()
    left = members(session)
    for process in left:
        process.kill()
    assert not left
    assert not list((shared / "made").iterdir())


def is_raylet(process: psutil.Process, address: str) -> bool:
    return process.info["name"] == "raylet" and f"--gcs-address={address}" in (process.info["cmdline"] or [])
