"""The chat example: its page, and its assistant behind two protocols."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app_toolkit.chat import ChatMessage, ChatRequest, TextEvent
from app_toolkit.replica.host import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    path = list(sys.path)
    with TestClient(load("chat.app:app", str(ROOT / "examples"))) as client:
        yield client
    sys.path[:] = path


def test_the_page_has_everything_that_it_needs(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for path in re.findall(r'(?:href|src)="(static/[^"]+)"', page.text):
        assert client.get(f"/{path}").status_code == 200, path
    script = client.get("/static/chat.js").text
    for path in re.findall(r'from "\./([^"]+)"', script):
        assert client.get(f"/static/{path}").status_code == 200, path
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", page.text), "nothing comes from elsewhere"


def test_the_assistant_quotes_the_documentation(client: TestClient) -> None:
    body = {"id": "one", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "batch calls"}]}]}
    with client.stream("POST", "/api/chat", json=body) as answer:
        data = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    parts = [json.loads(each) for each in data[:-1]]
    assert "batching.md" in "".join(part["delta"] for part in parts if part["type"] == "text-delta")
    assert client.get("/api/chat/one/stream").status_code == 204


def test_clients_of_openai_reach_the_same_assistant(client: TestClient) -> None:
    body = {"model": "assistant", "messages": [{"role": "user", "content": "How does autoscaling work?"}]}
    answer = client.post("/v1/chat/completions", json=body).json()
    assert "autoscaling.md" in answer["choices"][0]["message"]["content"]


@pytest.mark.anyio
async def test_a_question_without_an_answer_is_told_what_to_ask(client: TestClient) -> None:
    from chat.assistant import Assistant  # importable once the app is

    assistant = Assistant(str(ROOT / "docs"), period_s=0)
    request = ChatRequest((ChatMessage("user", "zzzz"),))
    answer = "".join([event.text async for event in assistant.chat(request) if isinstance(event, TextEvent)])
    assert answer.startswith("I found nothing")
