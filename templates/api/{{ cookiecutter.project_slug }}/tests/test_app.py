from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from {{ cookiecutter.package_name }}.app import app


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


def test_an_item_can_be_read(client: TestClient) -> None:
    assert client.get("/items/tea").json() == {"name": "tea", "price": 1.0}


def test_an_item_gets_a_price_with_tax(client: TestClient) -> None:
    assert client.post("/items", json={"name": "tea", "price": 10}).json()["with_tax"] == 12


def test_an_item_without_a_price_is_refused(client: TestClient) -> None:
    assert client.post("/items", json={"name": "tea", "price": 0}).status_code == 422


def test_events_arrive_one_by_one(client: TestClient) -> None:
    with client.stream("GET", "/events", params={"count": 3, "period_s": 0}) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data:")]
    assert lines == ['data: {"number":1}', 'data: {"number":2}', 'data: {"number":3}']


def test_the_websocket_sends_texts_back(client: TestClient) -> None:
    with client.websocket_connect("/events/ws") as websocket:
        websocket.send_text("hello")
        assert websocket.receive_text() == "hello"


def test_events_have_their_own_replicas() -> None:
    assert app.ingresses["events"].num_replicas == 2
