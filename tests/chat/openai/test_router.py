"""Chat completions, text completions and embeddings over HTTP: most tests with a `Toolkit`, others with `FastAPI`."""

import array
import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypeVar

import httpx
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.middleware.gzip import GZipMiddleware

from app_toolkit import ConfigError, Deployment, Toolkit, batch
from app_toolkit.chat import (
    ChatError,
    ChatEvent,
    ChatRequest,
    Embedding,
    ErrorEvent,
    FinishEvent,
    ReasoningEvent,
    SourceEvent,
    StatusEvent,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
    live_response,
    openai_router,
)
from app_toolkit.chat.echo import EchoModel
from app_toolkit.chat.openai.completion import Completion
from app_toolkit.chat.openai.wire import ChatCompletion, EmbeddingList, ServedModels
from app_toolkit.errors import DeadlineExceeded, QueueFull, RemoteError
from tests.chat.served import SOON_S, asking, chunks, frames, in_process
from tests.docs.pages import commands, page
from tests.patience import until

F = TypeVar("F", bound=FastAPI)

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
ERRORS: dict[str, Exception] = {
    "queue": QueueFull("10 requests wait already"),
    "deadline": DeadlineExceeded("the deadline of this call passed"),
    "remote": RemoteError("ValueError: a secret"),
    "bug": ValueError("a secret"),
    "limit": ChatError("too many tokens", status=429),
    "later": ChatError("too many tokens", status=429, retry_after_s=6.5),
    "context": ChatError("the prompt is too long", code="context_length_exceeded"),
    "http": HTTPException(402, {"reason": "no money"}, {"x-own": "1"}),
}


