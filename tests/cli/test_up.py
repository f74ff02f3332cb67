"""`up` and `down`: an instance in the background, as separate processes operate it."""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.config.settings import RUNTIME_DIR
from app_toolkit.control.operations import Deploy
from app_toolkit.engines.processes.engine import ProcessEngine
from app_toolkit.engines.processes.sessions import running
from app_toolkit.errors import ConfigError
from tests import prepared
from tests.control.harness import application
from tests.patience import PATIENCE_S
from tests.prepared import COMMAND

APP = """
import os
from app_toolkit import Toolkit

app = Toolkit()
print("imported")

@app.get("/")
async def folder() -> str:
    return os.getcwd()
"""

FAILING = """
from app_toolkit import Toolkit

async def fail(app):
    raise ValueError("no database")
    yield

app = Toolkit(lifespan=fail)
"""

HANGING = """
import asyncio
from app_toolkit import Toolkit

async def hang(app):
    await asyncio.sleep(600)
    yield

app = Toolkit(lifespan=hang)
"""

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Runs a command in the folder of the app. The instance ends with the test."""
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path))
    (tmp_path / "serving.py").write_text(APP)
    (tmp_path / "failing.py").write_text(FAILING)

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return prepared.run(COMMAND, *arguments, cwd=tmp_path, stderr=subprocess.STDOUT)

    yield run
    if running("auto"):
        run("down")


def url_in(output: str) -> str:
    found = re.search(r"at (http://\S+)", output)
    assert found is not None, output
    return found[1]


def test_an_app_serves_from_its_folder_until_it_is_taken_down(command: Command, tmp_path: Path) -> None:
    started = command("up", "serving.py", "--port", "0")
    assert started.returncode == 0, started.stdout
    assert httpx.get(url_in(started.stdout), trust_env=False).json() == str(tmp_path)
    (instance,) = running("auto")
    assert "imported" in instance.output.read_text()
    again = command("up", "serving.py")
    assert (again.returncode, again.stdout.count("\n")) == (2, 1)
    assert f"an instance runs already on this machine ({instance.session})" in again.stdout
    ended = command("down")
    assert ended.returncode == 0
    assert "app: stopping, 0 of 0 running" in ended.stdout
    assert not running("auto")
    instance.folder.close()


def test_an_empty_instance_gets_its_apps_by_deploy_and_serves_them_from_their_folder(
    command: Command, tmp_path: Path
) -> None:
    started = command("up", "--port", "0")
    assert started.returncode == 0, started.stdout
    url = url_in(started.stdout)
    assert httpx.get(url, trust_env=False).status_code == 404
    deployed = command("deploy", "serving.py", "--wait")
    assert deployed.returncode == 0, deployed.stdout
    assert httpx.get(url, trust_env=False).json() == str(tmp_path)


def test_an_app_that_does_not_start_is_reported_and_leaves_nothing(command: Command) -> None:
    failed = command("up", "failing.py", "--port", "0")
    assert failed.returncode == 2
    assert "ValueError: no database" in failed.stdout
    assert not running("auto")


def test_while_one_command_starts_an_instance_another_one_starts_none_and_deploys_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path))
    one, other, http = ProcessEngine(), ProcessEngine(), HTTPOptions(port=0)
    one.check_background()
    other.check_background()
    with closing(one.start_in_background(http)):
        with pytest.raises(ConfigError, match="an instance runs already"):
            other.start_in_background(http)
        with other.connect("auto") as client, pytest.raises(ConfigError, match="is starting, and ends if its own app"):
            client.execute(Deploy(application()))


def test_an_interrupted_start_leaves_nothing(command: Command, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    with prepared.Program(
        COMMAND, "up", "hanging.py", "--port", "0", cwd=tmp_path, stderr=subprocess.STDOUT
    ) as starting:
        assert "starting" in starting.stdout.readline()
        starting.send_signal(signal.SIGINT)
        assert starting.wait(PATIENCE_S) == 130
    assert not running("auto")


def test_on_ray_the_command_says_what_to_use_instead(command: Command) -> None:
    refused = command("up", "--engine", "ray")
    assert refused.returncode == 2
    assert refused.stdout.startswith("Error: only processes of this machine run in the background: start a Ray cluster")
