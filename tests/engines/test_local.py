"""Where classes live in one process: with the app's lifespan, and where nobody runs it."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from app_toolkit.engines.local import IN_PROCESS
from tests.engines.chain import app as chain


@pytest.fixture
def _nothing_stays() -> Iterator[None]:
    yield
    IN_PROCESS.close()


@pytest.mark.usefixtures("_nothing_stays")
def test_what_a_script_used_is_constructed_anew_where_a_lifespan_begins() -> None:
    client = TestClient(chain.app)
    before = client.get("/which").json()
    assert client.get("/which").json() == before, "without a lifespan one object serves all requests"
    with client:
        assert client.get("/which").json() != before


SURPRISE = """
import asyncio
{first}
from app_toolkit import Deployment, Toolkit
from starlette.testclient import TestClient

class Model(Deployment):
    async def puts(self):
        import ray
        return ray.put(1)

    def runs(self):
        import ray
        return ray.remote(lambda: 1).remote()

model = Model.bind()
app = Toolkit(deployments=[model])

@app.get("/")
def route():
    import ray
    return ray.get([])

def told(client):
    for use in (lambda: client.get("/"), lambda: asyncio.run(model.handle.puts()), model.handle.runs):
        try:
            use()
        except Exception as error:
            print(type(error).__name__, error)

told(TestClient(app))
with TestClient(app) as client:
    told(client)
import ray
print(ray.is_initialized())
"""


@pytest.mark.parametrize("first", ["import ray", ""], ids=["imported before", "imported by it"])
def test_user_code_that_asks_for_ray_is_told_that_there_is_none_and_starts_none(first: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_AUTO_CONNECT"}
    command = [sys.executable, "-c", SURPRISE.format(first=first)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    said = "RaySystemError System error: Ray has not been started yet. You can start Ray with 'ray.init()'."
    assert done.stdout.splitlines() == [said] * 6 + ["False"], done.stderr
