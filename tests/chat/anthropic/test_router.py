"""The Messages API over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI

from app_toolkit import Toolkit
from app_toolkit.chat import (
    ChatError,
    ChatEvent,
    ChatRequest,
    TextEvent,
    anthropic_router,
    api_keys,
    live_response,
    openai_router,
)
from app_toolkit.chat.anthropic.wire import AnthropicErrorDocument, MessageDocument
from app_toolkit.chat.echo import EchoModel
from app_toolkit.errors import DeadlineExceeded, QueueFull
from tests.chat.served import SOON_S, PausedModel, asking, in_process
from tests.docs.pages import commands, page
from tests.patience import until

pytestmark = pytest.mark.anyio

KEY = "a-key-for-the-tests"
VERSION = {"anthropic-version": "2023-06-01"}
ERRORS: dict[str, Exception] = {
    "queue": QueueFull("10 requests wait already"),
    "deadline": DeadlineExceeded("the deadline of this call passed"),
    "bug": ValueError("a secret"),
    "later": ChatError("too many tokens", status=429, retry_after_s=6.5),
    "context": ChatError("the prompt is too long", code="context_length_exceeded"),
    "forbidden": ChatError("not for you", status=403),
}


class Recorded(EchoModel, name="recorded"):
    """An `EchoModel` that keeps its last request, and raises the error that the prompt names."""

    def __init__(self) -> None:
        super().__init__()
        self.request: ChatRequest | None = None

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.request = request
        if request.prompt in ERRORS:
            raise ERRORS[request.prompt]
        async for event in super().chat(request):
            yield event


async def plain(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield TextEvent("plain")


def app_of(models: Any, kind: type[FastAPI] = Toolkit) -> FastAPI:
    app = kind()
    app.include_router(anthropic_router(models), prefix="/v1")
    return app


def ask(prompt: str, model: str = "echo", **fields: Any) -> dict[str, Any]:
    return {"model": model, "max_tokens": 50, "messages": [{"role": "user", "content": prompt}], **fields}


def events_of(body: str) -> list[Any]:
    """The documents of a stream, whose types are also those of their events."""
    documents = []
    for frame in body.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        documents.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {documents[-1]['type']}"
    return documents


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
async def http(recorded: Recorded) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(app_of({"echo": recorded, "plain": plain})) as client:
        yield client


async def test_a_message_is_one_document_or_a_stream(http: httpx.AsyncClient) -> None:
    whole = await http.post("/v1/messages", json=ask("a b"))
    assert whole.headers["request-id"] == whole.headers["x-request-id"]
    document = MessageDocument.model_validate(whole.json())
    assert document.content == [{"type": "text", "text": "a b"}]
    streamed = await http.post("/v1/messages", json=ask("a b", stream=True))
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers["request-id"]
    documents = events_of(streamed.text)
    assert (documents[0]["message"]["model"], documents[-2]["delta"]["stop_reason"]) == ("echo", "end_turn")


async def test_the_request_of_an_agent_reaches_the_model(http: httpx.AsyncClient, recorded: Recorded) -> None:
    """The headers and the body are those that Claude Code 2.1 sends."""
    cached = {"cache_control": {"type": "ephemeral"}}
    headers = {
        **VERSION,
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
        "anthropic-dangerous-direct-browser-access": "true",
        "x-app": "cli",
        "x-stainless-retry-count": "0",
        "authorization": "Bearer any",
    }
    body = {
        "model": "echo",
        "max_tokens": 32_000,
        "stream": True,
        "system": [{"type": "text", "text": "You are an agent."}, {"type": "text", "text": "Rules.", **cached}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello", **cached}]},
            {"role": "system", "content": "There are agents."},
        ],
        "tools": [{"name": "Bash", "description": "Runs.", "input_schema": {"type": "object"}, **cached}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "user_1"},
    }
    response = await http.post("/v1/messages?beta=true", headers=headers, json=body)
    assert response.status_code == 200
    assert recorded.request is not None
    texts = [message.text for message in recorded.request.messages]
    assert texts == ["You are an agent.\nRules.", "hello", "There are agents."]
    assert (recorded.request.user, recorded.request.tools[0].name) == ("user_1", "Bash")


async def test_tokens_are_counted_by_the_model(http: httpx.AsyncClient) -> None:
    body = {"model": "echo", "messages": [{"role": "user", "content": "a b c"}], "system": "d"}
    assert (await http.post("/v1/messages/count_tokens", json=body)).json() == {"input_tokens": 4}
    refused = await http.post("/v1/messages/count_tokens", json={**body, "model": "plain"})
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "the model 'plain' does not count tokens")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "status", "kind"),
    [
        ("queue", 529, "overloaded_error"),
        ("deadline", 504, "timeout_error"),
        ("bug", 500, "api_error"),
        ("later", 429, "rate_limit_error"),
        ("context", 400, "invalid_request_error"),
        ("forbidden", 403, "permission_error"),
    ],
)
async def test_an_error_before_the_first_event_is_a_response(
    http: httpx.AsyncClient, prompt: str, status: int, kind: str, stream: bool
) -> None:
    response = await http.post("/v1/messages", json=ask(prompt, stream=stream))
    error = AnthropicErrorDocument.model_validate(response.json())
    assert (response.status_code, error.error.type) == (status, kind)
    assert error.request_id == response.headers["request-id"]
    assert "secret" not in response.text
    assert ("retry-after" in response.headers) == (status in (429, 529))


async def test_wrong_requests_are_errors_of_the_protocol(http: httpx.AsyncClient) -> None:
    for body, status, words in (
        ({**ask("a"), "max_tokens": None}, 400, "max_tokens"),
        (ask("a", messages=[{"role": "robot", "content": "a"}]), 400, "messages[0].role"),
        (ask("a", messages=[{"role": "user", "content": [{"type": "audio"}]}]), 400, "messages[0].content[0].type"),
        (ask("a", "missing"), 404, "the model 'missing' does not exist"),
    ):
        response = await http.post("/v1/messages", json=body)
        assert (response.status_code, response.json()["type"]) == (status, "error")
        assert words in response.json()["error"]["message"]
    unknown = await http.post("/v1/messages/batches", json={})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    wrong = await http.get("/v1/messages")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")


async def test_a_body_that_is_too_long_is_an_error_of_the_protocol() -> None:
    app = FastAPI()
    app.include_router(anthropic_router(plain, max_body_size=100))
    async with in_process(app) as http:
        response = await http.post("/messages", json=ask("a" * 100, "default"))
    assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")
    assert response.json()["request_id"].startswith("req_")


async def test_an_error_after_the_first_event_is_the_last_event(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/messages", json=ask("a /break", stream=True))
    *_, last = events_of(response.text)
    assert last["error"] == {
        "type": "api_error",
        "message": "the model was asked to break",
        "details": {"error_code": "model_error"},
    }
    assert (await http.post("/v1/messages", json=ask("a /break"))).status_code == 500


@pytest.mark.parametrize("is_first", [True, False])
async def test_the_models_have_the_format_of_the_client_beside_those_of_openai(is_first: bool) -> None:
    app = Toolkit()
    routers = [anthropic_router({"org/plain": plain}), openai_router({"org/plain": plain})]
    for router in routers if is_first else reversed(routers):
        app.include_router(router, prefix="/v1")
    async with in_process(app) as http:
        assert (await http.get("/v1/models")).json()["object"] == "list"
        assert (await http.get("/v1/models/org/plain")).json()["object"] == "model"
        listed = (await http.get("/v1/models", headers=VERSION)).json()
        assert (listed["first_id"], listed["has_more"]) == ("org/plain", False)
        assert (await http.get("/v1/models/org/plain", headers=VERSION)).json() == listed["data"][0]
        missing = await http.get("/v1/models/missing", headers=VERSION)
        assert missing.json()["error"]["type"] == "not_found_error"
        assert (await http.post("/v1/messages", json=ask("a", "org/plain"))).status_code == 200
        chat = {"model": "org/plain", "messages": [{"role": "user", "content": "a"}]}
        assert (await http.post("/v1/chat/completions", json=chat)).status_code == 200


async def test_the_models_need_no_header_where_only_one_router_has_them(http: httpx.AsyncClient) -> None:
    assert [model["id"] for model in (await http.get("/v1/models")).json()["data"]] == ["echo", "plain"]
    app = Toolkit()
    app.include_router(openai_router(plain), prefix="/v1")
    async with in_process(app) as other:
        assert (await other.get("/v1/models", headers=VERSION)).json()["object"] == "list"


async def test_a_key_is_sent_in_one_of_two_headers() -> None:
    app = FastAPI()
    app.include_router(anthropic_router(plain), prefix="/v1", dependencies=[Depends(api_keys({"ada": KEY}))])
    async with in_process(app) as http:
        for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
            assert (await http.post("/v1/messages", json=ask("a", "default"), headers=headers)).status_code == 200
        for wrong in ({}, {"x-api-key": "another-key-for-the-tests"}):
            response = await http.post("/v1/messages", json=ask("a", "default"), headers=wrong)
            assert (response.status_code, response.json()["error"]["type"]) == (401, "authentication_error")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_is_closed_when_its_client_disconnects(stream: bool) -> None:
    model = PausedModel()
    async with asking(app_of({"paused": model})) as http:
        task = asyncio.create_task(http.post("/v1/messages", json=ask("a", "paused", stream=stream)))
        await until(lambda: model.running == 1)
        task.cancel()
        async with asyncio.timeout(SOON_S):
            await until(lambda: model.running == 0)


async def test_a_slow_model_has_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_response, "HEARTBEAT_S", 0.01)
    model = PausedModel()
    async with (
        asking(app_of({"paused": model})) as http,
        http.stream("POST", "/v1/messages", json=ask("a", "paused", stream=True)) as response,
    ):
        events = (line async for line in response.aiter_lines() if line.startswith("event:"))
        while await anext(events) != "event: ping":
            pass
        model.released.set()
        *_, last = [event async for event in events]
    assert last == "event: message_stop"


async def test_the_command_of_the_page_is_answered() -> None:
    shown = page("docs/chat-anthropic.md")
    (console,) = shown.shown("console")
    (curl,) = commands(console.removeprefix("$ "))
    url, _, body, _, header = curl.arguments
    async with asking(shown.run()["app"]) as http:
        response = await http.post(f"/{url.partition('/')[2]}", content=body, headers=dict([header.split(": ")]))
    assert response.json()["content"] == [{"type": "text", "text": "HELLO "}]
