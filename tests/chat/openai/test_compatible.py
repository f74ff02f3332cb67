"""A model on another server, which is our own router under uvicorn, or a server that misbehaves."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from app_toolkit import ConfigError, Toolkit
from app_toolkit.chat import (
    ChatError,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    ErrorEvent,
    FinishEvent,
    ReasoningEvent,
    TextEvent,
    Tool,
    ToolCallEvent,
    UsageEvent,
    openai_router,
)
from app_toolkit.chat.echo import EchoModel
from app_toolkit.chat.openai.compatible import OpenAICompatible
from tests.chat.served import SOON_S, asking, chunks, served
from tests.patience import PATIENCE_S, until

pytest.importorskip("openai", reason="openai is not installed")

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret"


class Scripted:
    """A model that does what its prompt says, and knows how many of its generators run."""

    def __init__(self) -> None:
        self.running = 0
        self.requests: list[ChatRequest] = []

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.running += 1
        self.requests.append(request)
        try:
            if request.prompt == "busy":
                raise ChatError("too many tokens", status=429, code="quota", retry_after_s=7)
            if request.prompt == "silent":
                await asyncio.Event().wait()
            yield ReasoningEvent("hm")
            yield TextEvent("one")
            if request.prompt == "break":
                yield ErrorEvent("it broke", "broken")
                return
            if request.prompt == "wait":
                await asyncio.Event().wait()
            yield ToolCallEvent(0, "call_1", "look_up")
            yield ToolCallEvent(0, arguments='{"a": 1}')
            yield ToolCallEvent(1, "call_2", "look_up", "{}")
            yield UsageEvent(5, 7, reasoning_tokens=1, cached_tokens=2)
            yield FinishEvent("tool_calls")
        finally:
            self.running -= 1


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
async def url(scripted: Scripted) -> AsyncIterator[str]:
    """The URL of a server with our own router."""
    app = FastAPI()
    app.include_router(openai_router({"echo": EchoModel(), "scripted": scripted}), prefix="/v1")
    async with served(app) as found:
        yield f"{found}/v1"
    assert not scripted.running


@asynccontextmanager
async def connected(url: str, model: str | None = None, **options: Any) -> AsyncIterator[OpenAICompatible]:
    made = OpenAICompatible(url, model, **options)
    try:
        yield made
    finally:
        await made.aclose()


def said(text: str, **fields: Any) -> ChatRequest:
    return ChatRequest((ChatMessage("user", text),), **fields)


async def events(model: OpenAICompatible, request: ChatRequest) -> list[ChatEvent]:
    return [event async for event in model.chat(request)]


async def refused(model: OpenAICompatible, request: ChatRequest) -> ChatError:
    with pytest.raises(ChatError) as raised:
        await events(model, request)
    return raised.value


@asynccontextmanager
async def answering(respond: Callable[[Request], Coroutine[Any, Any, Response]]) -> AsyncIterator[str]:
    """The URL of a server that gives every completion the response of a function."""
    app = FastAPI()
    app.add_route("/v1/chat/completions", respond, methods=["POST"])
    async with served(app) as url:
        yield f"{url}/v1"


async def test_the_events_are_those_of_the_model_on_the_server(url: str) -> None:
    async with connected(url, "scripted") as model:
        assert await events(model, said("go")) == [
            ReasoningEvent("hm"),
            TextEvent("one"),
            ToolCallEvent(0, "call_1", "look_up", executed=False),
            ToolCallEvent(0, arguments='{"a": 1}'),
            ToolCallEvent(1, "call_2", "look_up", "{}", executed=False),
            UsageEvent(5, 7, reasoning_tokens=1, cached_tokens=2),
            FinishEvent("tool_calls"),
        ]


async def test_the_server_gets_the_request(url: str, scripted: Scripted) -> None:
    request = said(
        "go",
        model="scripted",
        tools=(Tool("look_up", "Looks up.", {"type": "object"}),),
        tool_choice="look_up",
        max_tokens=3,
        temperature=0.5,
        top_p=0.25,
        stop=("a", "b"),
        seed=1,
        user="me",
        extra={"reasoning_effort": "low", "unknown": 1},
    )
    async with connected(url, extra_body={"top_k": 5}) as model:
        await events(model, request)
    (found,) = scripted.requests
    assert found.extra == {"reasoning_effort": "low", "top_k": 5}
    assert [getattr(found, name) for name in ("messages", "tools", "tool_choice", "max_tokens", "temperature")] == [
        getattr(request, name) for name in ("messages", "tools", "tool_choice", "max_tokens", "temperature")
    ]
    assert (found.top_p, found.stop, found.seed, found.user) == (0.25, ("a", "b"), 1, "me")


async def test_a_model_on_another_server_serves_a_router(url: str) -> None:
    app = Toolkit()
    app.include_router(openai_router({"mine": OpenAICompatible.bind(url, "echo")}), prefix="/v1")
    body = {"model": "mine", "messages": [{"role": "user", "content": "hello big world"}]}
    async with asking(app) as http:
        response = await http.post("/v1/chat/completions", json={**body, "max_tokens": 2, "stream": True})
        texts = [choice["delta"].get("content", "") for each in chunks(response.text) for choice in each["choices"]]
        assert "".join(texts) == "hello big"
        whole = (await http.post("/v1/chat/completions", json=body)).json()
        assert (whole["choices"][0]["message"]["content"], whole["usage"]["total_tokens"]) == ("hello big world", 6)
        failed = await http.post(
            "/v1/chat/completions", json={**body, "messages": [{"role": "user", "content": "/fail"}]}
        )
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "asked_to_fail")


async def test_an_error_before_the_first_event_keeps_its_status_and_its_retry_after(url: str) -> None:
    async with connected(url, "scripted") as model:
        error = await refused(model, said("busy"))
    assert (error.status, error.message, error.code, error.retry_after_s) == (429, "too many tokens", "quota", 7)
    async with connected(url) as model:
        error = await refused(model, said("go", model="missing"))
    assert (error.status, error.code) == (404, "model_not_found")


async def test_an_error_after_the_first_event_ends_the_response(url: str) -> None:
    async with connected(url, "scripted") as model:
        assert await events(model, said("break")) == [
            ReasoningEvent("hm"),
            TextEvent("one"),
            ErrorEvent("it broke", "broken"),
        ]


async def test_a_cancelled_request_stops_the_model_on_the_server(url: str, scripted: Scripted) -> None:
    async with connected(url, "scripted") as model:
        asked = asyncio.create_task(events(model, said("wait")))
        await until(lambda: scripted.running == 1)
        asked.cancel()
        async with asyncio.timeout(SOON_S):
            await until(lambda: scripted.running == 0)
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_a_request_without_a_free_connection_is_refused(url: str, scripted: Scripted) -> None:
    async with connected(url, "scripted", max_connections=1, pool_timeout_s=0.01) as model:
        first = asyncio.create_task(events(model, said("wait")))
        await until(lambda: scripted.running == 1)
        error = await refused(model, said("go"))
        assert (error.status, error.code, error.retry_after_s) == (503, "upstream_busy", 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (await events(model, said("go")))[-1] == FinishEvent("tool_calls")


async def test_a_server_that_is_silent_for_too_long_is_given_up(url: str, scripted: Scripted) -> None:
    async with connected(url, "scripted", chunk_timeout_s=0.05) as model:
        error = await refused(model, said("silent"))
        assert (error.status, error.code) == (504, "upstream_timeout")
    async with connected(url, "scripted", chunk_timeout_s=0.5) as model, asyncio.timeout(PATIENCE_S):
        found: list[ChatEvent] = []
        while not found:  # the first event may be too late, too
            with suppress(ChatError):
                found = await events(model, said("wait"))
        late = ErrorEvent("the model server did not answer in time", "upstream_timeout")
        assert found == [ReasoningEvent("hm"), TextEvent("one"), late]
    await until(lambda: scripted.running == 0)


async def test_a_server_that_does_not_listen_is_a_bad_gateway() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and it does not listen
        async with connected(f"http://127.0.0.1:{bound.getsockname()[1]}/v1", "a") as model:
            error = await refused(model, said("go"))
    assert (error.status, error.code) == (502, "upstream_unreachable")
    assert "127.0.0.1" not in error.message


async def stream(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


EVENT = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
EARLY = ErrorEvent("the model server ended its response early", "upstream_error")
NO_JSON = ErrorEvent("the model server sent a chunk that is not valid JSON", "upstream_error")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([EVENT], EARLY),
        ([EVENT, b"data: [DONE]\n\n"], EARLY),
        ([EVENT, b"data: {\n\n"], NO_JSON),
        ([EVENT, b'data: {"error": {"message": "full", "code": 503}}\n\n'], ErrorEvent("full", "503")),
        ([b": ping\n\n", EVENT, b": ping\n\n", EVENT[:9]], EARLY),
    ],
)
async def test_a_broken_stream_is_an_error(parts: list[bytes], expected: ErrorEvent) -> None:
    async def respond(request: Request) -> Response:
        return StreamingResponse(stream(*parts), media_type="text/event-stream")

    async with answering(respond) as url, connected(url, "a") as model:
        assert await events(model, said("go")) == [TextEvent("a"), expected]


@pytest.mark.parametrize(
    ("response", "status", "message"),
    [
        (partial(JSONResponse, {"detail": "no such thing"}, 404), 404, "no such thing"),
        (partial(JSONResponse, {"object": "error", "message": "too long"}, 400), 400, "too long"),
        (partial(Response, "<html>", 502), 502, "the model server answered with status 502"),
        (partial(JSONResponse, {"choices": []}), 502, "the model server ended its response early"),
        (
            partial(JSONResponse, {"error": {"message": f"wrong key {KEY}"}}, 401),
            502,
            "the model server refused the API key",
        ),
        (partial(Response, b'data: {"error": {"message": "full", "code": 503}}\n\n'), 503, "full"),
        (partial(Response, b'data: {"error": {"message": "full"}}\n\n'), 502, "full"),
    ],
)
async def test_errors_of_other_servers_are_understood(
    response: Callable[[], Response], status: int, message: str
) -> None:
    async def respond(request: Request) -> Response:
        return response()

    async with answering(respond) as url, connected(url, "a") as model:
        error = await refused(model, said("go"))
    assert (error.status, error.message) == (status, message)


@pytest.mark.parametrize(("value", "seconds"), [("3", 3), ("x", None), ("-1", None), ("inf", None), ("", None)])
async def test_only_a_number_of_seconds_is_a_time_to_retry(value: str, seconds: float | None) -> None:
    async def respond(request: Request) -> Response:
        return JSONResponse({"error": {"message": "full"}}, 503, {"retry-after": value})

    async with answering(respond) as url, connected(url, "a") as model:
        assert (await refused(model, said("go"))).retry_after_s == seconds


async def test_a_request_is_retried_if_configured() -> None:
    tries: list[str] = []

    async def respond(request: Request) -> Response:
        tries.append(request.url.path)
        return JSONResponse({"error": {"message": "full"}}, 503, {"retry-after-ms": "1"})

    async with answering(respond) as url, connected(url, "a", max_retries=1) as model:
        assert (await refused(model, said("go"))).status == 503
    assert len(tries) == 2


@pytest.fixture
async def headers() -> AsyncIterator[tuple[str, list[dict[str, str]]]]:
    """The URL of a server, and the headers of the requests that it has received."""
    received: list[dict[str, str]] = []

    async def respond(request: Request) -> Response:
        received.append(dict(request.headers))
        return StreamingResponse(stream(EVENT.replace(b"}]}", b', "finish_reason": "stop"}]}')))

    async with answering(respond) as url:
        yield url, received


async def test_only_a_key_that_is_named_is_sent(
    headers: tuple[str, list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, received = headers
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "of another server")
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")
    (tmp_path / "key").write_text(f"{KEY}\n")
    for options in ({}, {"api_key_env": "MY_KEY"}, {"api_key_file": str(tmp_path / "key")}):
        async with connected(url, "a", **options) as model:
            await events(model, said("go"))
    assert [each.get("authorization") for each in received] == [None, f"Bearer {KEY}", f"Bearer {KEY}"]
    assert not [name for each in received for name, value in each.items() if value == "of another server"]


async def test_the_key_is_in_no_log_and_no_text(
    headers: tuple[str, list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, received = headers
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    bound = OpenAICompatible.bind(url, "a", api_key_env="MY_KEY")
    async with connected(url, "a", api_key_env="MY_KEY") as model:
        await events(model, said("go"))
        assert f"{model!r}" == f"<OpenAICompatible a at {url}>"
    assert received[0]["authorization"].endswith(KEY)
    assert KEY not in caplog.text + repr(bound)


def test_a_missing_key_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    make = partial(OpenAICompatible, "http://localhost/v1")
    with pytest.raises(ConfigError, match="the environment variable NO_SUCH_KEY, for the API key, is not set"):
        make(api_key_env="NO_SUCH_KEY")
    with pytest.raises(ConfigError, match=r"api_key_file '.*/missing' cannot be read: No such file or directory"):
        make(api_key_file=str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"api_key_file '.*/empty' is empty"):
        make(api_key_file=str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="api_key_env or api_key_file, not both"):
        make(api_key_env="HOME", api_key_file="x")


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("localhost:8000/v1", {}, "must be a URL with http:// or https://"),
        ("http://[::1/v1", {}, "must be a URL with http:// or https://"),
        ("http://me:sk-very-secret@localhost/v1", {}, "must not have a user, a password or a query"),
        ("http://localhost/v1", {"connect_timeout_s": 0}, "connect_timeout_s = 0: must be a number above 0"),
        ("http://localhost/v1", {"chunk_timeout_s": float("nan")}, "chunk_timeout_s = nan: must be a number above 0"),
        ("http://localhost/v1", {"max_connections": 0}, "max_connections = 0 must be at least 1"),
    ],
)
def test_a_wrong_option_is_named(url: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        OpenAICompatible(url, **options)
    assert KEY not in str(raised.value)
