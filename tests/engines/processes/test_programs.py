"""`run` as a program that others start: its exit codes."""

import signal
from pathlib import Path

import pytest

from app_toolkit.config.settings import RUNTIME_DIR
from tests.running import runs

APP = """
from app_toolkit import Toolkit

app = Toolkit()
"""

FAILING = """
from app_toolkit import Toolkit

async def fail(app):
    raise ValueError("no database")
    yield

app = Toolkit(lifespan=fail)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the apps, of which other tests find no instance."""
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path))
    (tmp_path / "serving.py").write_text(APP)
    (tmp_path / "failing.py").write_text(FAILING)
    return tmp_path


def test_an_app_that_does_not_start_ends_the_program_with_its_error(folder: Path) -> None:
    with runs() as start:
        run = start(str(folder / "failing.py"), "--engine", "processes")
        assert run.wait() == 2
        assert "Error: 'app' did not come up: ValueError: no database" in run.said


def test_a_termination_drains_and_succeeds(folder: Path) -> None:
    with runs() as start:
        run = start(str(folder / "serving.py"), "--engine", "processes")
        run.url()
        assert run.end(signal.SIGTERM) == 0
        assert "Draining." in run.said
