"""`run`, `get_handle` and `shutdown` as scripts use them, on the session's cluster."""

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

import app_toolkit
from app_toolkit import ConfigError, Deployment, deployment, remote
from app_toolkit.calls import handle
from app_toolkit.config.options import Options, RunKeywords
from app_toolkit.engines.one_process.calls import IN_PROCESS
from tests.cluster import Cluster, Served
from tests.docs.pages import page
from tests.engines.chain import app as chain
from tests.groups import ROOT
from tests.patience import PATIENCE_S
from tests.running import serve_until_interrupted

pytestmark = pytest.mark.anyio

SMALL = {"num_cpus": 0.1}


def applications(cluster: Cluster) -> list[str]:
    return [each["name"] for each in cluster.status()["applications"]]


@pytest.fixture(autouse=True)
def free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the proxies take a free port if `run` is the first that starts them on this cluster."""
    monkeypatch.setenv("APP_TOOLKIT_PORT", "0")


@pytest.fixture(scope="module")
def host(cluster: Cluster) -> Iterator[Served]:
    """An application that this process has not run."""
    served = cluster.deploy(f"{chain.__name__}:right", ROOT)
    yield served
    served.delete()


@pytest.fixture(autouse=True)
def _shut_down(cluster: Cluster) -> Iterator[None]:
    before = applications(cluster)
    yield
    app_toolkit.shutdown()
    assert applications(cluster) == before, "what was run has gone, and nothing else"


async def test_an_app_is_served_and_its_handles_call_its_replicas() -> None:
    served = app_toolkit.run(chain.app, name="chain", route_prefix="/chain")
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S) as client:
        assert (await client.get("/more/5")).json() == 16
    assert await chain.left.handle.more(5) == 16
    assert [number async for number in chain.left.handle.numbers(3)] == [1, 4, 7]
    assert await remote(chain.right.handle.less, 5) == 4


def test_bound_class_gives_a_handle_that_calls_from_threads_until_shutdown() -> None:
    right = app_toolkit.run(chain.right, name="right")
    assert right.less(5) == 4
    assert list(right.halves(5)) == [2, 1, 0]
    assert remote(right.through, 5).result(30) == 15
    with pytest.raises(ConfigError, match="'batched' is not deployed from this process"):
        remote(chain.batched.handle.lengths, "text").result(10)
    another = app_toolkit.get_handle("right", "right")
    assert another.less(5) == 4
    app_toolkit.shutdown()
    with pytest.raises(ConfigError, match="'right' belongs to application 'right', but this process is not connected"):
        another.less(5)


async def test_handle_calls_an_application_of_another_process(host: Served) -> None:
    right = app_toolkit.get_handle(host.spec.name, "right")
    assert await remote(right.less, 5) == 4
    with pytest.raises(AttributeError, match="right has no method 'les'; did you mean less"):
        right.les  # noqa: B018
    with pytest.raises(ConfigError, match="has no deployment 'rigth' to call; it has shared, left, right, source"):
        app_toolkit.get_handle(host.spec.name, "rigth")
    with pytest.raises(ConfigError, match="there is no application 'nobody'"):
        app_toolkit.get_handle("nobody", "right")


class Guest(Deployment, resources=SMALL):
    """Calls a deployment of another application."""

    def __init__(self, application: str) -> None:
        self.right = app_toolkit.get_handle(application, "right")

    async def less(self, number: int) -> int:
        return int(await remote(self.right.less, number))


async def test_one_application_calls_another(host: Served) -> None:
    assert await app_toolkit.run(Guest.bind(host.spec.name), name="guest").less(5) == 4


async def test_run_replaces_the_application_of_the_same_name() -> None:
    class Answer(Deployment, resources=SMALL):
        def __init__(self, answer: int) -> None:
            self.answer = answer

        async def say(self) -> int:
            return self.answer

    first = app_toolkit.run(Answer.bind(41), name="answer")
    assert await first.say() == 41
    second = app_toolkit.run(Answer.bind(42), name="answer")
    assert await second.say() == 42
    assert await first.say() == 42


class Chat(Deployment, resources=SMALL, max_body_size=1_000):
    """Answers HTTP, and calls."""

    def __init__(self, left: chain.Left) -> None:
        self.left = left

    async def __call__(self, request: Request) -> Any:
        said = (await request.body()).decode()
        if request.url.path.endswith("/stream"):
            return StreamingResponse((f"{word}\n" async for word in self.words(said)), media_type="text/plain")
        if request.url.path.endswith("/refused"):
            raise HTTPException(418, "no coffee here")
        if request.url.path.endswith("/more"):
            return {"more": await self.left.more(int(said))}
        return {"method": request.method, "path": request.url.path, "said": said, "prefix": request.scope["root_path"]}

    async def words(self, text: str) -> AsyncIterator[str]:
        for word in text.split():
            yield word


async def test_a_class_with_call_answers_http_below_its_prefix_and_its_methods_are_called(cluster: Cluster) -> None:
    chat = app_toolkit.run(Chat.bind(chain.left.handle), name="chat", route_prefix="/chat")
    assert [word async for word in chat.words("two words")] == ["two", "words"]
    async with httpx.AsyncClient(base_url=cluster.proxy_url(), trust_env=False, timeout=PATIENCE_S) as client:
        response = await client.post("/chat/any/path", content="hello")
        assert response.json() == {"method": "POST", "path": "/chat/any/path", "said": "hello", "prefix": "/chat"}
        assert (await client.put("/chat", content="hello")).json()["path"] == "/chat"
        assert (await client.get("/chat/")).json()["method"] == "GET"
        assert (await client.post("/chat/more", content="5")).json() == {"more": 16}
        assert (await client.post("/chat/stream", content="two words")).text == "two\nwords\n"
        assert (await client.post("/chat/more", content=b"5" * 1_001)).status_code == 413
        refused = await client.get("/chat/refused")
        assert (refused.status_code, refused.json()) == (418, {"detail": "no coffee here"})
        with pytest.raises(AttributeError, match="private"):
            getattr(chat, "_left")  # noqa: B009 - private on purpose


def test_call_method_that_yields_is_refused() -> None:
    class Yields(Deployment):
        async def __call__(self, request: Request) -> AsyncIterator[str]:
            yield "word"

    with pytest.raises(ConfigError, match="let it return a StreamingResponse"):
        app_toolkit.run(Yields.bind(), name="yields")


async def hello(request: Request) -> str:
    return f"hello {request.query_params['name']}"


def test_invalid_target_of_run_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="no option 'route'"):
        app_toolkit.run(hello, route="/hello")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="Left has no __call__, so nothing would answer below '/left'"):
        app_toolkit.run(chain.left, route_prefix="/left")
    app = FastAPI(title="Nowhere")
    with pytest.raises(ConfigError, match="the app 'Nowhere' is not an attribute of a module that replicas can import"):
        app_toolkit.run(app)
    with pytest.raises(
        ConfigError, match=r"bound as locked> cannot be pickled for its replicas: TypeError: cannot pickle"
    ):
        app_toolkit.run(deployment(Locked, name="locked").bind(threading.Lock()))
    with pytest.raises(ConfigError, match=r"packed, the limit is 16777216: bind it with the path"):
        app_toolkit.run(deployment(Locked, name="locked").bind(bytes(17 << 20)))


class Locked:
    def __init__(self, what: object) -> None: ...


def test_run_is_refused_while_a_replica_imports_the_module() -> None:
    handle.use(IN_PROCESS)  # as an engine does before it imports anything
    try:
        with pytest.raises(ConfigError, match="was called in a replica, which imports 'tests"):
            app_toolkit.run(chain.app)
    finally:
        handle.use(None)


def test_every_option_of_the_command_is_one_of_run() -> None:
    assert RunKeywords.__annotations__.keys() == Options.model_fields.keys() - {"admin_url"}


NOTEBOOK = """
import asyncio, os, sys
from dataclasses import dataclass
import app_toolkit
from app_toolkit import Deployment, options, remote

