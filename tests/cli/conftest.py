"""Commands run in the process of the tests: what they change there does not outlive the test."""

import logging
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Self

import pytest

from app_toolkit.cli import main as command_line
from app_toolkit.cli.plan import Planning, plan_here
from app_toolkit.cli.target import resolve
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.config.options import PlanOptions
from tests.prepared import COMMAND, Program

KEPT = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib")), str(Path(__file__).parents[2] / "app_toolkit"))
"""Modules from these folders stay imported."""


@pytest.fixture(autouse=True)
def _the_environment_is_as_it_was() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _logging_is_as_it_was() -> Iterator[None]:
    """Commands configure the loggers, which would write to the captured output of this test later."""
    loggers = [logging.getLogger(name) for name in ("", "uvicorn", "uvicorn.error", "uvicorn.access")]
    before = [(each.handlers[:], each.level, each.propagate) for each in loggers]
    last_resort = logging.lastResort
    yield
    logging.lastResort = last_resort
    for each, (handlers, level, propagate) in zip(loggers, before, strict=True):
        each.handlers[:], each.propagate = handlers, propagate
        each.setLevel(level)


@contextmanager
def forgotten_imports() -> Iterator[None]:
    """Different modules of one name may be imported one after the other, even from one file."""
    path, others, writes_no_bytecode = list(sys.path), _modules_of_apps(), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # a file that is written twice in one second would be taken for the first
    for name in others:  # another test may have imported an app of the same name
        del sys.modules[name]
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, writes_no_bytecode
        for name in _modules_of_apps():
            del sys.modules[name]
        sys.modules.update(others)


def _modules_of_apps() -> dict[str, ModuleType]:
    """The imported modules that belong neither to Python, an installed package, the toolkit, nor the tests."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if not (getattr(module, "__file__", None) or KEPT[0]).startswith(KEPT)
        and name.partition(".")[0] not in ("__main__", "benchmarks", "conftest", "examples", "tests")
    }


@pytest.fixture
def _imports_are_forgotten() -> Iterator[None]:
    with forgotten_imports():
        yield


class PlannedHere:
    """The plan of one app, made in this process: a child process takes a second to start."""

    def __init__(self, target: str, app_dir: Path | None, options: PlanOptions, fork: object = None) -> None:
        self._target = resolve(target, folder=Path.cwd(), app_dir=app_dir)
        self._options = options

    def result(self, goes_on: Callable[[], bool]) -> ApplicationSpec | None:
        with forgotten_imports():
            return plan_here(self._target, self._options) if goes_on() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


class ForkedPlanning(Planning):
    """A plan in a fork, as on processes, of a process that has imported the package."""

    def __init__(self, named: str, arguments: Sequence[str], fork: object = None) -> None:
        super().__init__(named, arguments, print)


def _forked_command(arguments: Sequence[str], run: object) -> Program:
    return Program(COMMAND, *arguments, cwd=Path.cwd(), stderr=2)


@pytest.fixture
def _planned_in_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands plan in forks."""
    monkeypatch.setattr("app_toolkit.cli.plan.ForkedCommand", _forked_command)
    monkeypatch.setattr("app_toolkit.cli.plan.Planning", ForkedPlanning)


@pytest.fixture
def _planned_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` and `deploy` plan in this process."""
    monkeypatch.setattr("app_toolkit.cli.run.planning_of", PlannedHere)


class Ended:
    """How a command in this process has ended, and its output."""

    def __init__(self, returncode: object, stdout: str, stderr: str) -> None:
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr


@pytest.fixture
def plan(_imports_are_forgotten: None, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The command `plan` in this process."""

    def plan(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            command_line.main(["plan", *arguments])
        return Ended(ended.value.code, *capfd.readouterr())

    return plan
