"""Classes in one process, where the app's lifespan runs and where nobody runs it."""

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from app_toolkit import Deployment, batch
from app_toolkit.engines.local import IN_PROCESS
from tests.engines.chain import app as chain


@pytest.fixture
def _nothing_stays() -> Iterator[None]:
    yield
    IN_PROCESS.close()


@pytest.mark.usefixtures("_nothing_stays")
@pytest.mark.parametrize("lifespan", [True, False], ids=["with its lifespan", "without"])
def test_the_chain_answers_under_a_test_client(lifespan: bool) -> None:
    client = TestClient(chain.app)
    with client if lifespan else nullcontext():
        for _ in range(2):  # without a lifespan each request has an event loop of its own
            assert client.get("/more/5").json() == 16
            assert client.get("/blocking/5").json() == [16, 4, 2, 1, 0]
            assert client.get("/passed/2").json() == 21
            assert client.get("/numbers/3").text.split() == ["1", "4", "7"]
            assert client.get("/lengths/abc").json() == [3, 1]
            assert client.get("/refuse").json() == {"what": "not today", "code": 7}


class Counted(Deployment):
    @batch(max_batch_size=4, batch_wait_timeout_s=60)
    async def together(self, numbers: list[int]) -> list[int]:
        return [len(numbers)] * len(numbers)


@pytest.mark.usefixtures("_nothing_stays")
def test_deployments_of_one_class_have_batch_limits_of_their_own() -> None:
    app = FastAPI()
    large, small = Counted.bind(), Counted.options(name="small", batch={"together": {"max_batch_size": 2}}).bind()

    @app.get("/together")
    async def together(
        large: Annotated[Counted, Depends(large)], small: Annotated[Counted, Depends(small)]
    ) -> list[list[int]]:
        return [list(await asyncio.gather(*(model.together(n) for n in range(4)))) for model in (large, small)]

    assert TestClient(app).get("/together").json() == [[4] * 4, [2] * 4]


@pytest.mark.usefixtures("_nothing_stays")
def test_what_a_script_used_is_constructed_anew_where_a_lifespan_begins() -> None:
    client = TestClient(chain.app)
    before = client.get("/which").json()
    assert client.get("/which").json() == before, "without a lifespan one object serves all requests"
    with client:
        assert client.get("/which").json() != before
