"""`run` plans an app in the process that forks its replicas."""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import psutil
import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from app_toolkit.control.operations import Deploy
from app_toolkit.engines.processes.engine import ProcessEngine
from app_toolkit.errors import ConfigError
from tests.control.harness import application
from tests.patience import PATIENCE_S, wait_until
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


def test_the_process_of_a_plan_that_serves_nothing_ends_once_the_app_serves(serve: Served, tmp_path: Path) -> None:
    two_cpus = "deployment=DeploymentConfig(name='default', resources={'num_cpus': 2})"  # the threads differ
    run = serve(two_cpus, more=["--reload"])
    run.until_said("Press Ctrl-C")
    planning, replica = map(int, imports(tmp_path))
    wait_until(lambda: not psutil.pid_exists(planning))
    assert psutil.pid_exists(replica)


def test_nothing_can_be_deployed_to_an_instance_that_may_end_because_its_own_app_does_not_start(
    serve: Served, tmp_path: Path
) -> None:
    run = serve(rest="import time\nwhile not Path(__file__).with_name('plan').exists(): time.sleep(0.01)")
    wait_until((tmp_path / "imports").exists)
    with ProcessEngine().connect("auto") as client:
        with pytest.raises(ConfigError, match=r"is starting, and ends if its own app does not start: deploy again"):
            client.execute(Deploy(application()))
        (tmp_path / "plan").touch()
        run.until_said("Press Ctrl-C")
        assert client.execute(Deploy(application(prefix="/shop"))) == 1


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
