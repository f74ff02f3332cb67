"""Type checkers see through `@batch`: what `batched.py` marks as wrong is wrong, and nothing else."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkers import ROOT, mypy

FILE = Path(__file__).with_name("batched.py")
WRONG = {number for number, line in enumerate(FILE.read_text("utf-8").splitlines(), 1) if "# wrong:" in line}


def test_mypy_sees_the_signature_of_callers() -> None:
    done = mypy("--strict", "--hide-error-context", str(FILE))
    found = {int(line) for line in re.findall(r"batched\.py:(\d+): error:", done.stdout)}
    assert found == WRONG, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_sees_the_signature_of_callers() -> None:
    command = ["pyright", "--pythonpath", sys.executable, "--outputjson", str(FILE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    errors = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    assert {error["range"]["start"]["line"] + 1 for error in errors} == WRONG, done.stdout
