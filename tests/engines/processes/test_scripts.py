"""`run` in a Python program, which starts processes of this machine if it names no other engine."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.patience import PATIENCE_S
from tests.running import serve_until_interrupted


@pytest.mark.parametrize("edge", ["proxy", "replica"])
def test_a_script_serves_on_processes_of_its_own_until_it_is_interrupted(tmp_path: Path, edge: str) -> None:
    serve_until_interrupted(tmp_path, f'edge="{edge}"')


NOTEBOOK = """
import asyncio, os, sys
from dataclasses import dataclass
import app_toolkit
from app_toolkit import Deployment, options, remote
from fastapi import FastAPI, Request

@dataclass
class Sum:
    of: int

class Adder(Deployment):
    def __init__(self, first: Sum) -> None:
        self.first = first

    async def add(self, other: Sum) -> Sum:
        return Sum(self.first.of + other.of)

    async def die(self) -> None:
        os._exit(1)

class Guest(Deployment):
    def __init__(self) -> None:
        self.adder = app_toolkit.get_handle("notebook", "adder")

    async def add(self, of: int) -> Sum:
        return await remote(self.adder.add, Sum(of))

async def hello(request: Request) -> str:
    return "hello"

adder = app_toolkit.run(Adder.bind(Sum(3)), name="notebook", port=0)
print(asyncio.run(adder.add(Sum(4))) == Sum(7))
print(app_toolkit.run(hello, name="hello").url.startswith("http://127.0.0.1:"))
print(asyncio.run(app_toolkit.run(Guest.bind(), name="guest").add(5)) == Sum(8))
try:
    asyncio.run(adder.die())
except app_toolkit.RequestError as error:
    print(type(error).__name__)
print(remote(options(adder, retry="all").add, Sum(5)).result(30) == Sum(8))
for app, options in ((FastAPI(title="Cell"), {}), (hello, {"engine": "ray"}), (hello, {"address": "processes-0"})):
    try:
        app_toolkit.run(app, name="app", **options)
    except app_toolkit.ConfigError as error:
        print(error)
"""


@pytest.mark.usefixtures("processes_found")
def test_classes_of_a_notebook_go_along_and_find_each_other_beside_another_instance(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NOTEBOOK]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    worked, refused = done.stdout.splitlines()[:5], done.stdout.splitlines()[5:]
    assert worked == ["True", "True", "True", "ReplicaLost", "True"], done.stdout + done.stderr
    starts = (
        "the app 'Cell' is not an attribute of a module that replicas can import: move it to",
        "run() cannot apply engine = 'ray': this process runs applications on processes",
        "this process uses the instance processes-",
    )
    assert [line.startswith(start) for line, start in zip(refused, starts, strict=True)] == [True] * 3, refused
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_script_joins_an_instance_at_its_address_and_only_its_own_application_ends(
    processes_found: Cluster, tmp_path: Path
) -> None:
    before = [each["name"] for each in processes_found.status()["applications"]]
    script = (
        "import app_toolkit; from app_toolkit import Deployment\n"
        "class Answer(Deployment):\n    async def say(self): return 42\n"
        "import asyncio; answer = app_toolkit.run(Answer.bind(), name='joined', address='auto')\n"
        "print(asyncio.run(answer.say()), len(app_toolkit.status().applications))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["42", f"{len(before) + 1}"], done.stdout + done.stderr
    assert [each["name"] for each in processes_found.status()["applications"]] == before