@dataclass
class Sum:
    of: int

def add(one, other):
    return Sum(one.of + other.of)

class Adder(Deployment, resources={"num_cpus": 0.1}):
    def __init__(self, first: Sum) -> None:
        self.first = first

    async def add(self, other: Sum) -> Sum:
        return add(self.first, other)

    async def die(self) -> None:
        os._exit(1)

class Front(Deployment, resources={"num_cpus": 0.1}):
    def __init__(self, adder: Adder) -> None:
        self.adder = adder

    async def add(self, of: int) -> Sum:
        return await self.adder.add(Sum(of))

    async def die(self) -> None:
        await self.adder.die()

front = app_toolkit.run(Front.bind(Adder.bind(Sum(3)).handle), name="notebook", address=sys.argv[1])
print(asyncio.run(front.add(4)) == Sum(7))
try:
    asyncio.run(front.die())
except app_toolkit.RequestError as error:
    print(type(error).__name__)
print(remote(options(front, retry="all").add, 5).result(30) == Sum(8))
"""


@pytest.mark.slow
def test_classes_of_a_notebook_go_along_and_one_started_later_finds_them(cluster: Cluster) -> None:
    command = [sys.executable, "-c", NOTEBOOK, cluster.address()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["True", "ReplicaLost", "True"], done.stdout + done.stderr
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "notebook" not in applications(cluster), "it went with its process"


CONNECTIONS = """
import sys
import ray
import app_toolkit
first, second = app_toolkit.connect(sys.argv[1]), app_toolkit.connect(sys.argv[1])
first.close()
first.close()
print(second.status().status)
second.close()
print(ray.is_initialized())
"""


@pytest.mark.slow
def test_the_last_connection_to_a_ray_cluster_that_is_closed_disconnects_the_process(cluster: Cluster) -> None:
    command = [sys.executable, "-c", CONNECTIONS, cluster.address()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout.split() == [cluster.status()["status"], "False"], done.stdout + done.stderr


@pytest.mark.slow
def test_a_script_serves_on_a_ray_of_its_own_until_it_is_interrupted(tmp_path: Path) -> None:
    serve_until_interrupted(tmp_path, 'engine="ray"')


@pytest.mark.slow
def test_script_of_the_page_runs(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(page("docs/scripts.md").code)
    environment = {**os.environ, "APP_TOOLKIT_ADDRESS": cluster.address(), "NO_PROXY": "127.0.0.1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
