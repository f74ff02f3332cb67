"""`run` plans an app in the process that forks its replicas."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from tests.patience import PATIENCE_S
from tests.running import Run, runs

APP = """
import os
from app_toolkit import DeploymentConfig, Toolkit
from pathlib import Path

with open(Path(__file__).with_name("imports"), "a") as imports:
    print(os.getpid(), file=imports)
app = Toolkit({options})

@app.get("/parent")
async def parent() -> dict[str, str]:
    return dict(os.environ)

{rest}
"""

LEVEL = """
@app.get("/level")
async def level() -> int:
    return logging.getLogger("uvicorn").level
"""

Served = Callable[..., Run]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Run an app. `options`: of the toolkit, `rest`: more code, `target`: what `run` serves, `more`: options of it."""
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path))
    with runs() as start:

        def serve(options: str = "", rest: str = "", target: str = "", more: Sequence[str] = ()) -> Run:
            (tmp_path / "served.py").write_text(APP.format(options=options, rest=rest))
            return start(f"{tmp_path}/served.py{target}", "--engine", "processes", *more)

        yield serve


def imports(folder: Path) -> list[str]:
    """Return the processes that have imported the app."""
    return (folder / "imports").read_text().split()


def test_an_app_is_imported_once(serve: Served, tmp_path: Path) -> None:
    url = serve().url()
    assert httpx.get(f"{url}/parent", timeout=PATIENCE_S, trust_env=False).json()["OMP_NUM_THREADS"] == "1"
    assert len(imports(tmp_path)) == 1


@pytest.mark.parametrize(
    ("options", "rest", "target"),
    [
        ("logging_config={'version': 1}", "", ""),
        ("", "def create() -> Toolkit:\n    return app", ":create"),
        ("", "os.utime(__file__)", ""),
    ],
    ids=["logging is configured before the import", "a factory is called once", "a file has changed meanwhile"],
)
def test_an_app_whose_import_for_the_plan_differs_is_imported_again(
    serve: Served, tmp_path: Path, options: str, rest: str, target: str
) -> None:
    serve(options, rest, target).url()
    assert len({*imports(tmp_path)}) == 2


def test_the_import_for_a_plan_does_not_serve_the_code_of_another_folder(serve: Served, tmp_path: Path) -> None:
    two_cpus = "deployment=DeploymentConfig(name='default', resources={'num_cpus': 2})"
    other = tmp_path / "other"
    other.mkdir()
    (other / "served.py").write_text(APP.format(options="", rest=""))
    url = serve(two_cpus, more=["--reload"]).url()  # the threads differ, so the process of the plan serves nothing
    command = [sys.executable, "-P", "-m", "app_toolkit.cli", "deploy", str(other / "served.py"), "--wait"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    assert httpx.get(f"{url}/parent", timeout=PATIENCE_S, trust_env=False).json()["OMP_NUM_THREADS"] == "1"
    assert len({*imports(other)}) == 2  # for the plan, and for the replica


@pytest.mark.parametrize(
    ("options", "rest"),
    [
        ("", "logging.getLogger('uvicorn').setLevel('DEBUG')"),
        ("logging_config={'version': 1, 'loggers': {'uvicorn': {'level': 'DEBUG'}}}", ""),
    ],
    ids=["its module", "its logging configuration"],
)
def test_replicas_keep_what_an_app_changes_about_the_loggers_of_uvicorn(serve: Served, options: str, rest: str) -> None:
    run = serve(options, f"import logging\nlogging.getLogger('uvicorn').info('at the import')\n{rest}\n{LEVEL}")
    assert httpx.get(f"{run.url()}/level", timeout=PATIENCE_S, trust_env=False).json() == logging.DEBUG
    assert "INFO uvicorn: at the import" in run.said


@pytest.mark.parametrize("more", [[], ["--log-file", "-"]])
def test_an_app_that_does_not_import_ends_the_command_with_its_error(serve: Served, more: list[str]) -> None:
    run = serve(rest="raise ValueError('no model')", more=more)
    assert run.wait() == 2
    assert "the module 'served' does not import: ValueError: no model" in run.said


def test_an_app_that_ends_its_process_ends_the_command(serve: Served) -> None:
    run = serve(rest="os._exit(3)")
    assert run.wait() == 2
    assert "planning default failed: the process ended with exit code 3" in run.said
