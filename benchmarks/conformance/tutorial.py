"""FastAPI's own tests of its tutorial, over the wire: to plain uvicorn twice, and to us.

Where two runs on plain uvicorn differ (a time, a random id), an answer says nothing. Everything else must be the same.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

from benchmarks.peers import SAME, cache, environment

ROOT = Path(__file__).parents[2]
FORMS = {"uvicorn": "uvicorn", "control": "uvicorn", "app_toolkit": "app_toolkit"}
"""Each run, and the server in it."""
TUTORIAL = ("pydantic-settings", "jinja2", "email-validator")
"""What the tutorial's apps import beside the packages of FastAPI's tests."""
NOT_NEEDED = ("ruff", "mypy", "ty", "coverage", "pytest-codspeed", "pytest-xdist", "pytest-cov", "pytest-sugar")
RUN_S = 900
INTENDED = {
    "tests/test_tutorial/test_request_body_limits/test_tutorial001.py::test_item_limit: POST /items": (
        "an additional `connection: close`: the proxy closes after a response if more than 1 MiB of the body is unread"
    )
}
"""Where we differ on purpose, and why."""


def run(chosen: Sequence[str] = ()) -> dict[str, Any]:
    """What was compared, and every difference; `chosen`: folders below `tests/test_tutorial`, none: all of them."""
    source = _source()
    python = environment("fastapi-tutorial", _packages(source))
    seen = {}
    for name, form in FORMS.items():
        print(f"Tutorial: {name}", flush=True)
        seen[name] = _tests(source, python, form, chosen)
    return {"fastapi": version("fastapi"), **compare(seen["uvicorn"], seen["control"], seen["app_toolkit"])}


def compare(plain: Mapping[str, Any], control: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Figures, and every difference; each argument is what `live` wrote down in one run."""
    differences: list[Any] = []
    for test in sorted({*plain["outcomes"], *ours["outcomes"]}):
        outcomes = [each["outcomes"].get(test, "absent") for each in (plain, control, ours)]
        if outcomes[0] == outcomes[1] != outcomes[2]:
            differences.append({"where": test, "uvicorn": outcomes[0], "app_toolkit": outcomes[2]})
    compared = unsteady = probes = 0
    for test in sorted({*plain["exchanges"], *ours["exchanges"]}):
        three = [each["exchanges"].get(test, []) for each in (plain, control, ours)]
        if len(three[0]) == len(three[1]) != len(three[2]):
            differences.append(
                {"where": test, "uvicorn": f"{len(three[0])} answers", "app_toolkit": f"{len(three[2])} answers"}
            )
        for expected, again, found in zip(*three, strict=False):
            if expected != again:
                unsteady += 1
                continue
            compared += 1
            probes += test.startswith("probes of ")
            if expected != found:
                differences.append({"where": f"{test}: {expected[0]}", "uvicorn": expected, "app_toolkit": found})
    return {
        "apps": plain["apps"],
        "tests": len(plain["outcomes"]),
        "passed": {"uvicorn": _passed(plain), "app_toolkit": _passed(ours)},
        "compared": compared,
        "probes": probes,
        "unsteady": unsteady,
        "intended": {each["where"]: INTENDED[each["where"]] for each in differences if each["where"] in INTENDED},
        "differences": [each for each in differences if each["where"] not in INTENDED],
    }


def _passed(seen: Mapping[str, Any]) -> int:
    return sum(outcome == "passed" for outcome in seen["outcomes"].values())


def _tests(source: Path, python: Path, form: str, chosen: Sequence[str]) -> Any:
    """One run, in a copy of its own: tests write files where they are."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(source, folder)
        (copy,) = Path(folder).iterdir()
        shutil.rmtree(copy / "fastapi")  # the installed one is meant
        out = copy / "seen.json"
        places = [f"tests/test_tutorial/{each}" for each in chosen] or ["tests/test_tutorial"]
        options = ["-p", "benchmarks.conformance.live", "-p", "no:cacheprovider", "-q", "--no-header"]
        done = subprocess.run(
            [python, "-m", "pytest", *options, *places],
            cwd=copy,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                # What differs between two processes that run the same: the order of a set's words.
                "PYTHONHASHSEED": "0",
                "CONFORMANCE_FORM": form,
                "CONFORMANCE_OUT": str(out),
            },
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        if not out.exists():
            raise RuntimeError(f"the tests did not run: ...{(done.stdout + done.stderr)[-2_000:]}")
        return json.loads(out.read_text())


def _source() -> Path:
    """The source distribution of the FastAPI that is installed."""
    folder = cache() / "fastapi-source"
    found = folder / f"fastapi-{version('fastapi')}.tar.gz"
    if not found.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "--dest", str(folder), f"fastapi=={version('fastapi')}"], check=True)
    return found


def _packages(source: Path) -> list[str]:
    """What FastAPI's tests need, as its own project file says, with the versions that are installed here."""
    with tarfile.open(source) as archive:
        (name,) = (each for each in archive.getnames() if each.count("/") == 1 and each.endswith("/pyproject.toml"))
        file = archive.extractfile(name)
        assert file is not None
        groups = tomllib.loads(file.read().decode())["dependency-groups"]
    pinned = [f"{each}=={version(each)}" for each in SAME]
    # No Ray: the proxy and the replica are served without it.
    ours = [
        each for each in requires("app-toolkit") or () if "extra ==" not in each and _name(each) not in (*SAME, "ray")
    ]
    return [*pinned, *ours, *TUTORIAL, *(each for each in _group(groups, "tests") if _name(each) not in NOT_NEEDED)]


def _group(groups: Mapping[str, Any], name: str) -> Iterator[str]:
    for each in groups[name]:
        if isinstance(each, str):
            yield each
        else:
            yield from _group(groups, each["include-group"])


def _name(requirement: str) -> str:
    for end in "[<>=! ":
        requirement = requirement.partition(end)[0]
    return requirement
