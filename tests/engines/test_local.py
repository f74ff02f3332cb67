"""Where classes live in one process: with the app's lifespan, and where nobody runs it."""

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
