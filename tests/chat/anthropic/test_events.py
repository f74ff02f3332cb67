"""The events of a model become the blocks of a message, one after another."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat import (
    ChatEvent,
    DocumentEvent,
    ErrorEvent,
    FinishEvent,
    ReasoningEvent,
    SourceEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from app_toolkit.chat.anthropic.events import EXPRESSED, MessageEvents, Thinking, WholeMessage, WireEvent
from app_toolkit.chat.events import with_known_runners
from app_toolkit.chat.failures import ModelFailed
from tests.chat.model_events import EVENTS, checked_events

CUT = ("max_tokens", "refusal")


def wire_events(
    events: Iterable[Any], thinking: Thinking = "shown", *, shows_executed: bool = False
) -> list[WireEvent]:
    """What a client gets of a model that yields these events, which are checked."""

    async def yielded() -> AsyncIterator[ChatEvent]:
        for event in events:
            yield event

    async def read() -> list[WireEvent]:
        translator = MessageEvents("msg_1", "gpt", thinking, shows_executed=shows_executed)
        return [wire async for event in with_known_runners(yielded()) for wire in translator.translate(event)]

    return asyncio.run(read())


def message(events: Iterable[Any], thinking: Thinking = "shown", *, shows_executed: bool = False) -> dict[str, Any]:
    return joined(wire_events(checked_events(events, expressed=EXPRESSED), thinking, shows_executed=shows_executed))


def joined(events: list[WireEvent]) -> dict[str, Any]:
    whole = WholeMessage()
    for event in events:
        whole.add(event)
    return whole.document()


def call(index: int, arguments: str, executed: bool | None = False) -> ToolCallEvent:
    return ToolCallEvent(index, f"c{index}", "search", arguments, executed)


def inputs(document: dict[str, Any]) -> dict[str, Any]:
    return {block["id"]: block["input"] for block in document["content"] if block["type"].endswith("tool_use")}


def test_reasoning_and_text_are_blocks_of_their_own() -> None:
    events = [ReasoningEvent("a"), ReasoningEvent("b"), TextEvent("c"), TextEvent("d"), UsageEvent(7, 4, 2, 3)]
    assert message(events) == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "gpt",
        "content": [
            {"type": "thinking", "thinking": "ab", "signature": "unsigned"},
            {"type": "text", "text": "cd"},
        ],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 4,
            "output_tokens_details": {"thinking_tokens": 2},
        },
    }


def test_a_page_is_cited_in_the_text_and_a_document_is_not() -> None:
    page, untitled = SourceEvent("https://oslo.no", "Oslo", "s1"), SourceEvent("https://a", id="s2")
    events = [TextEvent("a"), page, DocumentEvent("Manual"), call(0, "{}"), untitled, TextEvent("b")]
    cited, _, later = message(events)["content"]
    location = {"type": "web_search_result_location", "cited_text": "", "encrypted_index": ""}
    first = {**location, "url": "https://oslo.no", "title": "Oslo"}
    assert cited == {"type": "text", "text": "a", "citations": [first]}
    assert later == {"type": "text", "text": "b", "citations": [{**location, "url": "https://a", "title": None}]}


def test_a_client_may_get_thinking_without_its_text_or_none() -> None:
    events = [ReasoningEvent("a"), TextEvent("b")]
    omitted = {"type": "thinking", "thinking": "", "signature": "unsigned"}
    assert message(events, "omitted")["content"][0] == omitted
    assert [block["type"] for block in message(events, "left out")["content"]] == ["text"]


def test_the_blocks_of_calls_whose_parts_are_mixed_follow_each_other() -> None:
    events = [call(0, '{"a"'), call(1, '{"b"'), ToolCallEvent(0, arguments=": 1}"), TextEvent("x")]
    events += [ToolCallEvent(1, arguments=": 2}")]
    wire = wire_events(checked_events(events))
    assert [(event["type"], event["index"]) for event in wire if "index" in event and "delta" not in event] == [
        *(("content_block_start", 0), ("content_block_stop", 0), ("content_block_start", 1)),
        *(("content_block_stop", 1), ("content_block_start", 2), ("content_block_stop", 2)),
    ]
    document = message(events)
    assert inputs(document) == {"c0": {"a": 1}, "c1": {"b": 2}}
    assert document["content"][2] == {"type": "text", "text": "x"}
    assert document["stop_reason"] == "tool_use"


def test_a_call_without_arguments_has_an_empty_input() -> None:
    assert inputs(message([call(0, ""), call(1, "{}"), call(2, "")])) == {"c0": {}, "c1": {}, "c2": {}}


def test_calls_that_the_model_runs_are_hidden_or_those_of_an_mcp_server() -> None:
    events = [TextEvent("I look. "), call(0, "", True), call(1, '{"b": 2}', True)]
    events += [ToolResultEvent("c1", "no", is_error=True), ToolResultEvent("c0", [1]), TextEvent("Done.")]
    assert message(events)["content"] == [{"type": "text", "text": "I look. Done."}]
    shown = message(events, shows_executed=True)["content"]
    assert [block["type"] for block in shown] == [
        *("text", "mcp_tool_use", "mcp_tool_use", "mcp_tool_result", "mcp_tool_result", "text"),
    ]
    assert shown[1] == {
        "type": "mcp_tool_use",
        "id": "c0",
        "name": "search",
        "server_name": "app_toolkit",
        "input": {},
    }
    results = [(block["tool_use_id"], block["is_error"], block["content"][0]["text"]) for block in shown[3:5]]
    assert results == [("c1", True, "no"), ("c0", False, "[1]")]


@pytest.mark.parametrize(
    ("finish", "reason", "string"),
    [
        (FinishEvent("stop"), "end_turn", None),
        (FinishEvent("stop", "END"), "stop_sequence", "END"),
        (FinishEvent("length"), "max_tokens", None),
        (FinishEvent("content_filter"), "refusal", None),
    ],
)
def test_the_reason_of_the_end_is_one_of_the_protocol(finish: FinishEvent, reason: str, string: str | None) -> None:
    document = message([TextEvent("a"), finish])
    assert (document["stop_reason"], document["stop_sequence"]) == (reason, string)


def test_a_call_that_is_cut_has_an_empty_input_and_a_wrong_one_is_an_error() -> None:
    assert inputs(message([call(0, '{"a"'), FinishEvent("length")])) == {"c0": {}}
    for arguments in ('{"a"', "[1]", "a"):
        with pytest.raises(ModelFailed, match="no JSON object"):
            message([call(0, arguments)])


def test_an_error_of_the_model_is_raised() -> None:
    with pytest.raises(ModelFailed, match="it broke"):
        message([TextEvent("a"), ErrorEvent("it broke")])


@given(st.lists(EVENTS, max_size=12), st.booleans())
def test_the_events_of_any_model_are_blocks_in_order_and_lose_nothing(events: list[Any], shows: bool) -> None:
    passed = checked_events(events)
    try:
        wire = wire_events(passed, shows_executed=shows)
    except ModelFailed:
        return
    assert [event["type"] for event in wire][:1] == ["message_start"]
    assert [event["type"] for event in wire][-2:] == ["message_delta", "message_stop"]
    is_open, number = False, 0
    for event in wire[1:-2]:
        assert event["index"] == number
        assert is_open == (event["type"] != "content_block_start")
        is_open = event["type"] != "content_block_stop"
        number += not is_open
    assert not is_open
    document = joined(wire)
    texts = "".join(event.text for event in passed if isinstance(event, TextEvent))
    assert "".join(block["text"] for block in document["content"] if block["type"] == "text") == texts
    if document["stop_reason"] not in CUT:
        for id, value in inputs(document).items():
            index = next(event.index for event in passed if isinstance(event, ToolCallEvent) and event.id == id)
            parts = [event.arguments for event in passed if isinstance(event, ToolCallEvent) and event.index == index]
            assert value == json.loads("".join(parts) or "{}")
