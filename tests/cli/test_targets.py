"""`plan`, `dev` and `run` take the same targets, and refuse the same with the same sentence."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app_toolkit.cli import main as command_line
from app_toolkit.cli.dev import Served
from app_toolkit.cli.dev import app as served_by_dev
from app_toolkit.cli.plan import plan_here
from app_toolkit.cli.target import Target
from app_toolkit.config.options import PlanOptions
from app_toolkit.config.settings import set_served
from app_toolkit.engines.one_process.applications import Applications
from app_toolkit.errors import ConfigError
from tests import prepared
from tests.e2e.targets import KINDS, file

E2E = Path(__file__).parents[1] / "e2e"


@pytest.fixture(autouse=True)
def _the_process_is_as_it_was(_imports_are_forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What serves in this process changes its folder, and what it imports."""
    monkeypatch.chdir(Path.cwd())


def of_dev(client: TestClient, path: str) -> Any:
    return client.get(path).json()


@pytest.mark.parametrize("name", KINDS)
def test_plan_and_dev_take_every_kind(name: str) -> None:
    target = Target("targets", name, E2E)
    spec = plan_here(target, PlanOptions())
    assert spec.target == f"targets:{name}"
    assert len(spec.deployments) == 1
    assert spec.default == spec.deployments[0].config.name
    assert spec.route_prefix == "/"
    assert spec.routes[-1].owner == spec.default
    set_served(str(Served(target)))
    # As uvicorn and unlike TestClient, this takes an app that knows no lifespans.
    with TestClient(Applications({"/": served_by_dev()})) as client:
        assert of_dev(client, "/kind") == KINDS[name]


def test_dev_serves_all_applications_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(file(str(E2E)))
    set_served(str(Served(file=tmp_path / "app.yaml")))
    with TestClient(served_by_dev()) as client:
        for name, kind in KINDS.items():
            assert of_dev(client, f"/{name}/kind") == kind
        assert client.get("/elsewhere/kind").status_code == 404


def test_dev_serves_one_application_of_a_file_with_the_options_of_the_file(tmp_path: Path) -> None:
    text = file(str(E2E)).replace("route_prefix: /bound,", "route_prefix: /b, deployments: {greeter: {user_config: *},")
    (tmp_path / "app.yaml").write_text(re.sub(r"\*}, (.*)}", r"{kind: '${KIND}'}}}, \1}", text))
    set_served(str(Served(file=tmp_path / "app.yaml", application="bound")))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KIND", "of the file")
        with TestClient(served_by_dev()) as client:
            assert of_dev(client, "/b/kind") == {"kind": "of the file", "up": True}
            assert client.get("/fast/kind").status_code == 404


def test_dev_refuses_applications_that_cannot_share_a_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "main.py").write_text("from fastapi import FastAPI\napp = FastAPI()\n")
    applications = "applications:\n  one: {target: 'main:app', app_dir: one}\n"
    (tmp_path / "modules.yaml").write_text(
        applications + "  two: {target: 'main:app', app_dir: two, route_prefix: /two}\n"
    )
    (tmp_path / "folders.yaml").write_text(
        applications + "  two: {target: 'main:app', app_dir: one, working_dir: two, route_prefix: /two}\n"
    )
    for name, sentence in (
        ("modules", f"{tmp_path}/one and {tmp_path}/two both have a module 'main'"),
        ("folders", "its applications have different working folders"),
    ):
        set_served(str(Served(file=tmp_path / f"{name}.yaml")))
        with pytest.raises(SystemExit) as ended:
            served_by_dev()
        assert ended.value.code == ConfigError.exit_code
        said = capsys.readouterr().err
        assert sentence in said
        assert "--application NAME" in said


BROKEN = """
class Deep:
    def load(self): raise ValueError("no model")

Deep().load()
"""

FILES = {
    "broken.py": BROKEN,
    "wrong.py": "number = 3\ndef create(): raise ValueError('no model')\n",
}

REFUSED = [
    ("broken.py:app", "the module 'broken' does not import: ValueError: no model", True),
    ("wrong.py:create", "the factory wrong:create fails: ValueError: no model", True),
    ("wrong.py:number", "wrong:number is an int, and a target is a FastAPI app, ", False),
]


@pytest.mark.usefixtures("_planned_in_forks")
@pytest.mark.parametrize("command", ["plan", "dev --no-reload", pytest.param("dev", marks=pytest.mark.slow), "run"])
@pytest.mark.parametrize(("target", "sentence", "traceback"), REFUSED)
def test_every_command_refuses_a_target_with_the_same_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str, target: str, sentence: str, traceback: bool
) -> None:
    for name, source in FILES.items():
        (tmp_path / name).write_text(source)
    os.chdir(tmp_path)
    options = [] if command == "plan" else ["--port", "0"]
    if command == "run":
        options += ["--engine", "ray"]  # the other engine would fork this process
    if command == "dev --no-reload":  # the process that serves ends with the app
        done = prepared.run(prepared.COMMAND, *command.split(), target, *options, cwd=tmp_path)
        code, errors = done.returncode, done.stderr
    else:
        with pytest.raises(SystemExit) as ended:
            command_line.main([*command.split(), target, *options])
        code, errors = ended.value.code, capfd.readouterr().err
    assert code == ConfigError.exit_code
    said = [line for line in errors.splitlines() if " INFO uvicorn" not in line]
    assert said[0].startswith(f"Error: {sentence}")
    assert (said[-1] == "ValueError: no model") == traceback
    places = [line for line in said if line.startswith("  File ")]
    assert bool(places) == traceback
    assert all(str(tmp_path) in line for line in places)
