from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from {{ cookiecutter.package_name }}.app import app


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


def test_an_item_is_read(client: TestClient) -> None:
    assert client.get("/items/tea").json() == {"name": "tea", "price": 1.0}


def test_an_item_is_priced_and_a_bad_one_refused(client: TestClient) -> None:
    assert client.post("/items", json={"name": "tea", "price": 10}).json()["with_tax"] == 12
    assert client.post("/items", json={"name": "tea", "price": 0}).status_code == 422


def test_events_arrive_one_by_one(client: TestClient) -> None:
    with client.stream("GET", "/events", params={"count": 3}) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data:")]
    assert lines == ['data: {"number":1}', 'data: {"number":2}', 'data: {"number":3}']


def test_the_websocket_gives_back_what_it_gets(client: TestClient) -> None:
    with client.websocket_connect("/events/ws") as websocket:
        websocket.send_text("hello")
        assert websocket.receive_text() == "hello"


def test_events_have_replicas_of_their_own() -> None:
    assert app.ingresses["events"].num_replicas == 2
