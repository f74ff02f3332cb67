"""The messages of a chat over a WebSocket, and the check of the origin."""

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
)
from app_toolkit.chat.catalog import Catalog
from app_toolkit.chat.echo import EchoModel
from app_toolkit.chat.requests import origin_is_allowed
from app_toolkit.chat.websocket.wire import (
    EXPRESSED,
    ChatCommand,
    InvalidCommand,
    encoded,
    frame,
    is_last,
    read_command,
    request_of,
)
from app_toolkit.errors import QueueFull, ReplicaLost
from tests.chat.model_events import EVENTS_AND_ERRORS

pytestmark = pytest.mark.anyio

CHAT: dict[str, Any] = {"type": "chat", "id": "r", "messages": [{"role": "user", "content": "hello"}]}

WRONG = st.sampled_from([ChatError("no", status=429, code="slow_down"), ValueError("secret"), "no event"])


async def events_of(*events: Any) -> list[dict[str, Any]]:
    async def model(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        for event in events:
            if isinstance(event, Exception):
                raise event
            yield event

    found = [
        event async for event in encoded(partial(Catalog({"gpt": model}, {}).find("gpt", EXPRESSED), ChatRequest(())))
    ]
    assert [is_last(event) for event in found] == [False] * (len(found) - 1) + [True]
    documents = [json.loads(frame("r", number, event)) for number, event in enumerate(found, 1)]
    assert all((each.pop("id"), each.pop("number")) == ("r", number) for number, each in enumerate(documents, 1))
    return documents


async def test_each_event_has_its_document() -> None:
    assert await events_of(
        ReasoningEvent("let me see"),
        ToolCallEvent(0, "c", "look_up", '{"a":'),
        ToolCallEvent(0, arguments=" 1}"),
        ToolResultEvent("c", {"found": [1, "\ud800"]}),
        ToolCallEvent(1, "d", "look_up", executed=True),
        ToolCallEvent(2, "e", "pay", executed=False),
        TextEvent("é\ud83d"),
        TextEvent(""),
        TextEvent("\ude00"),
        FinishEvent("length"),
        TextEvent("too late"),
        UsageEvent(3, 4, 1, 2),
    ) == [
        {"type": "reasoning", "text": "let me see"},
        {"type": "tool_call", "index": 0, "call_id": "c", "name": "look_up", "arguments": '{"a":'},
        {"type": "tool_call", "index": 0, "arguments": " 1}"},
        {"type": "tool_result", "call_id": "c", "result": {"found": [1, "\ud800"]}, "is_error": False},
        {"type": "tool_call", "index": 1, "call_id": "d", "name": "look_up", "executed": True, "arguments": ""},
        {"type": "tool_call", "index": 2, "call_id": "e", "name": "pay", "executed": False, "arguments": ""},
        {"type": "text", "text": "é"},
        {"type": "text", "text": "😀"},
        {"type": "usage", "input_tokens": 3, "output_tokens": 4, "reasoning_tokens": 1, "cached_tokens": 2},
        {"type": "finish", "reason": "length"},
    ]


async def test_events_for_the_front_end_have_their_documents() -> None:
    assert await events_of(
        SourceEvent("https://example.com", "Example", "s1"),
        DocumentEvent("Manual", "application/pdf", "manual.pdf", "s2"),
        FileEvent("image/png", data=b"abc"),
        DataEvent("chart", [1], "c1"),
        StatusEvent("Searching"),
        ApprovalRequest(ToolCall("c1", "pay", '{"amount": 5}')),
    ) == [
        {"type": "source", "source_id": "s1", "url": "https://example.com", "title": "Example"},
        {
            "type": "document",
            "source_id": "s2",
            "title": "Manual",
            "media_type": "application/pdf",
            "name": "manual.pdf",
        },
        {"type": "file", "media_type": "image/png", "url": "data:image/png;base64,YWJj"},
        {"type": "data", "name": "chart", "data": [1], "data_id": "c1", "transient": False},
        {"type": "status", "text": "Searching"},
        {"type": "approval_request", "call_id": "c1", "name": "pay", "arguments": '{"amount": 5}'},
        {"type": "finish", "reason": "stop"},
    ]


async def test_a_response_without_a_finish_event_ends_with_a_reason() -> None:
    assert (await events_of(TextEvent("a")))[-1] == {"type": "finish", "reason": "stop"}
    *_, call, last = await events_of(ToolCallEvent(0, name="look_up"))
    assert (call["call_id"][:5], last) == ("call_", {"type": "finish", "reason": "tool_calls"})


@pytest.mark.parametrize(
    ("failure", "document"),
    [
        (ErrorEvent("it broke", "broken"), {"status": 500, "code": "broken", "message": "it broke"}),
        (ChatError("too long", status=413), {"status": 413, "code": "invalid_request_error", "message": "too long"}),
        (
            ReplicaLost("gpt was lost while it answered chat"),
            {"status": 502, "code": "replica_lost", "message": "The response was interrupted."},
        ),
        (QueueFull("10 wait"), {"status": 503, "code": "queue_full", "message": "10 wait", "retry_after_s": 1}),
        (
            ValueError("secret"),
            {"status": 500, "code": "server_error", "message": "the server failed while it processed the request"},
        ),
        (
            ToolResultEvent("c", 1),
            {"status": 500, "code": "server_error", "message": "the server failed while it processed the request"},
        ),
    ],
)
async def test_a_failure_is_the_last_event(failure: Any, document: dict[str, Any]) -> None:
    assert await events_of(failure) == [{"type": "error", **document}]
    assert await events_of(TextEvent("a"), failure, TextEvent("b")) == [
        {"type": "text", "text": "a"},
        {"type": "error", **document},
    ]


@settings(max_examples=40)
@given(st.lists(EVENTS_AND_ERRORS | WRONG, max_size=6))
async def test_a_response_has_one_last_event_for_any_events_of_the_model(events: list[Any]) -> None:
    assert "secret" not in json.dumps(await events_of(*events))


def test_the_model_gets_the_calls_that_the_user_has_approved() -> None:
    command = read_command(
        json.dumps({**CHAT, "approved_calls": [{"call_id": "c1", "name": "pay", "arguments": "{}"}]})
    )
    assert isinstance(command, ChatCommand)
    assert request_of(command, Catalog({"gpt": EchoModel().chat}, {})).approved_calls == (ToolCall("c1", "pay", "{}"),)


def test_commands_are_read() -> None:
    chat = read_command(json.dumps({**CHAT, "model": "large", "temperature": 0.5, "anything": 1}))
    assert (chat.type, chat.id, chat.model, chat.temperature, chat.model_extra) == (  # type: ignore[union-attr]
        "chat",
        "r",
        "large",
        0.5,
        {"anything": 1},
    )
    resume = read_command('{"type": "resume", "id": "r", "after": 7}')
    assert (resume.type, resume.after) == ("resume", 7)  # type: ignore[union-attr]
    assert read_command('{"type": "stop", "id": "r"}').id == "r"  # type: ignore[union-attr]
    assert read_command('{"type": "ping"}').type == "ping"


@pytest.mark.parametrize(
    ("text", "message", "param", "id"),
    [
        ("", "the message is not valid JSON", None, None),
        ("{", "the message is not valid JSON", None, None),
        ("[" * 100_000, "the message is not valid JSON", None, None),
        ('{"id": "\\ud800"}', "the message is not valid JSON", None, None),
        ("[]", "the message must be a JSON object", None, None),
        ("{}", "the field type must be one of chat, stop, resume and ping", "type", None),
        ('{"type": "dance", "id": "r"}', "the field type must be one of chat, stop, resume and ping", "type", "r"),
        ('{"type": [], "id": 1}', "the field type must be one of chat, stop, resume and ping", "type", None),
        ('{"type": "stop"}', "the field id is missing", "id", None),
        ('{"type": "stop", "id": ""}', "the field id is wrong: String should have at least 1 character", "id", None),
        (json.dumps({"type": "stop", "id": "x" * 129}), "the field id is wrong", "id", None),
        ('{"type": "resume", "id": "r", "after": -1}', "the field after is wrong", "after", "r"),
        ('{"type": "resume", "id": "r", "after": 1e99}', "the field after is wrong", "after", "r"),
        ('{"type": "chat", "id": "r"}', "the field messages is missing", "messages", "r"),
        (json.dumps({**CHAT, "messages": []}), "the field messages is missing", "messages", "r"),
        (
            json.dumps({**CHAT, "messages": [{"role": "robot", "content": ""}]}),
            "the field messages[0].role is wrong",
            "messages[0].role",
            "r",
        ),
    ],
)
def test_a_wrong_message_is_refused_in_one_sentence(text: str, message: str, param: str | None, id: str | None) -> None:
    with pytest.raises(InvalidCommand) as refused:
        read_command(text)
    document = refused.value.document
    assert document["message"].startswith(message)
    assert (document["code"], document.get("param"), document.get("id")) == ("invalid_message", param, id)


@settings(max_examples=40)
@given(st.text() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_a_command_or_refused(text: str) -> None:
    with suppress(InvalidCommand):
        assert read_command(text).type in ("chat", "stop", "resume", "ping")


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "expected"),
    [
        (None, "a.example", (), True),
        ("https://a.example", "a.example", (), True),
        ("http://a.example", "a.example", (), True),
        ("http://A.example", "a.EXAMPLE", (), True),
        ("http://a.example:8000", "a.example:8000", (), True),
        ("https://a.example:443", "a.example", (), True),
        ("https://a.example", "a.example:443", (), True),
        ("http://[::1]:8000", "[::1]:8000", (), True),
        ("http://a.example:8000", "a.example:8001", (), False),
        ("http://a.example:8000", "a.example", (), False),
        ("https://b.example", "a.example", (), False),
        ("https://a.example.evil.example", "a.example", (), False),
        ("https://evil.example", "a.example", ("https://b.example",), False),
        ("https://b.example", "a.example", ("https://b.example",), True),
        ("http://b.example", "a.example", ("https://b.example",), False),
        ("https://evil.example", "a.example", ("*",), True),
        ("null", "a.example", (), False),
        ("null", None, (), False),
        ("", "a.example", (), False),
        ("file://", "", (), False),
        ("http://", "", (), False),
        ("http://a.example:x", "a.example:x", (), False),
        ("http://[a.example", "[a.example", (), False),
    ],
)
def test_the_pages_that_may_open_a_websocket(
    origin: str | None, host: str | None, allowed: tuple[str, ...], expected: bool
) -> None:
    assert origin_is_allowed(origin, host, allowed) == expected


@given(st.text(), st.text())
def test_no_other_origin_is_allowed(origin: str, host: str) -> None:
    if origin_is_allowed(origin, host, ()):
        assert origin.startswith(("http://", "https://"))
        assert host
