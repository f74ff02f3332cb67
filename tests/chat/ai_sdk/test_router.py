"""The HTTP protocol of the router for the Vercel AI SDK."""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.testclient import TestClient

from app_toolkit import ConfigError, Toolkit
from app_toolkit.chat import (
    ApprovalRequest,
    ChatError,
    ChatEvent,
    ChatRequest,
    DataEvent,
    DocumentEvent,
    ErrorEvent,
    FileEvent,
    FinishEvent,
    ReasoningEvent,
    SourceEvent,
    StatusEvent,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
    ai_sdk_router,
)
from app_toolkit.chat.ai_sdk import router as ai_sdk
from app_toolkit.chat.echo import EchoModel
from app_toolkit.errors import QueueTimeout, ReplicaLost, StreamLogFull
from app_toolkit.streaming import MemoryStreamLog, StreamLimits, StreamLogDeployment
from app_toolkit.streaming.stream_log import Append
from tests.chat.served import HeldClock, asking
from tests.chat.ui_stream import checked
from tests.docs.pages import page
from tests.patience import until

pytestmark = pytest.mark.anyio

Say = ChatEvent | BaseException | str

UNUSABLE = (
    "the request is not a chat: its last message has no part with a text or a file; send parts, as the AI SDK does"
)

USAGE = {"inputTokens": 2, "outputTokens": 2, "totalTokens": 4, "reasoningTokens": 0, "cachedInputTokens": 0}


