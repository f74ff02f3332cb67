"""The checks that say whether the code is in order; each is one command that a contributor runs, too."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkers import ROOT, mypy

CHECKS = {"ruff": ["check", "."], "format": ["format", "--check", "."]}


@pytest.mark.slow
def test_the_types_are_in_order() -> None:
    done = mypy()
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("check", CHECKS)
def test_the_code_is_in_order(check: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *CHECKS[check]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_map_of_the_tests_names_every_folder_and_no_other() -> None:
    lines = (ROOT / "CONTRIBUTING.md").read_text("utf-8").splitlines()
    rows = [line.split("|")[1:3] for line in lines if "| `" in line]
    changed, run = (set(re.findall(r"`([^`]+)`", " ".join(column))) for column in zip(*rows, strict=True))
    assert not [path for path in run if not list(ROOT.glob(path))], "no such tests"
    named = {path.split("/")[1] for path in run}
    assert not [name for name in folders(ROOT / "tests") if name not in named], "CONTRIBUTING.md says when to run these"
    missing = [name for name in folders(ROOT / "app_toolkit") if f"app_toolkit/{name}" not in changed]
    assert not missing, "CONTRIBUTING.md says which tests these have"


def folders(parent: Path) -> list[str]:
    """The packages directly below."""
    return [path.parent.name for path in parent.glob("*/__init__.py")]
