"""The wheel creates every project, and each one installs, builds and serves in an environment of its own.

Set APP_TOOLKIT_TEST_TEMPLATES=full. It installs packages from the index, and with npm those of the React front end.
"""

import os
import shutil
import signal
import socket
import subprocess
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.docs.pages import Page
from tests.patience import wait_until

from .projects import CHECKOUT, KINDS, Kind

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(
        os.environ.get("APP_TOOLKIT_TEST_TEMPLATES") != "full",
        reason="APP_TOOLKIT_TEST_TEMPLATES is not full: the test installs packages from the index",
    ),
]

HOME = os.environ.get("HOME", "")
"""With the caches of pip and npm. The tests around these have an empty home folder."""

PAGES = {"api": "/docs", "batch-inference": "/docs", "chat": "/"}


def run(folder: Path, *command: str | Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    environment["HOME"] = HOME
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def serving(project: Path) -> Iterator[str]:
    """Run `dev` and yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [project / ".venv/bin/app-toolkit", "dev", "--no-reload", "--port", str(port)]
    with subprocess.Popen(command, cwd=project) as served:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: answers(url) or served.poll() is not None)
            assert served.poll() is None, "the server has ended"
            yield url
        finally:
            served.send_signal(signal.SIGINT)


def answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/openapi.json").status_code == 200
    except httpx2.TransportError:
        return False


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`app-toolkit` of a wheel, outside of the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=True)
    pip = folder / "venv/bin/pip"
    run(folder, pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, CHECKOUT)
    (wheel,) = folder.glob("*.whl")
    run(folder, pip, "install", "--quiet", f"{wheel}[new]")
    return folder / "venv/bin/app-toolkit"


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_wheel_creates_a_project_that_installs_builds_and_serves(tmp_path: Path, command: Path, kind: Kind) -> None:
    if kind.answers.get("frontend") == "react" and not shutil.which("npm"):
        pytest.skip("npm is not installed")
    words = [f"{name}={value}" for name, value in kind.answers.items()]
    run(tmp_path, command, "new", kind.template, *words, "--no-input")
    (project,) = (path for path in tmp_path.iterdir() if (path / "pyproject.toml").is_file())
    dependencies = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    (wheel,) = command.parents[2].glob("*.whl")
    extra = "[conversations]" if kind.template == "chat" else ""
    assert dependencies[0] == f"app-toolkit{extra} @ {wheel.as_uri()}"

    (block,) = Page("README.md", (project / "README.md").read_text("utf-8")).shown("bash")
    run(project, "bash", "-euo", "pipefail", "-c", block.splitlines()[0])
    for each in (("pytest", "-q"), ("ruff", "check", "."), ("ruff", "format", "--check", ".")):
        run(project, project / ".venv/bin" / each[0], *each[1:])
    run(project, ".venv/bin/pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", ".")
    (built,) = (project / "dist").glob("*.whl")
    if kind.template == "chat":
        names = zipfile.ZipFile(built).namelist()
        assert f"{kind.package}/static/index.html" in names
        if kind.answers["frontend"] == "built-in":
            assert f"{kind.package}/static/vendor/katex/fonts/KaTeX_Main-Regular.woff2" in names
    with serving(project) as url:
        assert "<html" in httpx2.get(url + PAGES[kind.template]).text
        if kind.template == "batch-inference":
            said = run(project, ".venv/bin/python", "load.py", "--url", url, "--requests", "200")
            assert said.startswith("200 requests, ")
