"""The events of a model become a run that the types and the rules of AG-UI allow."""

from collections.abc import Iterable
from typing import Any

import pytest
from ag_ui.core import Event
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from app_toolkit.chat import (
    ApprovalRequest,
    ChatMessage,
    DataEvent,
    ErrorEvent,
    FinishEvent,
    ReasoningEvent,
    StatusEvent,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from app_toolkit.chat.ag_ui.events import EXPRESSED, RunEvents, WireEvent
from app_toolkit.chat.failures import ModelFailed
from tests.chat.model_events import EVENTS, checked_events

STARTED = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}
BRACKETS = {
    "TEXT_MESSAGE_START": ("TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "messageId"),
    "REASONING_START": ("", "REASONING_END", "messageId"),
    "REASONING_MESSAGE_START": ("REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END", "messageId"),
    "TOOL_CALL_START": ("TOOL_CALL_ARGS", "TOOL_CALL_END", "toolCallId"),
    "STEP_STARTED": ("", "STEP_FINISHED", "stepName"),
}


def run(events: Iterable[Any], **options: Any) -> list[WireEvent]:
    """The events of a run between its first and its last one, and the last one."""
    translator = RunEvents(STARTED, "gpt", **options)
    known = options.get("repeated", ())
    started, *wire = [
        wire
        for event in checked_events(events, expressed=EXPRESSED, known_calls=known)
        for wire in translator.translate(event)
    ]
    assert started == STARTED
    return wire


def shown(events: Iterable[WireEvent], *fields: str) -> list[tuple[Any, ...]]:
    return [(event["type"], *(event[field] for field in fields if field in event)) for event in events]


@given(st.lists(EVENTS, max_size=12))
def test_every_run_keeps_the_rules_of_the_protocol(events: list[Any]) -> None:
    wire = run(events)
    types = TypeAdapter(Event)
    continued = {part: (first, field) for first, (part, _, field) in BRACKETS.items() if part}
    ended = {last: (first, field) for first, (_, last, field) in BRACKETS.items()}
    is_open: set[tuple[str, str]] = set()
    for event in wire:
        assert not types.validate_python(event).model_extra
        kind = event["type"]
        if kind in BRACKETS:
            name = kind, event[BRACKETS[kind][2]]
            assert name not in is_open
            is_open.add(name)
        elif kind in continued:
            assert (continued[kind][0], event[continued[kind][1]]) in is_open
            assert event["delta"]
        elif kind in ended:
            is_open.remove((ended[kind][0], event[ended[kind][1]]))
    assert not is_open
    assert [event["type"] for event in wire].index("RUN_FINISHED") == len(wire) - 1
    text = "".join(event["delta"] for event in wire if event["type"] == "TEXT_MESSAGE_CONTENT")
    assert text == "".join(event.text for event in checked_events(events) if isinstance(event, TextEvent))
    arguments = [event["delta"] for event in wire if event["type"] == "TOOL_CALL_ARGS"]
    parts = [event for event in checked_events(events) if isinstance(event, ToolCallEvent | ApprovalRequest)]
    written = [part.call.arguments if isinstance(part, ApprovalRequest) else part.arguments for part in parts]
    assert "".join(arguments) == "".join(written)


def test_a_text_and_the_calls_after_it_are_one_message_and_the_next_step_another() -> None:
    wire = run(
        [
            ReasoningEvent("hm"),
            TextEvent("I look."),
            ToolCallEvent(0, "c1", "search", '{"a"'),
            ToolCallEvent(1, "c2", "search", "{}"),
            ToolCallEvent(0, arguments=":1}"),
            ToolResultEvent("c1", {"found": [1]}),
            ToolResultEvent("c2", "nothing", is_error=True),
            ToolCallEvent(2, "c3", "search", "{}", executed=False),
        ]
    )
    calls = [event for event in wire if event["type"] == "TOOL_CALL_START"]
    message = next(event["messageId"] for event in wire if event["type"] == "TEXT_MESSAGE_START")
    assert [call["parentMessageId"] == message for call in calls] == [True, True, False]
    results = [event for event in wire if event["type"] == "TOOL_CALL_RESULT"]
    assert shown(results, "toolCallId", "content", "metadata") == [
        ("TOOL_CALL_RESULT", "c1", '{"found": [1]}'),
        ("TOOL_CALL_RESULT", "c2", "nothing", {"isError": True}),
    ]
    assert shown(wire[:4], "delta") == [
        ("REASONING_START",),
        ("REASONING_MESSAGE_START",),
        ("REASONING_MESSAGE_CONTENT", "hm"),
        ("REASONING_MESSAGE_END",),
    ]


def test_data_are_custom_events_or_the_state_and_a_status_is_a_step() -> None:
    wire = run(
        [
            StatusEvent("Searching"),
            TextEvent("a"),
            DataEvent("chart", [1], id="x"),
            DataEvent("state", {"page": 2}),
            StatusEvent("Reading"),
            TextEvent("b"),
        ]
    )
    assert shown(wire, "stepName", "name", "value", "snapshot", "delta") == [
        ("STEP_STARTED", "Searching"),
        ("TEXT_MESSAGE_START",),
        ("TEXT_MESSAGE_CONTENT", "a"),
        ("CUSTOM", "chart", [1]),
        ("STATE_SNAPSHOT", {"page": 2}),
        ("STEP_FINISHED", "Searching"),
        ("STEP_STARTED", "Reading"),
        ("TEXT_MESSAGE_CONTENT", "b"),
        ("TEXT_MESSAGE_END",),
        ("STEP_FINISHED", "Reading"),
        ("RUN_FINISHED",),
    ]


def test_an_approval_interrupts_the_run_and_the_next_run_has_the_result_of_the_same_call() -> None:
    *wire, finished = run([ApprovalRequest(ToolCall("c1", "send", '{"a": 1}'))])
    assert shown(wire, "toolCallId", "delta") == [
        ("TOOL_CALL_START", "c1"),
        ("TOOL_CALL_ARGS", "c1", '{"a": 1}'),
        ("TOOL_CALL_END", "c1"),
    ]
    (interrupt,) = finished["outcome"]["interrupts"]
    assert (interrupt["id"], interrupt["reason"], interrupt["toolCallId"]) == ("c1", "tool_call", "c1")
    again = [ToolCallEvent(0, "c1", "send", '{"a": 1}', executed=True), ToolResultEvent("c1", "sent"), TextEvent("ok")]
    assert shown(run(again, repeated={"c1"}), "toolCallId")[:2] == [("TOOL_CALL_RESULT", "c1"), ("TEXT_MESSAGE_START",)]


def test_a_run_begins_with_the_results_of_the_calls_that_were_denied() -> None:
    result, *_ = run([TextEvent("ok")], denied=[ChatMessage("tool", "no", tool_call_id="c1")])
    assert (result["type"], result["toolCallId"], result["content"]) == ("TOOL_CALL_RESULT", "c1", "no")


def test_the_last_event_has_the_usage_and_why_a_response_was_cut() -> None:
    *_, finished = run([TextEvent("a"), UsageEvent(2, 3, 1), FinishEvent("length")])
    assert finished["usage"][0] == {
        "model": "gpt",
        "inputTokens": 2,
        "outputTokens": 3,
        "totalTokens": 5,
        "reasoningTokens": 1,
        "cachedInputTokens": 0,
    }
    assert finished["metadata"] == {"finishReason": "length"}


def test_a_failure_ends_a_run_that_has_begun() -> None:
    translator = RunEvents(STARTED, "gpt")
    with pytest.raises(ModelFailed):
        translator.translate(ErrorEvent("no", "broken"))
    assert translator.fail("no", "broken") == [STARTED, {"type": "RUN_ERROR", "message": "no", "code": "broken"}]
