"""The checks that say whether the code is in order; each is one command that a contributor runs, too."""

import subprocess
import sys

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
