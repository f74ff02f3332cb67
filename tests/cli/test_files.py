"""`plan` and `run` of a file of applications."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from app_toolkit.cli import main as command_line
from app_toolkit.cli import plan as cli_plan
from app_toolkit.cli.plan import plan_application, plannings_of, results
from app_toolkit.cli.run import RunOptions, run
from app_toolkit.cli.screen import Screen
from app_toolkit.config.files import read_file
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.config.options import PlanOptions
from app_toolkit.control.command import Command
from app_toolkit.control.operations import Deploy
from app_toolkit.control.status import ApplicationStatus, InstanceStatus
from app_toolkit.errors import TargetError

from .conftest import ForkedPlanning
from .test_run import PROXY, Scripted, ctrl_c, group

pytestmark = pytest.mark.usefixtures("_planned_in_forks")

APP = """
import os
from typing import Annotated
from fastapi import Depends
from app_toolkit import Deployment, Toolkit

class Writer(Deployment):
    async def reconfigure(self, config): ...

app = Toolkit(title=os.path.basename(os.getcwd()))

@app.get("/")
async def root(writer: Annotated[Writer, Depends(Writer.bind())]): ...
"""

FILE = """
port: 0
applications:
  one:
    target: app:app
    app_dir: one
    working_dir: one
    deployments:
      app: {num_replicas: 3}
      writer: {user_config: {token: "${SECRET_TOKEN}"}}
  two:
    target: app:app
    route_prefix: /two
    app_dir: two
    working_dir: two
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a file of two applications whose modules have one name."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(APP)
    (tmp_path / "app.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SECRET_TOKEN", raising=False)
    return tmp_path


@pytest.mark.parametrize("command", ["plan", "run"])
def test_mistakes_of_a_file_and_of_its_apps_are_reported_together(
    folder: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    text = FILE.replace("      app: {num_replicas: 3}\n", "      app: {num_replica: 3}\n      absent: {}\n")
    text = text.replace("route_prefix: /two", "route_prefix: two").replace("working_dir: two", "working_dir: three")
    (folder / "app.yaml").write_text(text)
    with pytest.raises(SystemExit) as ended:
        command_line.main([command, "app.yaml"])
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    said = [line.removeprefix("Error: ") for line in err.splitlines()]
    one, two = "applications.one.deployments", "applications.two"
    sentences = [
        f"app.yaml:9: {one}.app has no option 'num_replica'; did you mean 'num_replicas'?",
        f"app.yaml:10: {one}.absent: the app has no deployment 'absent', only app, writer",
        f"app.yaml:14: {two}.route_prefix = 'two': a route prefix begins with a slash, ",
        f"app.yaml:16: {two}.working_dir: {folder}/three is not a folder",
    ]
    if command == "run":  # `plan` shows the reference
        token = f"{one}.writer.user_config.token = '${{SECRET_TOKEN}}'"
        sentences.append(f"app.yaml:11: {token}: the environment variable SECRET_TOKEN is not set")
    for sentence in sentences:
        assert sum(line.startswith(sentence) for line in said) == 1, err
    assert len(said) == len(sentences)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["app.yaml", "-n", "2"], "--num-replicas applies to one app; in app.yaml set it for each application"),
        (["app.yaml", "--app-dir", "one"], "--app-dir applies to one app; in app.yaml set it for each application"),
        (["app.yaml", "--application", "x"], "app.yaml has no application 'x', only one, two"),
        (["absent.yaml"], "absent.yaml cannot be read: "),
        (["pyproject.toml"], "pyproject.toml has no [tool.app_toolkit.applications]"),
        (["one/app.py", "--application", "x"], "--application x: the target is one app, not an application file"),
    ],
)
def test_contradicting_options_are_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["plan", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"Error: {sentence}")


SPLIT = """
from typing import Annotated
from fastapi import Depends
from app_toolkit import Deployment, Toolkit, split

class Writer(Deployment):
    async def write(self): ...

writer = split({Writer.options(name="v1").bind(): 0.9, Writer.options(name="v2").bind(): 0.1}, name="writer")
app = Toolkit()

@app.get("/")
async def root(writer: Annotated[Writer, Depends(writer)]): ...
"""


