"""The tutorial and the README work as they stand: each step gives the answers that it shows."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from rich.console import Console

from app_toolkit.cli.screen import Screen
from app_toolkit.cli.target import load, resolve
from app_toolkit.declare.planning import plan
from tests.cluster import Cluster
from tests.running import Start

from .pages import Page, page

STEPS = page("docs/tutorial/shop.md").modules
LAST = STEPS[-1]
SHOWN = ("Dashboard", "Serving", "Documentation", "Press")
"""The lines of `run` that the README shows begin in this way. The others say how the replicas start."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the reader of the tutorial works."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("shop", None)


def asked(step: Page) -> Iterator[tuple[str, str]]:
    """Each `curl` that a page shows, with its answer."""
    for block in step.shown("console"):
        for each in block.split("$ ")[1:]:
            command, _, answer = each.partition("\n")
            if command.startswith("curl "):
                yield command, answer.strip()


def ask(client: Any, command: str) -> str:
    _, *words = shlex.split(command)
    body = words.pop(words.index("--json") + 1) if "--json" in words else None
    (url,) = [word for word in words if not word.startswith("--")]
    path = "/" + url.partition("/")[2]
    if body is None:
        answer = client.get(path)
    else:
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    return str(answer.text).strip()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: Path(step.name).stem)
def test_a_step_of_the_tutorial_answers_as_it_shows(step: Page, folder: Path) -> None:
    (folder / "shop.py").write_text(step.code)
    app, _ = load(resolve("shop.py", folder=folder))
    with TestClient(app) as client:
        shown = list(asked(step))
        assert shown
        for command, answer in shown:
            assert ask(client, command) == answer


def test_the_websocket_of_the_tutorial_answers(folder: Path) -> None:
    (folder / "shop.py").write_text(LAST.code)
    app, _ = load(resolve("shop.py", folder=folder))
    with TestClient(app) as client, client.websocket_connect("/chat/ws") as websocket:
        websocket.send_text("hello world")
        assert [websocket.receive_text(), websocket.receive_text()] == ["HELLO", "WORLD"]


def test_the_plan_of_the_tutorial_is_the_one_that_it_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = STEPS[1]
    (folder / "shop.py").write_text(step.code)
    app, where = load(resolve("shop.py", folder=folder))
    Screen(Console(highlight=False, soft_wrap=True)).plan(plan(app, target=where, app_dir="/srv/shop"))
    assert f"$ app-toolkit plan shop.py\n{capsys.readouterr().out}" in step.shown("console")


def test_the_tests_of_the_tutorial_pass(folder: Path) -> None:
    (tests,) = LAST.shown("py")
    (folder / "shop.py").write_text(LAST.code)
    (folder / "test_shop.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_shop.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests.count('def test_')} passed" in done.stdout


def test_the_shop_of_the_readme_is_served_without_ray_as_it_shows(folder: Path, run: Start) -> None:
    readme = page("README.md")
    (folder / "shop.py").write_text(readme.code)
    (folder / "sitecustomize.py").write_text('import sys\n\nsys.modules["ray"] = None  # it cannot be imported\n')
    changed = {"PYTHONPATH": str(folder), "APP_TOOLKIT_ADMIN": "true"}
    started = run(f"{folder}/shop.py", "--engine", "processes", env={**os.environ, **changed})
    with httpx.Client(base_url=started.url(), trust_env=False) as client:
        for command, answer in asked(readme):
            assert ask(client, command) == answer
    started.until_said(*(part for part in SHOWN if part not in started.said))
    command, *lines = readme.shown("console")[0].splitlines()
    assert command == "$ app-toolkit run shop.py"
    said = [line for line in started.said.splitlines() if line.startswith(SHOWN)]
    shown, printed = (sorted(re.sub(r":\d+", "", line) for line in part) for part in (lines, said))
    assert printed == shown
    assert started.end(signal.SIGINT) == 0, started.said


def test_the_shop_answers_on_processes_as_the_tutorial_shows(folder: Path, processes: Cluster) -> None:
    (folder / "shop.py").write_text(LAST.code)
    served = processes.deploy("shop:app", folder)
    with served.client() as client:
        for command, answer in asked(LAST):
            assert ask(client, command) == answer
    served.delete()
