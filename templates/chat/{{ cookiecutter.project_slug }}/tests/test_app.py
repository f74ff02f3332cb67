import json
{%- if cookiecutter.frontend == "built-in" %}
import re
{%- endif %}
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from {{ cookiecutter.package_name }} import model

STATIC = Path(model.__file__).parent / "static"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("chats")
        patched.setenv("CHAT_DATABASE", str(folder / "chats.db"))
        patched.setenv("CHAT_FILES", str(folder / "files"))
        patched.setattr(model, "PERIOD_S", 0)
        from {{ cookiecutter.package_name }}.app import app, store

        with TestClient(app) as client:
            client.cookies.set("visitor", "one")  # as the page does
            yield client
            client.portal.call(store.close)


def parts(client: TestClient, text: str) -> Iterator[dict[str, Any]]:
    message = {"id": "1", "role": "user", "parts": [{"type": "text", "text": text}]}
    with client.stream("POST", "/api/chat", json={"id": "chat", "messages": [message]}) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def test_a_chat_message_gets_an_answer_in_parts(client: TestClient) -> None:
    deltas = [part["delta"] for part in parts(client, "hello") if part["type"] == "text-delta"]
    assert len(deltas) > 10
    assert "> hello" in "".join(deltas)


def test_the_clients_of_openai_get_the_same_answer(client: TestClient) -> None:
    (entry,) = client.get("/v1/models").json()["data"]
    body = {"model": entry["id"], "messages": [{"role": "user", "content": "hello"}]}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert "> hello" in choice["message"]["content"]


def test_a_chat_without_an_active_answer_has_nothing_to_resume(client: TestClient) -> None:
    assert client.get("/api/chat/other/stream").status_code == 204

{% if cookiecutter.frontend == "react" %}
def test_the_page_is_served_after_its_build(client: TestClient) -> None:
    response = client.get("/")
    if (STATIC / "index.html").is_file():
        assert '<div id="root">' in response.text
    else:
        assert (response.status_code, "npm run build" in response.text) == (503, True)
{%- else %}
def test_the_page_and_its_files_are_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert client.get("/static/chat.js").status_code == 200
{%- endif %}


def test_a_conversation_is_stored_for_its_visitor(client: TestClient) -> None:
    assert list(parts(client, "hello"))
    assert [each["title"] for each in client.get("/api/conversations").json()] == ["hello"]
    assert client.get("/api/conversations", headers={"cookie": "visitor=other"}).json() == []
{%- if cookiecutter.frontend == "built-in" %}


def test_the_app_has_the_routes_that_the_page_calls(client: TestClient) -> None:
    scripts = "".join(path.read_text("utf-8") for path in STATIC.glob("*.js"))
    called = set(re.findall(r'"(api/[\w/]+)"', scripts))
    served = client.get("/openapi.json").json()["paths"]
    assert called
    assert [prefix for prefix in called if not any(path.startswith(f"/{prefix}") for path in served)] == []
{%- endif %}