class Scripted:
    """A model that yields what it is given. Its words of `/slow` chats wait for permits."""

    def __init__(self) -> None:
        self.script: list[Say] = []
        self.requests: list[ChatRequest] = []
        self.permits = asyncio.Semaphore(0)
        self.running = 0

    def allow(self, words: int) -> None:
        for _ in range(words):
            self.permits.release()

    async def scripted(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.requests.append(request)
        for each in self.script:
            if isinstance(each, BaseException):
                raise each
            yield each  # type: ignore[misc]

    async def slow(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.running += 1
        try:
            for word in request.prompt.split():
                await self.permits.acquire()
                if word == "/raise":
                    raise ChatError("the model was asked to raise", status=503)
                yield TextEvent(word)
        finally:
            self.running -= 1


class Talk:
    """A client of one server."""

    def __init__(self, http: httpx.AsyncClient, model: Scripted, log: MemoryStreamLog) -> None:
        self.http = http
        self.model = model
        self.log = log

    async def ask(self, *script: Say, path: str = "/api/chat", **fields: Any) -> httpx.Response:
        self.model.script = list(script)
        return await self.http.post(path, json=body("hello", model="scripted", **fields))

    async def parts(self, *script: Say, path: str = "/api/chat", **fields: Any) -> list[dict[str, Any]]:
        answer = await self.ask(*script, path=path, **fields)
        assert answer.status_code == 200, answer.text
        return checked(answer.text)

    @asynccontextmanager
    async def follow(self, method: str, path: str, **options: Any) -> AsyncIterator["Follower"]:
        async with self.http.stream(method, path, **options) as response:
            yield Follower(response)


class Follower:
    """Reads a stream part by part."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.text = ""
        self._chunks = response.aiter_text()

    async def until(self, text: str) -> None:
        """Read until the response has this text."""
        while text not in self.text:
            self.text += await anext(self._chunks)

    async def rest(self) -> list[dict[str, Any]]:
        """Read to the end, and return all parts."""
        async for chunk in self._chunks:
            self.text += chunk
        return checked(self.text)


def body(text: str, **fields: Any) -> dict[str, Any]:
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": "chat", "messages": [message], "trigger": "submit-message", **fields}


def kinds(parts: list[dict[str, Any]]) -> list[str]:
    return [part["type"] for part in parts]


def texts(parts: list[dict[str, Any]], kind: str = "text") -> str:
    return "".join(part["delta"] for part in parts if part["type"] == f"{kind}-delta")


def app_of(kind: Callable[..., FastAPI], model: Scripted, log: MemoryStreamLog) -> FastAPI:
    app = kind()
    models: dict[str, Any] = {"echo": EchoModel(), "scripted": model.scripted, "slow": model.slow}
    app.include_router(ai_sdk_router(models, log=log), prefix="/api/chat")
    app.include_router(ai_sdk_router(models, resume=False, version=6), prefix="/plain")
    return app


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    model, log = Scripted(), MemoryStreamLog(StreamLimits(max_bytes=50 * 200))
    async with asking(app_of(Toolkit, model, log)) as http:
        yield Talk(http, model, log)
        model.allow(1_000)


async def test_a_response_is_a_stream_of_parts_with_the_headers_of_the_protocol(talk: Talk) -> None:
    answer = await talk.http.post("/api/chat", json=body("hi there", messageId=None, custom=1))
    assert {name: answer.headers[name] for name in (*ai_sdk.HEADERS, "connection")} == {
        **ai_sdk.HEADERS,
        "connection": "keep-alive",
    }
    assert "content-length" not in answer.headers
    start, *rest = checked(answer.text)
    assert start["messageId"].startswith("msg_")
    assert rest == [
        {"type": "start-step"},
        {"type": "text-start", "id": "text-1"},
        {"type": "text-delta", "id": "text-1", "delta": "hi"},
        {"type": "text-delta", "id": "text-1", "delta": " there"},
        {"type": "text-end", "id": "text-1"},
        {"type": "finish-step"},
        {"type": "finish", "messageMetadata": {"usage": USAGE}},
    ]


async def test_a_tool_of_the_client_is_called_with_the_arguments_as_they_come(talk: Talk) -> None:
    tools = {"weather": {"description": "Get it", "parameters": {"type": "object"}}}
    parts = checked((await talk.http.post("/api/chat", json=body("/tool", tools=tools))).text)
    assert parts[2:-2] == [
        {"type": "tool-input-start", "toolCallId": "call_0", "toolName": "weather"},
        {"type": "tool-input-delta", "toolCallId": "call_0", "inputTextDelta": '{"text": '},
        {"type": "tool-input-delta", "toolCallId": "call_0", "inputTextDelta": '"hello"}'},
        {"type": "tool-input-available", "toolCallId": "call_0", "toolName": "weather", "input": {"text": "hello"}},
    ]


async def test_sources_files_data_and_the_status_are_parts(talk: Talk) -> None:
    parts = await talk.parts(
        StatusEvent("Searching"),
        TextEvent("a"),
        SourceEvent("https://example.com", "Example", "s1"),
        DocumentEvent("Manual", "application/pdf", "manual.pdf", "s2"),
        DataEvent("progress", 0.5, transient=True),
        TextEvent("b"),
        FileEvent("image/png", data=b"abc"),
        DataEvent("chart", [1], "c1"),
    )
    text = {"id": "text-1"}
    document = {"sourceId": "s2", "mediaType": "application/pdf", "title": "Manual", "filename": "manual.pdf"}
    assert parts[2:-2] == [
        {"type": "data-status", "data": {"text": "Searching"}, "transient": True},
        {"type": "text-start", **text},
        {"type": "text-delta", **text, "delta": "a"},
        {"type": "source-url", "sourceId": "s1", "url": "https://example.com", "title": "Example"},
        {"type": "source-document", **document},
        {"type": "data-progress", "data": 0.5, "transient": True},
        {"type": "text-delta", **text, "delta": "b"},
        {"type": "text-end", **text},
        {"type": "file", "url": "data:image/png;base64,YWJj", "mediaType": "image/png"},
        {"type": "data-chart", "data": [1], "id": "c1"},
    ]


PAY = ApprovalRequest(ToolCall("c1", "pay", '{"amount": 5}'))


async def test_a_client_of_version_6_is_asked_for_an_approval_and_an_older_one_is_not(talk: Talk) -> None:
    call, asked = {"toolCallId": "c1", "providerExecuted": True}, [TextEvent("I can pay."), PAY]
    parts = await talk.parts(*asked, path="/plain")
    assert parts[5:-2] == [
        {"type": "tool-input-start", "toolName": "pay", **call},
        {"type": "tool-input-available", "toolName": "pay", "input": {"amount": 5}, **call},
        {"type": "tool-approval-request", "approvalId": "c1", "toolCallId": "c1"},
    ]
    assert parts[-1]["finishReason"] == "stop"
    assert kinds(await talk.parts(*asked))[4:] == ["text-end", "finish-step", "finish"]


@pytest.mark.parametrize("approved", [True, False])
async def test_the_model_gets_the_answer_of_the_user(talk: Talk, approved: bool) -> None:
    approval = {"id": "c1", "approved": approved, "reason": "because"}
    call = {"type": "tool-pay", "toolCallId": "c1", "state": "approval-responded", "input": {"amount": 5}}
    continued = {"id": "m2", "role": "assistant", "parts": [{"type": "step-start"}, {**call, "approval": approval}]}
    events: list[Say] = [ToolResultEvent("c1", "paid")] if approved else []
    messages = [*body("go")["messages"], continued]
    answer = await talk.ask(*events, TextEvent("Done."), path="/plain", messages=messages)
    parts = checked(answer.text, known_calls=frozenset({"c1"}))
    (request,) = talk.model.requests
    if approved:
        assert request.approved_calls == (PAY.call,)
        assert [message.role for message in request.messages] == ["user"]
        assert parts[2] == {"type": "tool-output-available", "toolCallId": "c1", "output": "paid"}
    else:
        assert request.approved_calls == ()
        assert [(message.role, message.text) for message in request.messages[1:]] == [
            ("assistant", ""),
            ("tool", "because"),
        ]
        assert parts[2] == {"type": "tool-output-denied", "toolCallId": "c1"}


async def test_events_after_results_of_tools_are_a_new_step_with_new_ids(talk: Talk) -> None:
    parts = await talk.parts(
        TextEvent("a"),
        ToolCallEvent(0, "c1", "one", "{}"),
        ToolCallEvent(1, "c2", "two", '{"x":'),
        ToolResultEvent("c1", {"y": 1}),
        ToolCallEvent(1, arguments="1}"),
        ToolResultEvent("c2", "it broke", is_error=True),
        TextEvent("b"),
        ToolCallEvent(0, "c3", "one"),
        ToolResultEvent("c3", None),
        ReasoningEvent("c"),
        TextEvent("d"),
        UsageEvent(1, 2),
    )
    assert kinds(parts).count("start-step") == 3
    assert [part["id"] for part in parts if part["type"].endswith("-start") and "id" in part] == [
        "text-1",
        "text-2",
        "reasoning-3",
        "text-4",
    ]
    own = {"providerExecuted": True}
    assert [part for part in parts if part["type"].startswith("tool-output")] == [
        {"type": "tool-output-available", "toolCallId": "c1", "output": {"y": 1}, **own},
        {"type": "tool-output-error", "toolCallId": "c2", "errorText": "it broke", **own},
        {"type": "tool-output-available", "toolCallId": "c3", "output": None, **own},
    ]
    inputs = {part["toolCallId"]: part["input"] for part in parts if part["type"] == "tool-input-available"}
    assert inputs == {"c1": {}, "c2": {"x": 1}, "c3": {}}


async def test_a_tool_that_the_model_runs_itself_is_executed_by_the_provider(talk: Talk) -> None:
    parts = await talk.parts(
        ToolCallEvent(0, "c1", "search", '{"x":', executed=True),
        ToolCallEvent(0, arguments="1}"),
        ToolCallEvent(1, "c2", "pay", executed=False),
        ToolResultEvent("c1", 7),
        path="/plain",
    )
    own = {"toolCallId": "c1", "providerExecuted": True}
    search = [part for part in parts if part.get("toolCallId") == "c1"]
    assert search == [
        {"type": "tool-input-start", "toolName": "search", **own},
        {"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": '{"x":'},
        {"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": "1}"},
        {"type": "tool-input-available", "toolName": "search", "input": {"x": 1}, **own},
        {"type": "tool-output-available", "output": 7, **own},
    ]
    assert not any("providerExecuted" in part for part in parts if part.get("toolCallId") == "c2")
    assert parts[-1]["finishReason"] == "tool-calls"


async def test_a_tool_is_available_to_the_client_before_the_text_that_follows_it(talk: Talk) -> None:
    parts = await talk.parts(ToolCallEvent(0, "c1", "one", '{"a":1}'), TextEvent("calling"))
    assert kinds(parts)[4:6] == ["tool-input-available", "text-start"]


@pytest.mark.parametrize("arguments", ['{"x":', "NaN"])
async def test_arguments_that_are_no_json_are_an_error_of_the_tool(talk: Talk, arguments: str) -> None:
    parts = await talk.parts(ToolCallEvent(0, "c1", "one", arguments), ToolCallEvent(0, "", "", ""))
    (error,) = (part for part in parts if part["type"] == "tool-input-error")
    assert (error["input"], error["toolName"]) == (arguments, "one")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([TextEvent("a")], "stop"),
        ([TextEvent("a"), FinishEvent("length"), TextEvent("ignored")], "length"),
        ([FinishEvent("content_filter")], "content-filter"),
        ([ToolCallEvent(0, "c1", "one")], "tool-calls"),
        ([ToolCallEvent(0, "c1", "one"), ToolResultEvent("c1", 1), TextEvent("b")], "stop"),
        ([ToolCallEvent(0, "c1", "one", "{no")], "tool-calls"),
        ([], "stop"),
    ],
)
async def test_only_clients_of_version_6_get_a_reason(talk: Talk, script: list[Say], reason: str) -> None:
    assert (await talk.parts(*script, path="/plain"))[-1] == {"type": "finish", "finishReason": reason}
    assert (await talk.parts(*script))[-1] == {"type": "finish"}


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ChatError("too long", status=413, code="context"), 413, "too long"),
        (ChatError("busy", status=503, retry_after_s=0.5), 503, "busy"),
        (HTTPException(402, "pay", {"x-own": "1"}), 402, "pay"),
        (HTTPException(400, {"a": 1}), 400, '{"a": 1}'),
        (StreamLogFull("full"), 503, "full"),
        (ReplicaLost("gpt was lost while it answered chat"), 502, "The response was interrupted."),
        (QueueTimeout("no replica of gpt had room"), 503, "The server is busy. Try again in a moment."),
        (ErrorEvent("it broke"), 500, "it broke"),
        (RuntimeError("secret"), 500, "Internal Server Error"),
    ],
)
async def test_an_error_before_the_first_event_has_its_status_and_its_text(
    talk: Talk, error: Any, status: int, text: str
) -> None:
    for path in ("/api/chat", "/plain", "/api/chat/text"):
        answer = await talk.ask(error, path=path)
        assert (answer.status_code, answer.text) == (status, text)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        if status == 402:
            assert answer.headers["x-own"] == "1"
        if status == 503:
            assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (json.dumps(body("x", model="none")), "the model 'none' does not exist; there are echo, scripted, slow"),
        ("{", "the request is not a chat: Invalid JSON"),
        ('{"messages": [{"role": "tool"}]}', "the request is not a chat: messages.0.role: Input should be 'system'"),
        ('{"id": "x", "messages": []}', "the request is not a chat: it has no messages"),
        (json.dumps({"messages": [{"role": "user", "content": "as in version 4"}]}), UNUSABLE),
        (json.dumps({"model": "echo", "messages": [{"role": "user", "content": "x"}], "stream": True}), UNUSABLE),
        (json.dumps({"messages": [*body("x")["messages"], {"role": "user", "content": "x"}]}), UNUSABLE),
        (json.dumps({"messages": [*body("x")["messages"], {"role": "assistant", "content": "x"}]}), UNUSABLE),
        (json.dumps({"message": {"id": "u1", "role": "user", "parts": []}}), UNUSABLE),
        (json.dumps(body("")), UNUSABLE),
        (json.dumps({"message": {"role": "user", "parts": [{"type": "data-mood", "data": 1}]}}), UNUSABLE),
    ],
)
async def test_a_request_that_is_no_chat_is_refused_in_words(talk: Talk, content: str, text: str) -> None:
    answer = await talk.http.post("/api/chat", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == (404 if "none" in text and "model" in text else 400)
    assert answer.text.startswith(text)


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (ErrorEvent("it broke"), "it broke"),
        (ChatError("too long"), "too long"),
        (ReplicaLost("gpt was lost while it answered chat"), "The response was interrupted."),
        (RuntimeError("secret"), "An error occurred."),
        (ToolResultEvent("c9", 1), "An error occurred."),
        ("no event", "An error occurred."),
        (ToolResultEvent("c1", math.nan), "An error occurred."),
    ],
)
async def test_an_error_after_the_first_event_is_the_last_part(talk: Talk, last: Say, text: str) -> None:
    for path in ("/api/chat", "/plain"):
        parts = await talk.parts(ToolCallEvent(0, "c1", "one", "{}"), TextEvent("a"), last, path=path)
        assert kinds(parts)[-2:] == ["text-end", "error"]
        assert parts[-1]["errorText"] == text


async def test_half_of_a_surrogate_pair_in_the_result_of_a_tool_reaches_the_client(talk: Talk) -> None:
    parts = await talk.parts(ToolCallEvent(0, "c1", "one"), ToolResultEvent("c1", "\ud83d"))
    assert [part["output"] for part in parts if "output" in part] == ["\ud83d"]


async def test_the_model_gets_the_messages_and_their_tools_and_files(talk: Talk) -> None:
    tool = {"type": "tool-weather", "toolCallId": "c1", "input": {"city": "Rom"}}
    dynamic = {"type": "dynamic-tool", "toolName": "search", "toolCallId": "c2"}
    messages = [
        {"id": "0", "role": "system", "parts": [{"type": "text", "text": "be brief"}]},
        {
            "id": "1",
            "role": "user",
            "parts": [
                {"type": "text", "text": "look"},
                {"type": "file", "mediaType": "image/png", "url": "data:,x", "filename": "x.png"},
                {"type": "data-mood", "data": {"good": True}},
            ],
        },
        {
            "id": "2",
            "role": "assistant",
            "parts": [
                {"type": "step-start"},
                {"type": "reasoning", "text": "hm"},
                {"type": "text", "text": "wait"},
                {**tool, "state": "output-available", "output": {"c": 20}},
                {**dynamic, "state": "output-error", "rawInput": "{x", "errorText": "it broke"},
                {**tool, "toolCallId": "c3", "state": "input-streaming"},
                {**tool, "toolCallId": "c4", "state": "output-denied"},
                {**tool, "toolCallId": "c5", "state": "approval-responded", "approval": {"approved": False}},
                {**tool, "toolCallId": "c6", "state": "approval-responded", "approval": {"approved": True}},
                {"type": "step-start"},
                {"type": "text", "text": "20 degrees"},
                {"type": "source-url", "sourceId": "s", "url": "http://x"},
            ],
        },
        {"id": "3", "role": "user", "parts": [{"type": "text", "text": "thanks"}]},
    ]
    await talk.parts(TextEvent("a"), messages=messages, temperature=0.5, system="a system")
    (request,) = talk.model.requests
    assert [(each.role, each.text, each.tool_call_id) for each in request.messages] == [
        ("system", "a system", None),
        ("system", "be brief", None),
        ("user", "look", None),
        ("assistant", "wait", None),
        ("tool", '{"c": 20}', "c1"),
        ("tool", "it broke", "c2"),
        ("tool", "The call of the tool was denied.", "c4"),
        ("tool", "The call of the tool was denied.", "c5"),
        ("assistant", "20 degrees", None),
        ("user", "thanks", None),
    ]
    assert [each.tool_call_id for each in request.messages if each.is_error] == ["c2"]
    calls = [(call.id, call.name, call.arguments) for call in request.messages[3].tool_calls]
    assert calls[:2] == [("c1", "weather", '{"city": "Rom"}'), ("c2", "search", "{x")]
    (file,) = request.messages[2].attachments
    assert (file.media_type, file.url, file.name) == ("image/png", "data:,x", "x.png")
    assert (request.model, request.prompt) == ("scripted", "thanks")
    assert request.extra == {"id": "chat", "trigger": "submit-message", "temperature": 0.5}


async def test_a_client_may_send_the_last_message_alone(talk: Talk) -> None:
    message = body("just this")["messages"][0]
    answer = await talk.http.post("/api/chat", json={"id": "chat", "message": message})
    assert texts(checked(answer.text)) == "just this"


async def test_a_message_of_the_assistant_is_continued_under_its_id(talk: Talk) -> None:
    call = {"type": "tool-one", "toolCallId": "c1", "state": "approval-responded", "approval": {"approved": True}}
    messages = [*body("go")["messages"], {"id": "m2", "role": "assistant", "parts": [{"type": "step-start"}, call]}]
    answer = await talk.ask(ToolResultEvent("c1", 7), TextEvent("done"), messages=messages)
    parts = checked(answer.text, known_calls=frozenset({"c1"}))
    assert parts[0] == {"type": "start", "messageId": "m2"}
    assert kinds(parts).count("start-step") == 2


async def test_a_model_that_repeats_an_open_call_of_a_continued_message_gives_it_its_result(talk: Talk) -> None:
    done = {"type": "tool-one", "toolCallId": "c0", "state": "output-available", "input": {}, "output": 1}
    call = {"type": "tool-one", "toolCallId": "c1", "state": "approval-responded", "approval": {"approved": True}}
    continued = {"id": "m2", "role": "assistant", "parts": [{"type": "step-start"}, done, call]}
    events = [ToolCallEvent(0, "c0", "one", "{}"), ToolCallEvent(1, "c1", "one", "{}"), ToolResultEvent("c1", 7)]
    answer = await talk.ask(*events, messages=[*body("go")["messages"], continued])
    parts = checked(answer.text, known_calls=frozenset({"c1"}))
    begun = [part["toolCallId"] for part in parts if part["type"] == "tool-input-start"]
    assert begun[0].startswith("call_"), "the client has the result of c0"
    assert begun[1:] == ["c1"]
    assert [part["toolCallId"] for part in parts if part["type"] == "tool-output-available"] == ["c1"]


async def test_a_client_that_resumes_after_a_disconnect_gets_each_event_once(talk: Talk) -> None:
    talk.model.allow(2)
    async with talk.follow("POST", "/api/chat", json=body("a b c d", model="slow")) as first:
        await first.until('"delta":"b"')
    talk.model.allow(1)
    async with talk.follow("GET", "/api/chat/chat/stream") as again:
        assert again.response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        await again.until('"delta":"c"')
        assert talk.model.running == 1
        talk.model.allow(1)
        parts = await again.rest()
    assert texts(parts) == "abcd"
    assert f'"messageId":"{parts[0]["messageId"]}"' in first.text
    assert (await talk.http.get("/api/chat/chat/stream")).status_code == 204


async def test_a_stream_can_be_resumed_before_its_first_event(talk: Talk) -> None:
    asking = asyncio.create_task(talk.http.post("/api/chat", json=body("a", model="slow")))
    await until(lambda: talk.model.running == 1)
    async with talk.follow("GET", "/api/chat/chat/stream") as again:
        await again.until(": stream-open\n\n")
        talk.model.allow(1)
        assert texts(await again.rest()) == "a"
    assert texts(checked((await asking).text)) == "a"


async def test_a_stop_ends_the_model_and_its_streams(talk: Talk) -> None:
    talk.model.allow(1)
    async with talk.follow("POST", "/api/chat", json=body("a b c", model="slow")) as first:
        await first.until('"delta":"a"')
        id = first.response.headers["x-stream-id"]
        stale = await talk.http.post("/api/chat/chat/stop", json={"activeStreamId": "an earlier one"})
        assert stale.json() == {"success": True, "stopped": False}
        assert talk.model.running == 1
        bodies = (json.dumps({"activeStreamId": id, "assistantMessage": None}), True), ("", False), ("[]", False)
        for content, stopped in bodies:
            answer = await talk.http.post(
                "/api/chat/chat/stop", content=content, headers={"content-type": "application/json"}
            )
            assert (answer.status_code, answer.json()) == (200, {"success": True, "stopped": stopped})
            assert not talk.model.running
        parts = await first.rest()
    assert kinds(parts)[-2:] == ["text-end", "abort"]
    assert (await talk.http.get("/api/chat/chat/stream")).status_code == 204
    assert (await talk.http.post("/api/chat/unknown/stop")).json() == {"success": True, "stopped": False}


async def test_a_new_message_stops_the_response_that_is_active_in_its_chat(talk: Talk) -> None:
    talk.model.allow(1)
    async with talk.follow("POST", "/api/chat", json=body("a b", model="slow")) as first:
        await first.until('"delta":"a"')
        second = await talk.http.post("/api/chat", json=body("again"))
        assert texts(checked(second.text)) == "again"
        assert not talk.model.running
        assert kinds(await first.rest())[-1] == "abort"


async def test_of_many_messages_at_once_one_response_stays(talk: Talk) -> None:
    asking = [asyncio.create_task(talk.http.post("/api/chat", json=body(f"{n}", model="slow"))) for n in range(4)]
    await until(lambda: talk.model.running == 1)
    done: set[Any] = set()
    while len(done) < 3:  # each one stops the one before
        done, _ = await asyncio.wait(asking, timeout=0.1)
    await until(lambda: talk.model.running == 1)  # the last one begins when the one before it has ended
    talk.model.allow(1)
    answers = [await each for each in asking]
    assert sorted(kinds(checked(answer.text))[-1] for answer in answers) == ["abort", "abort", "abort", "finish"]


async def test_responses_of_several_chats_run_side_by_side(talk: Talk) -> None:
    asking = [
        asyncio.create_task(talk.http.post("/api/chat", json=body(f"w{n}", model="slow", id=id)))
        for n, id in enumerate(["one", "two", None])
    ]
    await until(lambda: talk.model.running == 3)
    talk.model.allow(3)
    assert [texts(checked((await each).text)) for each in asking] == ["w0", "w1", "w2"]


@pytest.mark.parametrize("path", ["/plain", "/plain/text"])
@pytest.mark.parametrize("words", [0, 1])
async def test_without_resume_a_disconnect_stops_the_model(talk: Talk, path: str, words: int) -> None:
    talk.model.allow(words)

    async def read() -> None:
        async with talk.follow("POST", path, json=body("word and more", model="slow")) as first:
            await first.until("word")
            await first.until("never")

    reading = asyncio.create_task(read())
    await until(lambda: talk.model.running == 1 and talk.model.permits.locked())
    reading.cancel()
    await asyncio.wait([reading])
    await until(lambda: not talk.model.running)


async def test_without_resume_there_is_nothing_to_resume_or_stop(talk: Talk) -> None:
    assert (await talk.http.get("/plain/chat/stream")).status_code == 404
    assert (await talk.http.post("/plain/chat/stop")).status_code == 404


async def test_the_text_protocol_has_the_text_only(talk: Talk) -> None:
    answer = await talk.http.post("/api/chat/text", json=body("/reason ä b"))
    assert (answer.text, answer.headers["content-type"]) == ("ä b", "text/plain; charset=utf-8")
    assert "x-vercel-ai-ui-message-stream" not in answer.headers


@pytest.mark.parametrize("last", [ErrorEvent("it broke"), RuntimeError("secret")])
async def test_text_that_is_incomplete_breaks_the_connection(talk: Talk, last: Say) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await talk.ask(TextEvent("a"), last, path="/api/chat/text")


async def test_a_stream_without_events_has_comments(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ai_sdk, "KEEP_ALIVE_S", 0.01)
    talk.model.allow(1)
    async with talk.follow("POST", "/api/chat", json=body("a b", model="slow")) as first:
        await first.until(": keep-alive\n\n: keep-alive\n\n")
        talk.model.allow(1)
        assert texts(await first.rest()) == "ab"


@pytest.mark.parametrize("path", ["", "/plain"])
async def test_a_model_that_is_slow_gets_a_status_before_its_first_event(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(ai_sdk, "FIRST_EVENT_S", 0.01)
    model = Scripted()
    async with (
        asking(app_of(FastAPI, model, MemoryStreamLog())) as http,
        http.stream("POST", path or "/api/chat", json=body("/raise", model="slow")) as response,
    ):
        follower = Follower(response)
        await follower.until(": stream-open\n\n")
        model.allow(1)
        parts = await follower.rest()
    assert kinds(parts) == ["start", "start-step", "error"]
    assert parts[-1]["errorText"] == "the model was asked to raise"


async def test_a_stream_that_is_lost_ends_with_an_error(talk: Talk) -> None:
    await talk.log.begin("s", "a process", "text/event-stream", 'chat:["default", "chat"]')
    start = {"type": "start", "messageId": "m"}, {"type": "start-step"}, {"type": "text-start", "id": "text-1"}
    await talk.log.append([Append("s", "a process", 1, tuple(map(ai_sdk.encode, start)))])
    async with talk.follow("GET", "/api/chat/chat/stream") as reader:
        await reader.until("text-start")
        await talk.log.end("s", "a process", "lost")
        parts = await reader.rest()
    end, reason, error = parts[-3:]
    assert end == {"type": "text-end", "id": "text-1"}
    assert (reason["type"], reason["data"]["error"], reason["transient"]) == ("data-error", "stream_lost", True)
    assert error == {"type": "error", "errorText": "The response was interrupted."}
    async with talk.follow("GET", "/api/chat/chat/stream") as late:
        assert await late.rest() == parts, "who comes later gets the same"
    checked((await talk.http.post("/api/chat", json=body("again"))).text)
    assert (await talk.http.get("/api/chat/chat/stream")).status_code == 204


async def test_a_response_that_the_log_has_not_kept_ends_with_an_error(talk: Talk) -> None:
    words = [f"word-{number}-" for number in range(70)]
    talk.model.allow(30)  # a response without an event would begin much later
    async with talk.follow("POST", "/api/chat", json=body(" ".join(words), model="slow")) as first:
        await first.until(words[29])
        talk.model.allow(30)
        await first.until(words[59])
        async with talk.follow("GET", "/api/chat/chat/stream") as again:
            (error,) = await again.rest()
        assert error["errorText"].startswith("The response is too long to be read again")
        talk.model.allow(10)
        assert texts(await first.rest()) == "".join(words)


@pytest.mark.parametrize("prefix", ["/api/chat", "/plain"])
async def test_a_response_that_takes_too_long_is_aborted(prefix: str) -> None:
    app = FastAPI()
    options = {"log": MemoryStreamLog(), "max_duration_s": 0.01, "resume": prefix == "/api/chat"}
    app.include_router(ai_sdk_router(EchoModel(period_s=0.005), **options), prefix=prefix)
    async with (
        asking(app) as http,
    ):
        answer = await http.post(prefix, json=body("word /forever"))
        assert kinds(checked(answer.text))[-2:] == ["text-end", "abort"]


async def test_a_model_without_clients_is_stopped_after_linger_s() -> None:
    clock = HeldClock()
    app, model, log = FastAPI(), Scripted(), MemoryStreamLog(now=clock)
    app.include_router(ai_sdk_router(model.slow, log=log, linger_s=0.1), prefix="/api/chat")
    async with asking(app) as http:
        model.allow(1)
        async with http.stream("POST", "/api/chat", json=body("a b")) as response:
            await Follower(response).until('"delta":"a"')
        assert model.running == 1
        clock.go_on()
        await until(lambda: not model.running)


async def test_the_model_is_not_called_if_the_log_is_full() -> None:
    called = False

    def model(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        nonlocal called
        called = True
        return EchoModel().chat(request)

    app, log = FastAPI(), MemoryStreamLog(StreamLimits(max_streams=1))
    app.include_router(ai_sdk_router(model, log=log), prefix="/api/chat")
    await log.begin("s", "a process", "text/event-stream", "another chat")
    async with (
        asking(app) as http,
    ):
        answer = await http.post("/api/chat", json=body("hi"))
        full = "the stream log has 1 streams that are active or have readers"
        assert (answer.status_code, answer.text) == (503, full)
    assert not called


def test_a_deployment_is_a_model() -> None:
    app = Toolkit()
    app.include_router(ai_sdk_router(EchoModel.bind(), log=StreamLogDeployment.bind()), prefix="/api/chat")
    with TestClient(app) as client:
        assert texts(checked(client.post("/api/chat", json=body("hi", id="of a deployment")).text)) == "hi"
        answer = client.post("/api/chat", json=body("/fail", id="failing"))
        assert (answer.status_code, answer.text) == (503, "the model was asked to fail")


async def test_the_dependencies_of_the_user_may_refuse_a_chat_and_read_its_body() -> None:
    async def owner(request: Request) -> None:
        chat = request.path_params.get("chat")
        if (chat or (await request.json())["id"]) != "mine":
            raise HTTPException(403, "this is not your chat")

    app = FastAPI()
    app.include_router(ai_sdk_router(EchoModel()), prefix="/api/chat", dependencies=[Depends(owner)])
    async with (
        asking(app) as http,
    ):
        refused = await http.post("/api/chat", json=body("hi", id="yours"))
        assert (refused.status_code, refused.text) == (403, "this is not your chat")
        assert (await http.post("/api/chat/yours/stop")).status_code == 403
        assert (await http.get("/api/chat/mine/stream")).status_code == 204
        assert texts(checked((await http.post("/api/chat", json=body("hi", id="mine"))).text)) == "hi"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"version": 4}, "version = 4"),
        ({"linger_s": 0}, "linger_s = 0"),
        ({"max_duration_s": 100_000}, "max_duration_s = 100000"),
        ({"models": {}}, "at least one model"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ai_sdk_router(**{"models": EchoModel(), **options})


def test_the_openapi_document_has_the_body() -> None:
    paths = app_of(FastAPI, Scripted(), MemoryStreamLog()).openapi()["paths"]
    assert "messages" in json.dumps(paths["/api/chat"]["post"]["requestBody"])
    assert {"/api/chat/{chat}/stream", "/api/chat/{chat}/stop", "/api/chat/text"} <= paths.keys()


def test_the_front_end_of_the_page_asks_routes_that_there_are() -> None:
    shown = page("docs/chat-ai-sdk.md")
    paths = shown.run()["app"].openapi()["paths"].keys()
    asked = re.findall(r"[\"`](/api/[^\"`]+)", "".join(shown.shown("tsx")))
    assert asked
    assert {re.sub(r"\$\{.*?\}", "{chat}", path) for path in asked} <= paths
