"""The checks that say whether the code is in order; each is one command that a contributor runs, too."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECKS = {
    "mypy": ["mypy"],
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_code_is_in_order(check: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *CHECKS[check]], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
