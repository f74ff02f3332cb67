"""The Autobahn test suite's client against an echo app, on plain uvicorn and behind our proxy.

The suite is written in Python 2: it runs under an interpreter of that kind, with packages of its own in the cache.
"""

import glob
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.conformance.echo import app
from benchmarks.conformance.servers import FORMS
from benchmarks.contenders import Contender
from benchmarks.peers import cache
from benchmarks.servers import started

SUITE = "autobahntestsuite==25.10.1"
ALL = ("*",)
AGAIN = 10
"""How often a case that differs is run again."""
MOST = (*(f"{group}.*" for group in range(1, 11)), "12.1.*", "13.1.*")
"""All but most of the cases on compression, each a thousand messages: they take longer than all others together."""

WSTEST = "import site, sys; site.addsitedir(sys.argv.pop(1)); from autobahntestsuite.wstest import run; run()"
"""A folder of packages is no site folder to Python 2: its namespace packages need one."""

ON_RAY = Contender(
    name="toolkit-ray",
    title="app_toolkit on Ray",
    command="{python} -m app_toolkit.cli run "
    + str(Path(__file__).with_name("echo.py"))
    + " --engine ray --port {port} -n 2",
    roles={},
    says="Serving ",
)


class CannotRun(Exception):
    """The suite is not there, and cannot be had."""


Verdicts = dict[str, dict[str, list[list[Any]]]]
"""Case → form → each different [behavior, behavior at the close, close code] that was seen."""


def run(cases: Sequence[str] = MOST, on_ray: bool = False) -> dict[str, Any]:
    """Which verdict each case got in each form.

    Some cases send byte by byte and ask what came back first: their verdicts depend on timing, in all forms. A case
    that differs is therefore run again, until we have done nothing that plain uvicorn did not do, too.
    """
    python, packages = _python2(), cache() / "autobahn"
    _install(python, packages)
    with ExitStack() as stack:
        urls = {form: stack.enter_context(serve(app)) for form, serve in FORMS.items()}
        if on_ray:
            urls["app_toolkit-on-ray"] = stack.enter_context(started(ON_RAY)).port
        found: Verdicts = {}
        _ask(python, packages, urls, cases, found)
        for _ in range(AGAIN):
            if differing := differences(found):
                _ask(python, packages, urls, differing, found)
    return {
        "suite": SUITE,
        "forms": list(urls),
        "cases": dict(sorted(found.items(), key=lambda each: [int(part) for part in each[0].split(".")])),
        "differences": differences(found),
    }


def _ask(python: str, packages: Path, urls: Mapping[str, int], cases: Sequence[str], found: Verdicts) -> None:
    """Run these cases once more, and note what has not been seen before."""
    with tempfile.TemporaryDirectory() as reports:
        spec = {
            "outdir": reports,
            "servers": [{"agent": form, "url": f"ws://127.0.0.1:{port}/"} for form, port in urls.items()],
            "cases": list(cases),
            "exclude-cases": [],
            "exclude-agent-cases": {},
        }
        file = Path(reports) / "spec.json"
        file.write_text(json.dumps(spec))
        command = [python, "-c", WSTEST, str(packages), "-m", "fuzzingclient", "-s", str(file)]
        subprocess.run(command, check=True, cwd=reports)
        index = json.loads((Path(reports) / "index.json").read_text())
    for form, said in index.items():
        for case, verdict in said.items():
            seen = found.setdefault(case, {}).setdefault(form, [])
            one = [verdict["behavior"], verdict["behaviorClose"], verdict["remoteCloseCode"]]
            if one not in seen:
                seen.append(one)


def differences(found: Verdicts) -> list[str]:
    """The cases in which some form did what plain uvicorn never did."""
    return [
        case
        for case, said in found.items()
        if any(verdict not in said["uvicorn"] for verdicts in said.values() for verdict in verdicts)
    ]


def _python2() -> str:
    for candidate in _candidates():
        asked = subprocess.run([candidate, "-c", "import sys; print(sys.version_info[0])"], capture_output=True)
        if asked.returncode == 0 and asked.stdout.strip() == b"2":
            return candidate
    raise CannotRun(
        "the Autobahn test suite needs a Python 2.7 or a PyPy 2.7; none was found (set PYTHON2 to its path)"
    )


def _candidates() -> Iterator[str]:
    if "PYTHON2" in os.environ:
        yield os.environ["PYTHON2"]
    yield from filter(None, map(shutil.which, ("python2.7", "python2", "pypy2", "pypy")))
    yield from sorted(glob.glob(str(Path.home() / ".pyenv" / "versions" / "*2.7*" / "bin" / "python")))


def _install(python: str, folder: Path) -> None:
    made_of = folder / "made-of.txt"
    if made_of.is_file() and made_of.read_text() == SUITE:
        return
    shutil.rmtree(folder, ignore_errors=True)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(folder), SUITE]
    if subprocess.run(command).returncode:
        raise CannotRun(f"pip could not install {SUITE} for {python}")
    made_of.write_text(SUITE)
