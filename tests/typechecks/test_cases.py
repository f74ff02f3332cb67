"""What the design promises of types, judged by the type checkers themselves.

The files in `cases` assert what must be right and ignore, by name, what must be wrong; an ignore that hides nothing is
an error. mypy always judges them, pyright where it is installed.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import checkers
from tests.checkers import ROOT

CASES = Path(__file__).parent / "cases"
WRONG = """\
from typing import assert_type
from app_toolkit import Deployment, remote
class Writer(Deployment):
    async def write(self) -> str:
        return ""
writer = Writer.bind()
Writer.bind("too much")  # wrong
Writer.bind()  # type: ignore[call-arg] # wrong
async def call() -> None:
    assert_type(await writer.handle.write(), int)  # wrong
    assert_type(await remote(writer.handle.write), int)  # wrong
    await writer.handle.wrote()  # wrong
"""


def mypy(folder: Path) -> list[str]:
    """What it complains of, as `FILE:LINE: ...`."""
    done = checkers.mypy("--strict", "--no-error-summary", "--hide-error-context", str(folder))
    assert not done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def pyright(folder: Path) -> list[str]:
    """What it complains of, as `FILE:LINE: ...`; an ignore that is not needed counts."""
    found = shutil.which("pyright")
    if found is None:
        pytest.skip("pyright is not installed")
    config = {"extraPaths": [str(ROOT)], "pythonVersion": "3.11", "reportUnnecessaryTypeIgnoreComment": True}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [found, "--project", str(folder), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    judged = json.loads(done.stdout)
    assert judged["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py")))
    return [
        f"{each['file']}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in judged["generalDiagnostics"]
        if each["severity"] == "error"
    ]


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checker_reports_the_expected_errors(checker: Callable[[Path], list[str]], tmp_path: Path) -> None:
    folder = shutil.copytree(CASES, tmp_path / "cases")
    assert checker(folder) == []


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_case_that_is_wrong_is_seen(checker: Callable[[Path], list[str]], tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    complained = {int(re.findall(r"wrong\.py:(\d+)", each)[0]) for each in checker(tmp_path)}
    assert complained == {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}