class Model:
    """A model that waits for a permit before each word, and remembers what it was asked."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)
        self.requests: list[ChatRequest] = []
        self.running = 0
        self.cleaned = 0

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.requests.append(request)
        self.running += 1
        try:
            number = 0
            while True:
                await self.permits.acquire()
                number += 1
                if request.prompt == f"fail {number}" and request.choice == 0:
                    raise ChatError("it failed", status=409, code="failed")
                yield TextEvent(f"{request.choice}.{number} ")
        finally:
            self.running -= 1
            await asyncio.sleep(0)  # a cleanup may wait
            self.cleaned += 1

    def allow(self, words: int) -> None:
        for _ in range(words):
            self.permits.release()


async def scripted(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    match request.prompt.partition(" "):
        case ("tools", _, _):
            yield ReasoningEvent("which ")
            yield ReasoningEvent("tools?")
            yield ToolCallEvent(0, "call_a", "a", '{"x"')
            yield ToolCallEvent(1, "own", "c", "{}", executed=True)
            yield ToolCallEvent(2, "call_b", "b", executed=False)
            yield ToolCallEvent(0, "call_a", "a", ": 1}")
            yield ToolResultEvent("own", 1)
            yield ToolCallEvent(2, arguments="{}")
        case ("unequal", _, _):
            for number in range(request.choice + 1):
                yield TextEvent(str(number))
            yield UsageEvent(5, request.choice + 1, 1, 2)
            yield FinishEvent("length" if request.choice else "content_filter")
        case ("sources", _, _):
            yield TextEvent("ab")
            yield SourceEvent("https://example.com", "Example")
            yield StatusEvent("Searching")
            yield TextEvent("c")
        case ("late", _, _):
            yield TextEvent("text")
            yield FinishEvent("stop")
            yield TextEvent("after the end")
            yield UsageEvent(1, 1)
        case ("nothing", _, _):
            return
        case ("lines", _, _):
            yield TextEvent("a\nb\r\u2028\u2029\x85é\ud83d 日")
        case ("error-first", _, _):
            yield ErrorEvent("it broke", "broken")
        case ("error", _, _):
            yield TextEvent("text")
            yield ErrorEvent("it broke", "broken")
        case ("wrong", _, _):
            yield "text"  # type: ignore[misc]
        case ("cancelled", _, _):
            raise asyncio.CancelledError
        case ("raise", _, name):
            raise ERRORS[name]
        case ("raise-late", _, name):
            yield TextEvent("text")
            raise ERRORS[name]


class Encoder(Deployment, name="encoder", resources={"num_cpus": 0.1}):
    def __init__(self) -> None:
        self.batches: list[int] = []

    @batch(max_batch_size=4, batch_wait_timeout_s=0.05)
    async def embed(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 0.5] for text in texts]


async def lengths(texts: Any) -> list[list[float]]:
    return [[float(len(text)), float("nan") if text == "nan" else 0.25] for text in texts if text != "drop"]


def app_of(kind: type[F], model: Model) -> F:
    async def key(authorization: Annotated[str | None, Header()] = None) -> None:
        if authorization == "Bearer wrong":
            raise HTTPException(401, "the key is wrong", {"www-authenticate": "Bearer"})

    app = kind()
    # What an app without a lifespan of the toolkit has bound lives as long as the process.
    bound = kind is Toolkit
    models = {"echo": EchoModel.bind() if bound else EchoModel(), "waits": model, "org/scripted": scripted}
    embeddings = {"encoder": Encoder.bind() if bound else Encoder(), "lengths": lengths}
    router = openai_router(models, embeddings=embeddings, max_choices=4)
    app.include_router(router, prefix="/v1", dependencies=[Depends(key)])
    return app


@pytest.fixture(scope="module")
def app() -> tuple[Toolkit, Model]:
    """To create the routes takes longer than most tests."""
    model = Model()
    return app_of(Toolkit, model), model


@pytest.fixture
def model(app: tuple[Toolkit, Model]) -> Model:
    _, model = app
    model.__init__()  # type: ignore[misc]
    return model


@pytest.fixture
async def http(app: tuple[Toolkit, Model], model: Model) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(app[0]) as client:
        yield client
    assert not model.running


def ask(model: str, prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], **fields}


async def stream(http: httpx.AsyncClient, model: str, prompt: str, **fields: Any) -> list[Any]:
    response = await http.post(COMPLETIONS, json=ask(model, prompt, stream=True, **fields))
    assert response.status_code == 200, response.text
    return chunks(response.text)


def deltas(found: list[Any], index: int = 0) -> list[Any]:
    return [each["delta"] for chunk in found for each in chunk["choices"] if each["index"] == index]


def reasons(found: list[Any], index: int = 0) -> list[Any]:
    return [each["finish_reason"] for chunk in found for each in chunk["choices"] if each["index"] == index]


async def test_the_chunks_of_a_stream_have_one_id_and_one_role_and_one_end(http: httpx.AsyncClient) -> None:
    found = await stream(http, "echo", "hello big world")
    assert len({(each["id"], each["created"], each["model"], each["object"]) for each in found}) == 1
    assert (found[0]["model"], found[0]["object"]) == ("echo", "chat.completion.chunk")
    assert found[0]["id"].startswith("chatcmpl-")
    texts = [{"content": text} for text in ("hello", " big", " world")]
    assert deltas(found) == [{"role": "assistant", "content": ""}, *texts, {}]
    assert reasons(found) == [None] * 4 + ["stop"]
    assert all(each["choices"][0]["logprobs"] is None for each in found)
    assert not any("usage" in each for each in found)
    other = await stream(http, "echo", "hello")
    assert other[0]["id"] != found[0]["id"]


async def test_a_stream_is_not_kept_in_buffers_and_has_nothing_but_data(http: httpx.AsyncClient) -> None:
    response = await http.post(COMPLETIONS, json=ask("echo", "a b", stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers
    assert "content-encoding" not in response.headers
    assert {line.partition(":")[0] for line in response.text.splitlines()} == {"data", ""}


async def test_the_usage_is_the_last_chunk_if_the_client_asks_for_it(http: httpx.AsyncClient) -> None:
    *others, last = await stream(http, "org/scripted", "unequal", n=3, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 6,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    assert last["id"] == others[0]["id"]
    assert all(each["usage"] is None and each["choices"] for each in others)


async def test_choices_are_interleaved_and_each_ends_for_itself(http: httpx.AsyncClient) -> None:
    found = await stream(http, "org/scripted", "unequal", n=3)
    for index in range(3):
        assert deltas(found, index)[0]["role"] == "assistant"
        assert "".join(each.get("content", "") for each in deltas(found, index)) == "012"[: index + 1]
        assert [each for each in reasons(found, index) if each] == ["length" if index else "content_filter"]
    order = [each["choices"][0]["index"] for each in found]
    assert order != sorted(order)
    assert order[-1] == 2


async def test_events_after_the_end_are_left_out_and_a_silent_model_stops(http: httpx.AsyncClient) -> None:
    *found, last = await stream(http, "org/scripted", "late", stream_options={"include_usage": True})
    assert deltas(found) == [{"role": "assistant", "content": ""}, {"content": "text"}, {}]
    assert last["usage"]["total_tokens"] == 2
    found = await stream(http, "org/scripted", "nothing")
    assert (deltas(found), reasons(found)) == ([{"role": "assistant", "content": ""}, {}], [None, "stop"])


async def test_parallel_tool_calls_stream_in_parts(http: httpx.AsyncClient) -> None:
    found = await stream(http, "org/scripted", "tools", tools=[TOOL])
    role, *rest, end = deltas(found)
    assert (role, end, reasons(found)[-1]) == ({"role": "assistant", "content": ""}, {}, "tool_calls")
    assert rest == [
        {"reasoning_content": "which "},
        {"reasoning_content": "tools?"},
        {"tool_calls": [_call(0, "call_b", "b", "")]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {"tool_calls": [_call(1, "call_a", "a", '{"x"')]},
        {"tool_calls": [{"index": 1, "function": {"arguments": ": 1}"}}]},
    ]


def _call(index: int, id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_a_whole_completion_has_the_same_content(http: httpx.AsyncClient) -> None:
    response = await http.post(COMPLETIONS, json=ask("org/scripted", "tools"))
    document = response.json()
    (choice,) = document["choices"]
    calls = [("call_b", "b", "{}"), ("call_a", "a", '{"x": 1}')]
    assert choice == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "reasoning_content": "which tools?",
            "tool_calls": [
                {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id, name, arguments in calls
            ],
        },
        "logprobs": None,
        "finish_reason": "tool_calls",
    }
    ChatCompletion.model_validate(document, extra="forbid")
    document = (await http.post(COMPLETIONS, json=ask("org/scripted", "unequal", n=2))).json()
    ChatCompletion.model_validate(document, extra="forbid")
    assert [each["message"]["content"] for each in document["choices"]] == ["0", "01"]
    assert [each["finish_reason"] for each in document["choices"]] == ["content_filter", "length"]
    assert document["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_sources_are_annotations_and_what_has_no_place_is_left_out(http: httpx.AsyncClient, stream: bool) -> None:
    response = await http.post(COMPLETIONS, json=ask("org/scripted", "sources", stream=stream))
    if stream:
        found = deltas(chunks(response.text))
        assert found[1] == {"content": "ab"}
        assert found[3:] == [{"content": "c"}, {}]
        annotations = found[2]["annotations"]
    else:
        ChatCompletion.model_validate(response.json(), extra="forbid")
        annotations = response.json()["choices"][0]["message"]["annotations"]
    place = {"start_index": 2, "end_index": 2}
    citation = {**place, "title": "Example", "url": "https://example.com"}
    assert annotations == [{"type": "url_citation", "url_citation": citation}]


async def test_text_of_every_kind_survives_the_way(http: httpx.AsyncClient) -> None:
    response = await http.post(COMPLETIONS, json=ask("org/scripted", "lines", stream=True))
    assert len(response.text.splitlines()) == response.text.count("\n")
    text = "".join(each.get("content", "") for each in deltas(chunks(response.text)))
    assert text == "a\nb\r\u2028\u2029\x85é\ufffd 日"
    whole = (await http.post(COMPLETIONS, json=ask("org/scripted", "lines"))).json()
    assert whole["choices"][0]["message"]["content"] == text


async def test_the_model_gets_the_fields_of_the_request(model: Model) -> None:
    model.allow(1)
    body = {
        "model": "m",
        "messages": [
            {"role": "developer", "content": "be brief"},
            {
                "role": "user",
                "name": "ann",
                "content": [
                    {"type": "text", "text": "what"},
                    {"type": "image_url", "image_url": {"url": "https://host/cat.png?size=1", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "data:image/webp;base64,AA=="}},
                    {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}},
                    {"type": "file", "file": {"file_data": "AA==", "filename": "a.pdf"}},
                    {"type": "text", "text": "is this?"},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "a cat"},
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "look_up"}},
        "max_tokens": 7,
        "max_completion_tokens": 1,
        "temperature": 1,
        "top_p": 0.5,
        "stop": "end",
        "seed": 3,
        "response_format": {"type": "json_object"},
        "user": "u",
        "frequency_penalty": 0.1,
        "parallel_tool_calls": True,
    }
    app = FastAPI()
    app.include_router(openai_router({"m": _first_word(model)}))
    async with in_process(app) as http:
        assert (await http.post("/chat/completions", json=body)).status_code == 200
    (got,) = model.requests
    system, user, assistant, tool = got.messages
    assert (system.role, system.text) == ("system", "be brief")
    assert (user.role, user.text) == ("user", "what\nis this?")
    assert [(each.media_type, each.url, each.name) for each in user.attachments] == [
        ("image/png", "https://host/cat.png?size=1", None),
        ("image/webp", "data:image/webp;base64,AA==", None),
        ("audio/mpeg", "data:audio/mpeg;base64,AA==", None),
        ("application/pdf", "data:application/pdf;base64,AA==", "a.pdf"),
    ]
    assert [(each.id, each.name, each.arguments) for each in assistant.tool_calls] == [("c", "look_up", "{}")]
    assert (tool.role, tool.tool_call_id, tool.text) == ("tool", "c", "a cat")
    assert [(each.name, each.parameters) for each in got.tools] == [("look_up", {"type": "object"})]
    assert (got.tool_choice, got.max_tokens, got.temperature, got.top_p) == ("look_up", 1, 1.0, 0.5)
    assert (got.stop, got.seed, got.user, got.model, got.choice) == (("end",), 3, "u", "m", 0)
    assert got.response_format == {"type": "json_object"}
    assert got.extra == {"frequency_penalty": 0.1, "parallel_tool_calls": True}


def _first_word(model: Model) -> Any:
    async def chat(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        async for event in model.chat(request):
            yield event
            return

    return chat


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": None}, "messages", "invalid_type"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"content": "a"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].image_url",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ["a"]}]}]},
            "messages[0].content[0].text",
            "invalid_type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"filename": "f"}}]}]},
            "messages[0].content[0].file.file_data",
            "invalid_value",
        ),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"n": 5}, "n", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"stream": "maybe"}, "stream", "invalid_type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "missing_required_parameter"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools", "missing_required_parameter"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "invalid_value"),
        ({"model": 5}, "model", "invalid_type"),
    ],
)
async def test_a_wrong_field_is_named(model: Model, fields: dict[str, Any], param: str, code: str) -> None:
    async with in_process(app_of(FastAPI, model)) as http:
        response = await http.post(COMPLETIONS, json={**ask("echo", "hello"), **fields})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], error["code"]) == (param, code)
    assert error["message"]


CUSTOM = {"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "text"}}}


@pytest.mark.parametrize(
    ("tools", "choice", "expected"),
    [
        ([TOOL, CUSTOM, {"type": "web_search"}], {"type": "custom", "custom": {"name": "apply_patch"}}, "auto"),
        ([TOOL, CUSTOM, {"type": "web_search", "function": None}], "required", "required"),
        ([CUSTOM], "required", None),
        (
            [TOOL, {"type": "function", "function": {"name": "other"}}],
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "look_up"}}]},
            },
            "required",
        ),
    ],
)
async def test_tools_of_other_types_and_their_choice_are_ignored(
    tools: list[Any], choice: Any, expected: str | None
) -> None:
    got: list[ChatRequest] = []

    async def model(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        got.append(request)
        yield TextEvent("yes")

    app = FastAPI()
    app.include_router(openai_router(model))
    function = {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    custom = {"id": "b", "type": "custom", "custom": {"name": "apply_patch", "input": "x"}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": [function, custom]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "no such file", "is_error": True},
    ]
    body = {"model": "default", "messages": messages, "tools": tools, "tool_choice": choice}
    async with in_process(app) as http:
        assert (await http.post("/chat/completions", json=body)).status_code == 200
    (request,) = got
    assert (request.tool_choice, [tool.name for tool in request.tools]) == (expected, ["look_up"] if expected else [])
    assert request.messages[1].tool_calls == (
        ToolCall("a", "look_up", "{}"),
        ToolCall("b", "apply_patch", '{"input": "x"}'),
    )
    assert [message.is_error for message in request.messages] == [False, False, False, True]


async def test_a_body_that_is_no_object_and_an_unknown_model_have_openai_s_errors(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    for content in (b"{", b"[]", b"", b'"text"'):
        response = await http.post(COMPLETIONS, content=content, headers=headers)
        assert response.status_code == 400, content
        assert response.json()["error"]["type"] == "invalid_request_error"
    without_model = await http.post(COMPLETIONS, json={"messages": [{"role": "user", "content": "a"}]})
    assert without_model.json()["error"]["param"] == "model"
    for streamed in (False, True):
        response = await http.post(COMPLETIONS, json=ask("missing", "hello", stream=streamed))
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["code"], error["type"], error["param"]) == ("model_not_found", "invalid_request_error", None)
        assert "'missing'" in error["message"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("prompt", "status", "kind", "code"),
    [
        ("raise queue", 503, "server_error", "queue_full"),
        ("raise deadline", 504, "server_error", "deadline_exceeded"),
        ("raise remote", 500, "server_error", None),
        ("raise bug", 500, "server_error", None),
        ("raise limit", 429, "rate_limit_error", "rate_limit_exceeded"),
        ("raise later", 429, "rate_limit_error", "rate_limit_exceeded"),
        ("raise context", 400, "invalid_request_error", "context_length_exceeded"),
        ("raise http", 402, "invalid_request_error", None),
        ("error-first", 500, "server_error", "broken"),
        ("wrong", 500, "server_error", None),
        ("cancelled", 500, "server_error", None),
    ],
)
async def test_an_exception_before_the_first_event_has_its_status(
    model: Model, prompt: str, status: int, kind: str, code: str | None, streamed: bool
) -> None:
    async with in_process(app_of(FastAPI, model)) as http:
        response = await http.post(COMPLETIONS, json=ask("org/scripted", prompt, stream=streamed, n=2))
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"], error["param"]) == (status, kind, code, None)
    assert "secret" not in response.text
    seconds = "7" if prompt == "raise later" else "1" if status in (429, 503) else None
    assert response.headers.get("retry-after") == seconds
    assert response.headers.get("x-own") == ("1" if status == 402 else None)


@pytest.mark.parametrize("name", ["bug", "queue"])
async def test_an_exception_after_the_first_event_is_the_last_event(http: httpx.AsyncClient, name: str) -> None:
    response = await http.post(COMPLETIONS, json=ask("org/scripted", f"raise-late {name}", stream=True))
    assert response.status_code == 200
    *_, text, last = frames(response.text)
    assert json.loads(text)["choices"][0]["delta"] == {"content": "text"}
    error = json.loads(last)["error"]
    assert (error["type"], error["code"]) == ("server_error", "queue_full" if name == "queue" else None)
    assert "secret" not in last
    broken = await http.post(COMPLETIONS, json=ask("org/scripted", "error", stream=True))
    assert json.loads(frames(broken.text)[-1])["error"]["message"] == "it broke"


async def test_errors_of_the_app_s_own_dependencies_have_the_format_and_other_routes_do_not(model: Model) -> None:
    app = app_of(FastAPI, model)

    @app.get("/other/{number}")
    async def other(number: int) -> int:
        return number

    async with in_process(app) as http:
        response = await http.get("/v1/models", headers={"authorization": "Bearer wrong"})
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        error = response.json()["error"]
        assert (error["message"], error["code"]) == ("the key is wrong", "invalid_api_key")
        assert (await http.get("/other/x")).status_code == 422
        assert (await http.get("/unknown")).json() == {"detail": "Not Found"}


async def test_a_failed_choice_closes_the_others(http: httpx.AsyncClient, model: Model) -> None:
    model.allow(100)
    response = await http.post(COMPLETIONS, json=ask("waits", "fail 3", n=3, stream=True))
    last = json.loads(frames(response.text)[-1])
    assert last["error"]["code"] == "failed"
    assert (model.running, model.cleaned) == (0, 3)
    model.allow(100)
    response = await http.post(COMPLETIONS, json=ask("waits", "fail 1", n=3))
    assert (response.status_code, response.json()["error"]["code"]) == (409, "failed")
    assert model.running == 0


@pytest.mark.parametrize("words", [0, 3])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_disconnect_closes_the_generators_of_all_choices(
    http: httpx.AsyncClient, model: Model, caplog: pytest.LogCaptureFixture, streamed: bool, words: int
) -> None:
    model.allow(words)
    asked = asyncio.create_task(http.post(COMPLETIONS, json=ask("waits", "hello", n=2, stream=streamed)))
    await until(lambda: model.running == 2 and (model.permits.locked() or not words))
    asked.cancel()
    async with asyncio.timeout(SOON_S):
        await until(lambda: model.cleaned == 2)
    assert model.running == 0
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_middleware_neither_buffers_a_stream_nor_hides_a_disconnect(model: Model) -> None:
    app = app_of(FastAPI, model)
    app.add_middleware(GZipMiddleware, minimum_size=1)

    @app.middleware("http")
    async def add_header(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        response.headers["x-own"] = "1"
        return response

    async with asking(app) as http:
        model.allow(2)
        async with http.stream("POST", COMPLETIONS, json=ask("waits", "hello", stream=True)) as response:
            assert response.headers["x-own"] == "1"
            assert "content-encoding" not in response.headers
            text = ""
            async for part in response.aiter_text():
                text += part
                if "0.2" in text:
                    break
        async with asyncio.timeout(SOON_S):
            await until(lambda: model.cleaned == 1)
        asked = asyncio.create_task(http.post(COMPLETIONS, json=ask("waits", "hello")))
        await until(lambda: model.running == 1)
        asked.cancel()
        async with asyncio.timeout(SOON_S):
            await until(lambda: model.cleaned == 2)


async def test_a_disconnect_stops_a_model_that_never_waits(model: Model) -> None:
    closed = asyncio.Event()

    async def endless(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        try:
            while True:
                yield TextEvent("word ")
        finally:
            closed.set()

    app = FastAPI()
    app.include_router(openai_router(endless))
    async with asking(app) as http:
        async with http.stream("POST", "/chat/completions", json=ask("default", "go", stream=True)) as response:
            await anext(response.aiter_bytes())
        async with asyncio.timeout(SOON_S):
            await closed.wait()


async def test_a_comment_is_sent_while_a_model_thinks(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_response, "HEARTBEAT_S", 0.01)
    async with asking(app_of(FastAPI, model)) as http:
        async with http.stream("POST", COMPLETIONS, json=ask("waits", "fail 2", stream=True)) as response:
            lines = response.aiter_lines()
            assert [await anext(lines) for _ in range(4)] == [": keep-alive", ""] * 2
            model.allow(1)
            text = ""
            while "0.1" not in text:
                text = await anext(lines)
            assert [await anext(lines) for _ in range(3)] == ["", ": keep-alive", ""]
            model.allow(1)
            rest = [line async for line in lines if line.startswith("data:")]
        assert "it failed" in rest[-1]


async def test_a_server_that_reports_a_closed_connection_ends_the_stream(model: Model) -> None:
    model.allow(10)
    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if len(sent) > 2:
            raise OSError("the connection is closed")

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    request = ChatRequest((), model="m")
    await Completion(model.chat, request, 2).send_stream(False, {"type": "http"}, receive, send)
    assert (model.running, model.cleaned) == (0, 2)


async def test_models_are_listed_and_found_by_name(http: httpx.AsyncClient) -> None:
    document = (await http.get("/v1/models")).json()
    ServedModels.model_validate(document, extra="forbid")
    names = ["echo", "waits", "org/scripted", "encoder", "lengths"]
    assert (document["object"], [each["id"] for each in document["data"]]) == ("list", names)
    for each in document["data"]:
        assert each["object"] == "model"
        assert (await http.get(f"/v1/models/{each['id']}")).json() == each
    missing = await http.get("/v1/models/missing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(("name", "second"), [("encoder", 0.5), ("lengths", 0.25)])
async def test_embeddings_have_the_format_that_the_client_asks_for(
    http: httpx.AsyncClient, name: str, second: float
) -> None:
    texts = ["x" * length for length in range(20)]
    response = await http.post("/v1/embeddings", json={"model": name, "input": texts, "unknown": 1})
    document = response.json()
    EmbeddingList.model_validate(document, extra="forbid")
    assert [each["embedding"] for each in document["data"]] == [[float(length), second] for length in range(20)]
    assert [each["index"] for each in document["data"]] == list(range(20))
    assert document["model"] == name
    body = {"model": name, "input": "abc", "encoding_format": "base64", "dimensions": 2}
    (vector,) = (await http.post("/v1/embeddings", json=body)).json()["data"]
    assert array.array("f", base64.b64decode(vector["embedding"])).tolist() == [3.0, second]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input": [[1, 2]]}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": None}, 400, "input"),
        ({"dimensions": 3}, 400, "dimensions"),
        ({"encoding_format": "int8"}, 400, "encoding_format"),
        ({"model": "echo"}, 404, None),
        ({"input": ["drop"]}, 500, None),
        ({"input": ["nan"]}, 500, None),
    ],
)
async def test_embeddings_that_cannot_be_computed_have_an_error(
    model: Model, fields: dict[str, Any], status: int, param: str | None
) -> None:
    async with in_process(app_of(FastAPI, model)) as http:
        response = await http.post("/v1/embeddings", json={"model": "lengths", "input": "a", **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


class Counting(Deployment, max_ongoing_requests=64, max_queued_requests=4, resources={"num_cpus": 0.1}):
    @batch(max_batch_size=64, batch_wait_timeout_s=0.005)
    async def embed(self, texts: list[str]) -> list[Embedding | Exception]:
        return [
            ChatError("a text is empty") if not text else Embedding([float(len(text)), 1.0], tokens=len(text.split()))
            for text in texts
        ]


async def test_requests_with_many_texts_are_one_call_each_and_report_their_tokens() -> None:
    app = Toolkit()
    app.include_router(openai_router(scripted, embeddings={"counting": Counting.bind()}))
    texts = ["x y" + "z" * number for number in range(512)]

    async def ask(http: httpx.AsyncClient, texts: list[str]) -> httpx.Response:
        return await http.post("/embeddings", json={"model": "counting", "input": texts})

    async with asking(app) as http:
        *responses, poisoned = await asyncio.gather(*[ask(http, texts) for _ in range(6)], ask(http, ["a", "", "b"]))
    for response in responses:
        assert response.status_code == 200
        document = response.json()
        assert [each["embedding"][0] for each in document["data"]] == [3.0 + number for number in range(512)]
        assert document["usage"] == {"prompt_tokens": 1_024, "total_tokens": 1_024}
    assert (poisoned.status_code, poisoned.json()["error"]["message"]) == (400, "a text is empty")


async def test_a_disconnect_cancels_embeddings() -> None:
    events: list[str] = []

    async def slow(texts: Any) -> list[list[float]]:
        events.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            events.append("ended")
        return []

    app = FastAPI()
    app.include_router(openai_router(scripted, embeddings={"slow": slow}))
    async with asking(app) as http:
        asked = asyncio.create_task(http.post("/embeddings", json={"model": "slow", "input": "a"}))
        await until(lambda: events == ["began"])
        asked.cancel()
        await until(lambda: events == ["began", "ended"])
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_the_command_of_the_page_is_answered() -> None:
    shown = page("docs/chat-openai.md")
    (console,) = shown.shown("console")
    (curl,) = commands(console.removeprefix("$ "))
    url, _, body, _, header = curl.arguments
    app = shown.run()["app"]
    async with asking(app) as http:
        path, headers = f"/{url.partition('/')[2]}", dict([header.split(": ")])
        response = await http.post(path, content=body, headers=headers)
        assert response.json()["choices"][0]["message"]["content"] == "HELLO "
        for key, status in (("replace-this-example-key", 200), ("other", 401)):
            response = await http.get("/protected/v1/models", headers={"authorization": f"Bearer {key}"})
            assert response.status_code == status
        assert response.json()["error"]["code"] == "invalid_api_key"
        response = await http.post("/protected/v1/embeddings", json={"model": "encoder", "input": "abc"})
        assert response.status_code == 401
        key = {"authorization": "Bearer replace-this-example-key"}
        response = await http.post("/protected/v1/embeddings", json={"model": "encoder", "input": "abc"}, headers=key)
        assert response.json()["data"][0]["embedding"] == [3.0, 1.0]


def test_the_openapi_document_has_the_requests_responses_and_errors(model: Model) -> None:
    document = app_of(FastAPI, model).openapi()
    paths, schemas = document["paths"], document["components"]["schemas"]
    assert list(paths) == [
        "/v1/models",
        "/v1/models/{model}",
        COMPLETIONS,
        "/v1/completions",
        "/v1/responses",
        "/v1/responses/{response_id}",
        "/v1/responses/{response_id}/cancel",
        "/v1/responses/{response_id}/input_items",
        "/v1/responses/input_tokens",
        "/v1/embeddings",
    ]
    completions = paths[COMPLETIONS]["post"]
    assert completions["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/ChatCompletionRequest"
    )
    assert completions["responses"].keys() == {"200", "4XX", "5XX"}
    assert completions["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}
    assert {"ChatCompletion", "ResponseDocument", "EmbeddingList", "ServedModels", "OpenAIErrorDocument"} <= set(
        schemas
    )
    without = FastAPI()
    without.include_router(openai_router(scripted))
    assert "/embeddings" not in without.openapi()["paths"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"models": {}}, "at least one model"),
        ({"models": scripted, "max_choices": 0}, "max_choices = 0"),
        ({"models": scripted, "embeddings": {"e": 5}}, "the embeddings 'e' are 5"),
        ({"models": scripted, "embeddings": {"e": EchoModel.bind()}}, "a method embed"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        openai_router(**options)


async def test_unknown_paths_and_methods_below_the_prefix_have_openai_s_errors_and_other_routes_work(
    model: Model,
) -> None:
    app = app_of(FastAPI, model)

    @app.get("/v1/later")
    @app.post("/v1/slash/")
    async def later() -> str:
        return "later"

    async with asking(app) as http:
        for method, path in (("GET", "/v1/unknown"), ("POST", "/v1/audio/speech"), ("DELETE", "/v1/x/y")):
            response = await http.request(method, path)
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
            assert path in response.json()["error"]["message"]
        for method, path, allowed in (("GET", COMPLETIONS, "POST"), ("POST", "/v1/models", "GET")):
            response = await http.request(method, path)
            assert (response.status_code, response.headers["allow"]) == (405, allowed)
            assert response.json()["error"]["type"] == "invalid_request_error"
        assert (await http.get("/v1/later")).json() == "later"
        assert (await http.post("/v1/slash/")).json() == "later"
        redirected = await http.post(f"{COMPLETIONS}/")
        assert (redirected.status_code, redirected.headers["location"]) == (
            307,
            str(http.base_url).rstrip("/") + COMPLETIONS,
        )
        assert (await http.get("/other")).json() == {"detail": "Not Found"}
    without = FastAPI()
    without.include_router(openai_router(scripted))
    async with in_process(without) as http:
        assert (await http.get("/unknown")).json() == {"detail": "Not Found"}


LEGACY = "/v1/completions"


@pytest.mark.parametrize("stream", [False, True])
async def test_text_completion_has_the_choices_of_each_prompt(http: httpx.AsyncClient, stream: bool) -> None:
    body = {"model": "echo", "prompt": ["a b", "c"], "n": 2, "echo": True, "max_tokens": 1, "stream": stream}
    response = await http.post(LEGACY, json={**body, "stream_options": {"include_usage": True}})
    assert response.status_code == 200
    texts, reasons = [""] * 4, [""] * 4
    documents = chunks(response.text) if stream else [response.json()]
    for document in documents:
        assert document["object"] == "text_completion"
        assert document["id"].startswith("cmpl-")
        for choice in document["choices"]:
            assert choice.keys() == {"index", "text", "logprobs", "finish_reason"}
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert texts == ["a ba", "a ba", "cc", "cc"]
    assert reasons == ["length", "length", "stop", "stop"]
    usage = documents[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 4, 7)


async def test_text_completion_leaves_out_reasoning_and_tools(http: httpx.AsyncClient) -> None:
    whole = (await http.post(LEGACY, json={"model": "org/scripted", "prompt": "tools"})).json()
    assert whole["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]
    streamed = await http.post(LEGACY, json={"model": "org/scripted", "prompt": "error", "stream": True})
    assert frames(streamed.text)[-1] == json.dumps(
        {"error": {"message": "it broke", "type": "server_error", "param": None, "code": "broken"}},
        separators=(",", ":"),
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"n": 5}, "n"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 0}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
    ],
)
async def test_text_completion_refuses_options_that_chat_models_do_not_have(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    response = await http.post(LEGACY, json={"model": "echo", "prompt": "a", **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("fields", "param"), [({"logprobs": True}, "logprobs"), ({"top_logprobs": 3}, "top_logprobs")])
async def test_probabilities_of_tokens_are_refused(http: httpx.AsyncClient, fields: Any, param: str) -> None:
    response = await http.post(COMPLETIONS, json={**ask("echo", "hello"), **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    unset = {"logprobs": False, "top_logprobs": 0}
    assert (await http.post(COMPLETIONS, json={**ask("echo", "hello"), **unset})).status_code == 200


@pytest.mark.parametrize("path", [COMPLETIONS, LEGACY])
async def test_text_ends_at_stop_also_if_the_model_ignores_it(http: httpx.AsyncClient, path: str) -> None:
    prompt = ask("echo", "one two /forever") if path == COMPLETIONS else {"model": "echo", "prompt": "one two /forever"}
    (choice,) = (await http.post(path, json={**prompt, "stop": ["wo on", "x"]})).json()["choices"]
    text = choice["message"]["content"] if path == COMPLETIONS else choice["text"]
    assert (text, choice["finish_reason"]) == ("one t", "stop")
    (choice,) = (await http.post(COMPLETIONS, json={**ask("echo", "one tw"), "stop": "two"})).json()["choices"]
    assert choice["message"]["content"] == "one tw"
    (*_, last) = await stream(http, "echo", "one two six", stop="six", stream_options={"include_usage": True})
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (3, 3)


async def test_model_gets_the_reasoning_of_earlier_responses() -> None:
    got: list[ChatRequest] = []

    async def model(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        got.append(request)
        yield TextEvent("yes")

    app = FastAPI()
    app.include_router(openai_router(model))
    messages = [
        {"role": "user", "content": "a", "reasoning_content": "ignored"},
        {"role": "assistant", "content": "b", "reasoning_content": "because"},
        {"role": "assistant", "content": "c", "reasoning": "therefore"},
        {"role": "user", "content": "d"},
    ]
    async with in_process(app) as http:
        assert (await http.post("/chat/completions", json={"model": "default", "messages": messages})).is_success
    assert [message.reasoning for message in got[0].messages] == ["", "because", "therefore", ""]
