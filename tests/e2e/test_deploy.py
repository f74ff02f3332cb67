"""`app-toolkit deploy` as operators meet it: the command ends, and what it has deployed stays."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app_toolkit.cli import main as command_line
from app_toolkit.config.settings import runtime_folder
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
APP = """
import os

import words
from app_toolkit import Toolkit

app = Toolkit(title="Stays")


@app.get("/")
async def state() -> dict[str, object]:
    with open("words.py") as file:
        return {"word": words.WORD, "pid": os.getpid(), "lines": len(file.readlines())}
"""
EMPTY_CLUSTER = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster()
cluster.add_node(num_cpus=2, object_store_memory=80_000_000, include_dashboard=False)
print(cluster.address, cluster.head_node.get_session_dir_path(), flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "stays.py").write_text(APP)
    (folder / "words.py").write_text('WORD = "first"\n')
    return folder


@pytest.fixture
def empty() -> Iterator[tuple[str, Path]]:
    """A Ray on which nobody has deployed anything: its address, and the folder of its session."""
    with subprocess.Popen(
        [sys.executable, "-c", EMPTY_CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as ray:
        assert ray.stdout is not None
        address, session = ray.stdout.readline().split()
        yield address, Path(session)
        ray.communicate()


def command(*arguments: str) -> str:
    """What a command of its own process says, which has ended with 0."""
    done = subprocess.run(
        [sys.executable, "-m", "app_toolkit.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answer(url: str, condition: Callable[[Any], bool]) -> Any:
    """The first JSON response that meets the condition."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        response = httpx.get(url, trust_env=False, timeout=PATIENCE_S)
        if response.status_code == 200 and condition(response.json()):
            return response.json()
        assert time.monotonic() < deadline, response.text
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.ray
def test_application_stays_after_the_command_and_needs_nothing_of_its_folder(
    empty: tuple[str, Path], app: Path
) -> None:
    address, session = empty
    said = command("deploy", str(app / "stays.py"), "--address", address, "--port", "0", "--wait")
    (url,) = re.findall(r"Serving Stays at (http\S+)", said)
    first = answer(url, lambda found: True)
    assert (first["word"], first["lines"]) == ("first", 1)

    # Long after: neither the folder is there, nor has the node what it had unpacked, as if it were another one.
    shutil.rmtree(app)
    (unpacked,) = [path for path in (runtime_folder() / session.name / "artifacts").iterdir() if path.is_dir()]
    shutil.rmtree(unpacked)
    os.kill(first["pid"], signal.SIGKILL)
    later = answer(url, lambda found: found["pid"] != first["pid"])
    assert (later["word"], later["lines"]) == ("first", 1)
    assert (unpacked / "words.py").is_file()

    status = json.loads(command("status", "--json", "--address", address))
    assert [each["name"] for each in status["applications"]] == ["default"]
    command("delete", "default", "--address", address)
    assert httpx.get(url, trust_env=False, timeout=PATIENCE_S).status_code == 404, "the proxy outlives the last one"
    command("shutdown", "--address", address)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False, timeout=PATIENCE_S)


def here(*arguments: str) -> int:
    """The exit code of a command in this process, which is a part of the session's cluster."""
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code
