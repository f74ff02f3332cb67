"""The API of Ollama over HTTP."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app_toolkit import Toolkit
from app_toolkit.chat import (
    ChatEvent,
    ChatMessage,
    ChatRequest,
    FinishEvent,
    Tool,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    live_response,
    ollama_router,
)
from app_toolkit.chat.echo import EchoModel
from app_toolkit.errors import QueueFull
from tests.chat.served import PausedModel, asking, in_process
from tests.patience import until

pytestmark = pytest.mark.anyio

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 900).decode()
SCHEMA = {"type": "object"}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Search.", "parameters": SCHEMA}}


class Recorded(EchoModel, name="recorded"):
    """An `EchoModel` that keeps its last request."""

    def __init__(self) -> None:
        super().__init__()
        self.request = ChatRequest(())

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.request = request
        if request.prompt == "/full":
            raise QueueFull("10 requests wait already")
        async for event in super().chat(request):
            yield event


async def tools(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    """Call a tool that the model runs, and two of the client."""
    yield ToolCallEvent(0, "c1", "search", '{"query": "x"}')
    yield ToolResultEvent("c1", "found")
    yield ToolCallEvent(1, "c2", "add", '{"a": ')
    yield ToolCallEvent(1, arguments="1}")
    yield ToolCallEvent(2, "c3", "now")
    yield FinishEvent("tool_calls")


async def lengths(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 0.5] for text in texts]


def built(kind: type[FastAPI] = FastAPI, prefix: str = "/ollama", **models: Any) -> FastAPI:
    app = kind()
    router = ollama_router(models or {"echo": EchoModel(), "tools": tools}, embeddings={"lengths": lengths})
    app.include_router(router, prefix=prefix)
    return app


async def lines(http: httpx.AsyncClient, path: str = "/ollama/api/chat", **body: Any) -> list[dict[str, Any]]:
    response = await http.post(path, json=body)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-ndjson")
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("kind", [FastAPI, Toolkit])
async def test_a_chat_is_streamed_by_default_and_ends_with_counts_and_durations(kind: type[FastAPI]) -> None:
    async with in_process(built(kind)) as http:
        *parts, last = await lines(http, model="echo:latest", messages=user("/reason tea please"))
    assert [part["message"] for part in parts if "thinking" not in part["message"]] == [
        {"role": "assistant", "content": "tea"},
        {"role": "assistant", "content": " please"},
    ]
    assert parts[0]["message"]["thinking"]
    assert {part["model"] for part in parts} == {"echo:latest"}
    assert not any(part["done"] for part in parts)
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
    assert last["eval_count"] == 2
    assert last["total_duration"] == last["prompt_eval_duration"] + last["eval_duration"]


async def test_a_whole_response_has_the_text_the_reasoning_and_the_calls() -> None:
    async with in_process(built()) as http:
        body = {"model": "echo", "messages": user("/reason /length tea please"), "stream": False}
        whole = (await http.post("/ollama/api/chat", json=body)).json()
        assert whole["message"].keys() == {"role", "content", "thinking"}
        assert (whole["message"]["content"], whole["done"], whole["done_reason"]) == ("tea please", True, "length")
        silent = (await http.post("/ollama/api/chat", json={**body, "think": False})).json()
        assert silent["message"] == {"role": "assistant", "content": "tea please"}
        called = (await http.post("/ollama/api/chat", json={**body, "model": "tools"})).json()
    assert called["message"]["tool_calls"] == [
        {"id": "c2", "function": {"index": 0, "name": "add", "arguments": {"a": 1}}},
        {"id": "c3", "function": {"index": 1, "name": "now", "arguments": {}}},
    ]
    assert called["done_reason"] == "stop"


async def test_the_calls_of_the_client_are_whole_and_those_of_the_model_are_left_out() -> None:
    async with in_process(built()) as http:
        call, last = await lines(http, model="tools", messages=user("go"))
    assert [each["function"]["name"] for each in call["message"]["tool_calls"]] == ["add", "now"]
    assert last["done"]


async def test_a_text_is_generated_from_a_prompt() -> None:
    model = Recorded()
    async with in_process(built(echo=model)) as http:
        *parts, last = await lines(http, "/ollama/api/generate", model="echo", prompt="tea please", system="Be kind.")
        assert "".join(part["response"] for part in parts) == "tea please"
        assert (last["response"], last["done"]) == ("", True)
        body = {"model": "echo", "prompt": "/reason tea", "images": [PIXEL], "stream": False}
        whole = (await http.post("/ollama/api/generate", json=body)).json()
    assert (whole["response"], bool(whole["thinking"]), "message" in whole) == ("tea", True, False)
    (message,) = model.request.messages
    (image,) = message.attachments
    assert (image.media_type, image.url) == ("image/png", f"data:image/png;base64,{PIXEL}")


async def test_a_model_gets_the_messages_tools_and_options() -> None:
    model = Recorded()
    call = {"function": {"name": "search", "arguments": {"query": "x"}}}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "look", "images": [PIXEL]},
        {"role": "assistant", "thinking": "Hm.", "tool_calls": [call, call]},
        {"role": "tool", "content": "first", "tool_name": "search"},
        {"role": "tool", "content": "second", "tool_name": "search"},
        {"role": "user", "content": "go on"},
    ]
    options = {"num_predict": 5, "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": "END", "num_ctx": 4096}
    asked = {"tools": [SEARCH], "options": options, "format": SCHEMA, "think": "low", "keep_alive": "5m"}
    async with in_process(built(echo=model)) as http:
        await lines(http, model="echo", messages=messages, **asked)
    system, question, answer, *results, last = model.request.messages
    assert (system, last) == (ChatMessage("system", "Be kind."), ChatMessage("user", "go on"))
    assert question.attachments[0].media_type == "image/png"
    assert answer.reasoning == "Hm."
    assert answer.tool_calls == tuple(ToolCall(f"call_2_{n}", "search", '{"query": "x"}') for n in (0, 1))
    assert [(each.text, each.tool_call_id) for each in results] == [("first", "call_2_0"), ("second", "call_2_1")]
    assert model.request.tools == (Tool("search", "Search.", {"type": "object"}),)
    got = model.request
    assert (got.max_tokens, got.temperature, got.top_p, got.seed, got.stop) == (5, 0.5, 0.9, 7, ("END",))
    assert got.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "response", "schema": {"type": "object"}},
    }
    assert got.extra == {"num_ctx": 4096, "think": "low", "reasoning_effort": "low"}


@pytest.mark.parametrize(("limit", "stop", "format"), [(-1, [], "json"), (None, ["A", "B"], "")])
async def test_limits_that_are_none_and_formats_that_are_json(limit: int | None, stop: list[str], format: str) -> None:
    model = Recorded()
    async with in_process(built(echo=model)) as http:
        await lines(
            http, model="echo", messages=user("tea"), options={"num_predict": limit, "stop": stop}, format=format
        )
    assert (model.request.max_tokens, model.request.stop) == (None, tuple(stop))
    assert model.request.response_format == ({"type": "json_object"} if format else None)


async def test_models_are_listed_and_shown() -> None:
    async with in_process(built()) as http:
        tags = (await http.get("/ollama/api/tags")).json()["models"]
        assert [each["name"] for each in tags] == ["echo", "tools", "lengths"]
        loaded = (await http.get("/ollama/api/ps")).json()["models"]
        assert [each["model"] for each in loaded] == ["echo", "tools", "lengths"]
        shown = (await http.post("/ollama/api/show", json={"model": "echo:latest"})).json()
        assert "completion" in shown["capabilities"]
        shown = (await http.post("/ollama/api/show", json={"name": "lengths"})).json()
        assert shown["capabilities"] == ["embedding"]
        assert (await http.post("/ollama/api/show", json={"model": "other"})).status_code == 404
        assert (await http.get("/ollama/api/version")).json()["version"]


async def test_a_request_without_messages_only_loads_or_unloads_a_model() -> None:
    async with in_process(built()) as http:
        for path, fields in (("chat", {"messages": []}), ("generate", {})):
            for keep_alive, reason in ((None, "load"), (0, "unload")):
                body = {"model": "echo", "keep_alive": keep_alive, **fields}
                answer = (await http.post(f"/ollama/api/{path}", json=body)).json()
                assert (answer["done"], answer["done_reason"]) == (True, reason)
        assert (await http.post("/ollama/api/generate", json={"model": "other"})).status_code == 404


async def test_texts_are_embedded() -> None:
    async with in_process(built()) as http:
        body = {"model": "lengths:latest", "input": ["tea", "coffee"]}
        answer = (await http.post("/ollama/api/embed", json=body)).json()
        assert (answer["embeddings"], answer["model"]) == ([[3.0, 0.5], [6.0, 0.5]], "lengths:latest")
        answer = (await http.post("/ollama/api/embeddings", json={"model": "lengths", "prompt": "tea"})).json()
        assert answer == {"embedding": [3.0, 0.5]}
        short = await http.post("/ollama/api/embed", json={**body, "dimensions": 1})
        assert (short.status_code, "2 dimensions only" in short.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("chat", {"model": "other", "messages": user("tea")}, 404, "'other' does not exist"),
        ("chat", {"messages": user("tea")}, 400, "the field model is missing"),
        ("chat", {"model": "echo", "messages": user("/fail")}, 503, ""),
        ("chat", {"model": "echo", "messages": user("/full")}, 503, "10 requests wait"),
        ("chat", {"model": "echo", "messages": [{"role": "judge", "content": "x"}]}, 400, "role 'judge'"),
        ("chat", {"model": "echo", "messages": [{"role": "tool", "content": "x", "tool_name": "a"}]}, 400, "of 'a'"),
        ("generate", {"model": "echo", "prompt": "x", "images": ["no base64!"]}, 400, "images[0]"),
        ("generate", {"model": "echo", "prompt": "x", "suffix": "y"}, 400, "suffix"),
        ("embed", {"model": "echo", "input": "x"}, 404, "computes no embeddings"),
        ("pull", {"model": "echo"}, 404, "no route"),
    ],
)
async def test_errors_have_the_format_of_ollama(path: str, body: dict[str, Any], status: int, error: str) -> None:
    async with in_process(built(echo=Recorded())) as http:
        response = await http.post(f"/ollama/api/{path}", json=body)
    assert response.status_code == status
    assert response.json().keys() == {"error"}
    assert error in response.json()["error"]
    assert ("retry-after" in response.headers) == (status == 503)


async def test_an_error_within_a_stream_is_its_last_line() -> None:
    async def broken(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        yield ToolCallEvent(0, "c1", "add", "[1]")

    async with in_process(built(echo=EchoModel(), broken=broken)) as http:
        *_, last = await lines(http, model="echo", messages=user("tea /break"))
        assert last == {"error": "the model was asked to break"}
        failed = await http.post("/ollama/api/chat", json={"model": "broken", "messages": user("x")})
    assert (failed.status_code, "no JSON object" in failed.json()["error"]) == (500, True)


async def test_a_model_stops_when_its_client_disconnects() -> None:
    model = PausedModel()
    async with asking(built(paused=model)) as http:
        body = {"model": "paused", "messages": user("tea")}
        async with http.stream("POST", "/ollama/api/chat", json=body) as response:
            await anext(response.aiter_lines())
            assert model.running == 1
        await until(lambda: model.running == 0)


async def test_a_quiet_stream_gets_an_empty_part_that_every_client_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_response, "HEARTBEAT_S", 0.02)
    model = PausedModel()
    async with asking(built(paused=model)) as http:
        body = {"model": "paused", "messages": user("tea")}
        async with http.stream("POST", "/ollama/api/chat", json=body) as response:
            parts = response.aiter_lines()
            assert json.loads(await anext(parts))["message"]["content"] == "one"
            assert json.loads(await anext(parts))["message"] == {"role": "assistant", "content": ""}
