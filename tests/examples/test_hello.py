"""The example does what its page promises, in one process."""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from app_toolkit.declare.planning import plan

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    sys.path.insert(0, str(EXAMPLES))
    from hello.app import app

    yield app
    sys.path.remove(str(EXAMPLES))


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


def test_a_greeting_is_json_in_the_language_asked_for(client: TestClient) -> None:
    assert client.get("/hello/Ada").json() == {"text": "Hello, Ada!", "language": "en"}
    assert client.get("/hello/Ada", params={"language": "de"}).json()["text"] == "Guten Tag, Ada!"


def test_missing_language_is_a_404_that_names_the_languages(client: TestClient) -> None:
    answer = client.get("/hello/Ada", params={"language": "tlh"})
    assert answer.status_code == 404
    assert "'tlh'" in answer.json()["detail"]


def test_a_body_is_validated(client: TestClient) -> None:
    bought = {"name": "tea", "price": 2.5, "quantity": 3}
    assert client.post("/receipts", json=bought).json() == {"name": "tea", "total": 7.5}
    assert client.post("/receipts", json={**bought, "price": -1}).status_code == 422


def test_a_def_endpoint_works_in_a_thread(client: TestClient) -> None:
    assert client.get("/digest", params={"text": "x"}).json() == hashlib.sha256(b"x").hexdigest()


def test_the_countdown_is_a_stream_of_events(client: TestClient) -> None:
    with client.stream("GET", "/countdown", params={"start": 3, "pause_s": 0}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        ticks = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data")]
    assert ticks == [{"number": 1, "left": 2}, {"number": 2, "left": 1}, {"number": 3, "left": 0}]


def test_the_squares_are_json_lines(client: TestClient) -> None:
    answer = client.get("/squares", params={"count": 3})
    assert answer.headers["content-type"].startswith("application/jsonl")
    assert [json.loads(line)["square"] for line in answer.text.splitlines()] == [1, 4, 9]


def test_a_file_is_received_whole(client: TestClient) -> None:
    content = bytes(range(256)) * 1_000
    answer = client.post("/files", files={"file": ("bytes.bin", content)})
    assert answer.json() == {
        "filename": "bytes.bin",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def test_chat_answers_until_bye(client: TestClient) -> None:
    with client.websocket_connect("/chat/ws") as websocket:
        websocket.send_text("good morning")
        assert websocket.receive_json() == {"you_said": "good morning", "answer": "GOOD MORNING"}
        websocket.send_text("bye")
        with pytest.raises(WebSocketDisconnect) as closed:
            websocket.receive_text()
    assert closed.value.code == 1000


def test_the_page_addresses_everything_relative_to_itself(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for place in ("hello/", "countdown?", "chat/ws", "files"):
        assert f'"{place}' in page.text or f"`{place}" in page.text
    assert "//" not in page.text.replace("// ", "")  # nothing is loaded from elsewhere


def test_the_chat_has_replicas_of_its_own(app: FastAPI) -> None:
    spec = plan(app, target="hello.app:app", app_dir=str(EXAMPLES))
    assert {i.config.name: i.config.num_replicas for i in spec.deployments} == {"app": 1, "chat": 2}
    assert {route.path for route in spec.routes if route.owner == "chat"} == {"/chat", "/chat/ws"}
