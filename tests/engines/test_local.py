"""Classes in one process, where the app's lifespan runs and where nobody runs it."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from starlette.testclient import TestClient

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


@pytest.mark.usefixtures("_nothing_stays")
def test_what_a_script_used_is_constructed_anew_where_a_lifespan_begins() -> None:
    client = TestClient(chain.app)
    before = client.get("/which").json()
    assert client.get("/which").json() == before, "without a lifespan one object serves all requests"
    with client:
        assert client.get("/which").json() != before