def test_weights_of_a_split_in_a_file_replace_those_of_the_code(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "one" / "app.py").write_text(SPLIT)
    options = "    splits:\n      writer: {v1: 1, v2: 3}\n"
    text = f"applications:\n  shop:\n    target: app:app\n    app_dir: one\n{options}"
    (folder / "app.yaml").write_text(text)
    with pytest.raises(SystemExit, match="0"):
        command_line.main(["plan", "app.yaml", "--format", "json"])
    (spec,) = json.loads(capfd.readouterr().out)
    assert [(each["name"], each["shares"]) for each in spec["splits"]] == [("writer", {"v1": 0.25, "v2": 0.75})]
    (folder / "app.yaml").write_text(text.replace("v2: 3", "v3: 3"))
    with pytest.raises(SystemExit):
        command_line.main(["plan", "app.yaml"])
    assert capfd.readouterr().err == (
        "Error: app.yaml:6: applications.shop.splits.writer: split 'writer' has no member v3; it has v1, v2\n"
    )


def both(running: int) -> InstanceStatus:
    """Both applications, with so many of the three replicas that one of their deployments has."""

    def application(name: str, prefix: str, ready: int, target: int) -> ApplicationStatus:
        app = group(f"{name}/app", ready, target, "healthy" if ready == target else "starting")
        return ApplicationStatus(name, "starting", prefix, (app, group(f"{name}/writer", 1, 1, "healthy")))

    applications = application("one", "/", running, 3), application("two", "/two", 1, 1)
    return InstanceStatus(1, 1, "starting", applications, (PROXY,), ())


class Both(Scripted):
    def __init__(self, *script) -> None:
        super().__init__(*script)
        self.specs: list[ApplicationSpec] = []

    def execute(self, command: Command[Any]) -> Any:
        if isinstance(command, Deploy):
            self.specs.append(command.spec)
        return super().execute(command)


def test_run_serves_all_of_a_file_and_shows_no_secret(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    engine = Both(lambda: both(1), lambda: both(3), ctrl_c_with(both(3)))
    output = io.StringIO()
    file = read_file(Path("app.yaml"))
    variables = {"SECRET_TOKEN": "s3cret"}
    options = RunOptions(None, None, HTTPOptions(port=0), PlanOptions(), file=file, variables=variables)

    run(options, Screen(Console(file=output, soft_wrap=True, highlight=False)), engine)
    lines = output.getvalue().splitlines()
    assert [line for line in lines if "this machine has" not in line] == [
        "proxy: healthy, 1 of 1 running",
        "one/app: starting, 1 of 3 running",
        "one/writer: healthy, 1 of 1 running",
        "two/app: healthy, 1 of 1 running",
        "two/writer: healthy, 1 of 1 running",
        "one/app: healthy, 3 of 3 running",
        "Serving one at http://127.0.0.1:8000",
        "Documentation at http://127.0.0.1:8000/docs",
        "Serving two at http://127.0.0.1:8000/two",
        "Documentation at http://127.0.0.1:8000/two/docs",
        "Press Ctrl-C to drain and stop.",
        "Draining. Press Ctrl-C again to stop at once.",
    ]
    assert engine.did == ["start", "deploy", "deploy", "leave", "close"]
    assert [(spec.name, spec.title) for spec in engine.specs] == [("one", "one"), ("two", "two")]
    assert engine.num_cpus is not None
    assert engine.num_cpus >= sum(spec.num_cpus for spec in engine.specs)
    config = engine.specs[0].deployments[1].config
    assert config.user_config == {"token": "s3cret"}  # type: ignore[union-attr]
    said = capfd.readouterr()
    assert "s3cret" not in output.getvalue() + said.out + said.err + repr(options)


def ctrl_c_with(status: InstanceStatus):
    def step() -> InstanceStatus:
        ctrl_c()
        return status

    return step


def test_as_many_applications_are_planned_at_once_as_there_may_be_and_all_in_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    class Begun(ForkedPlanning):
        def __init__(self, named: str, arguments: Sequence[str], fork: object = None) -> None:
            begun.append(named)
            super().__init__(named, arguments)

    monkeypatch.setattr(cli_plan, "PlanCommand", Begun)
    monkeypatch.setattr(cli_plan, "AT_ONCE", 1)
    with plannings_of(read_file(Path("app.yaml"))) as plannings:
        assert begun == ["one"]
        found = results(plannings, lambda: True)
    assert begun == ["one", "two"]
    assert [spec.name for spec in found or ()] == ["one", "two"]


def test_error_of_a_target_without_app_shows_its_line_and_traceback(folder: Path) -> None:
    (folder / "app.yaml").write_text("applications:\n  x:\n    target: broken:app\n")
    (folder / "broken.py").write_text("1 / 0")
    with pytest.raises(TargetError, match=r"^app.yaml:3: the module 'broken' does not import: ZeroDiv") as refused:
        plan_application(read_file(Path("app.yaml")), "x")
    assert "ZeroDivisionError" in refused.value.__notes__[0]
