"""One deployment of a running application is created, updated and deleted, and the others do not change."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import app_toolkit
from app_toolkit import ConfigError, Deployment
from tests.cluster import Served
from tests.patience import PATIENCE_S

from .test_deploy import answer, here

APP = """
import os
from typing import Annotated

from app_toolkit import Deployment, DeploymentConfig, Toolkit
from fastapi import APIRouter, Depends

import words


class Writer(Deployment, health_check_period_s=0.5, resources={"num_cpus": 0.1}):
    async def write(self) -> tuple[str, int]:
        return words.WORD, os.getpid()


def deployed(name: str) -> DeploymentConfig:
    return DeploymentConfig(name=name, health_check_period_s=0.5)


writer = Writer.bind()
app = Toolkit(title="Parts", deployment=deployed("app"))
chat, talk = APIRouter(), APIRouter()


@app.get("/")
async def own() -> tuple[str, int]:
    return words.WORD, os.getpid()


@app.get("/written")
async def written(model: Annotated[Writer, Depends(writer)]) -> tuple[str, int]:
    return await model.write()


@chat.get("/chat")
async def reply() -> tuple[str, int]:
    return words.WORD, os.getpid()


@talk.get("/talk/{name}")
async def say(name: str) -> tuple[str, int]:
    return words.WORD, os.getpid()


app.include_router(chat, deployment=deployed("chat"))
if words.TALKS:
    app.include_router(talk, deployment=deployed("talk"))
"""


BROKEN = """
import ray

if ray.is_initialized():
    raise RuntimeError("no words")
"""


class Parts:
    """An application in a folder, as it is deployed whole and in parts."""

    def __init__(self, folder: Path, proxy: str) -> None:
        self.url = f"{proxy}/parts"
        self._folder = folder
        (folder / "parts.py").write_text(APP)

    def deploy(self, word: str, *only: str, talks: bool = False, more: str = "") -> int:
        """The exit code of the command, for an app that now answers this word."""
        (self._folder / "words.py").write_text(f"WORD, TALKS = {word!r}, {talks}\n{more}")
        said = [argument for name in only for argument in ("--only", name)]
        target = str(self._folder / "parts.py")
        return here("deploy", target, "--name", "parts", "--route-prefix", "/parts", "--wait", *said)

    def until(self, word: str) -> None:
        """Wait until that is its status."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(each.name == "parts" and each.status == word for each in app_toolkit.status().applications):
            assert time.monotonic() < deadline, app_toolkit.status()
            time.sleep(0.05)

    def read(self, path: str) -> tuple[str, int]:
        """The word that is answered there, and by which process."""
        word, pid = httpx.get(self.url + path, trust_env=False, timeout=PATIENCE_S).raise_for_status().json()
        return word, pid


@pytest.fixture
def parts(victim: Served, tmp_path: Path) -> Iterator[Parts]:
    parts = Parts(tmp_path, victim.cluster.proxy_url())
    assert parts.deploy("one") == 0
    yield parts
    assert here("delete", "parts") == 0


@contextmanager
def asked_all_the_time(url: str, *paths: str) -> Iterator[dict[str, list[int]]]:
    """What one client for each path was answered, one GET after the other."""
    statuses: dict[str, list[int]] = {path: [] for path in paths}
    over = threading.Event()

    def ask(path: str) -> None:
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
            while not over.wait(0.01):
                statuses[path].append(client.get(url + path).status_code)

    clients = [threading.Thread(target=ask, args=[path]) for path in paths]
    for client in clients:
        client.start()
    try:
        yield statuses
    finally:
        over.set()
        for client in clients:
            client.join()


@pytest.mark.slow
def test_one_deployment_is_updated_created_and_deleted_under_load_and_the_others_stay_as_they_are(
    parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    own, chat, (_, writing) = parts.read("/"), parts.read("/chat"), parts.read("/written")
    with asked_all_the_time(parts.url, "/", "/written", "/chat") as statuses:
        capsys.readouterr()
        assert parts.deploy("two", "writer") == 0
        assert capsys.readouterr().out.splitlines()[:2] == [
            "application parts at /parts",
            "  writer: will be restarted (files changed: words.py)",
        ]
        word, now_writing = parts.read("/written")
        assert (word, now_writing != writing) == ("two", True)

        assert httpx.get(f"{parts.url}/talk/you", trust_env=False, timeout=PATIENCE_S).status_code == 404
        assert parts.deploy("three", "GET /talk/{name}", talks=True) == 0
        assert parts.read("/talk/you")[0] == "three"

        assert parts.deploy("four", "writer", talks=True, more=BROKEN) == 2
        said = capsys.readouterr().err
        assert "RuntimeError: no words" in said
        assert 'File "words.py", line 6' in said, "not the path at which the node has unpacked it"
        parts.until("rolled_back")

        assert parts.read("/chat") == chat
        assert here("delete", "parts/chat") == 0
        assert httpx.get(f"{parts.url}/chat", trust_env=False, timeout=PATIENCE_S).status_code == 404
        assert here("delete", "parts/writer") == 2
        assert "'writer' cannot be deleted: it is called by app" in capsys.readouterr().err
        assert (parts.read("/"), parts.read("/written")) == (own, ("two", now_writing)), "no replica has restarted"

    assert {*statuses["/"], *statuses["/written"]} == {200}
    deleted = statuses["/chat"].index(404)
    assert set(statuses["/chat"][:deleted]) == {200}
    assert set(statuses["/chat"][deleted:]) == {404}


class Writer(Deployment, health_check_period_s=0.5, resources={"num_cpus": 0.1}):
    """In the place of the app's."""

    async def write(self) -> tuple[str, int]:
        return "bound", 0


@pytest.mark.slow
def test_from_python_a_class_takes_the_place_of_another(parts: Parts) -> None:
    own = parts.read("/")
    app_toolkit.deploy(Writer.bind(), name="parts", only=["writer"])
    answer(f"{parts.url}/written", lambda found: found == ["bound", 0])
    assert parts.read("/") == own
    app_toolkit.delete("parts/chat")
    with pytest.raises(ConfigError, match="there is no application 'part'"):
        app_toolkit.deploy(Writer.bind(), name="part", only=["writer"])
    with pytest.raises(ConfigError, match="only = 'writer': it should be a list of names"):
        app_toolkit.deploy(Writer.bind(), name="parts", only="writer")
