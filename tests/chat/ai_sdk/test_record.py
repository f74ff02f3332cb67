"""Records of messages: they are what a client has after it has read the same stream."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat import (
    ApprovalRequest,
    DataEvent,
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
)
from app_toolkit.chat.ai_sdk.messages import UIMessage
from app_toolkit.chat.ai_sdk.record import MessageRecord
from app_toolkit.chat.ai_sdk.stream import MessageParts
from tests.chat.model_events import EVENTS_AND_ERRORS, checked_events


def recorded(*events: Any, finish: bool = True) -> dict[str, Any]:
    parts, record = MessageParts("m", version=6), MessageRecord()
    for event in checked_events(events):
        for part in parts.translate(event) if finish or not isinstance(event, FinishEvent) else ():
            record.add(part)
    return record.message()


def test_a_message_has_its_steps_texts_and_tools() -> None:
    message = recorded(
        ReasoningEvent("I "),
        ReasoningEvent("think"),
        TextEvent("Let me "),
        TextEvent("look."),
        ToolCallEvent(0, "c1", "search", '{"query": '),
        ToolCallEvent(0, arguments='"x"}'),
        ToolCallEvent(1, "c2", "search", "{}"),
        ToolResultEvent("c1", {"found": [1]}),
        ToolResultEvent("c2", "nothing", is_error=True),
        TextEvent("Found."),
    )
    assert message == {
        "id": "m",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "I think", "state": "done"},
            {"type": "text", "text": "Let me look.", "state": "done"},
            {
                "type": "tool-search",
                "toolCallId": "c1",
                "state": "output-available",
                "input": {"query": "x"},
                "output": {"found": [1]},
                "providerExecuted": True,
            },
            {
                "type": "tool-search",
                "toolCallId": "c2",
                "state": "output-error",
                "input": {},
                "errorText": "nothing",
                "providerExecuted": True,
            },
            {"type": "step-start"},
            {"type": "text", "text": "Found.", "state": "done"},
        ],
    }


def test_a_message_has_its_sources_files_and_the_last_data_of_each_id() -> None:
    message = recorded(
        StatusEvent("Searching"),
        SourceEvent("https://example.com", "Example", "s1"),
        DataEvent("chart", [1], "c1"),
        DataEvent("table", [1], "c1"),
        DataEvent("progress", 1, transient=True),
        FileEvent("image/png", "https://example.com/a.png"),
        DataEvent("chart", [1, 2], "c1"),
        DataEvent("note", "a"),
        DataEvent("note", "b"),
    )
    assert message["parts"] == [
        {"type": "step-start"},
        {"type": "source-url", "sourceId": "s1", "url": "https://example.com", "title": "Example"},
        {"type": "data-chart", "data": [1, 2], "id": "c1"},
        {"type": "data-table", "data": [1], "id": "c1"},
        {"type": "file", "url": "https://example.com/a.png", "mediaType": "image/png"},
        {"type": "data-note", "data": "a"},
        {"type": "data-note", "data": "b"},
    ]


def test_a_call_that_waits_for_an_approval_is_kept() -> None:
    assert recorded(ApprovalRequest(ToolCall("c1", "pay", '{"amount": 5}')))["parts"][-1] == {
        "type": "tool-pay",
        "toolCallId": "c1",
        "state": "approval-requested",
        "input": {"amount": 5},
        "providerExecuted": True,
        "approval": {"id": "c1"},
    }


def test_arguments_that_are_no_json_are_kept_as_text() -> None:
    call = recorded(ToolCallEvent(0, "c1", "search", "{no"))["parts"][-1]
    assert (call["state"], call["rawInput"]) == ("output-error", "{no")


def test_an_incomplete_message_is_marked() -> None:
    stopped = recorded(TextEvent("Half a "), ToolCallEvent(0, "c1", "search", '{"a'), finish=False)
    assert stopped["metadata"] == {"incomplete": True}
    assert stopped["parts"][1:] == [{"type": "text", "text": "Half a ", "state": "done"}]
    assert recorded(TextEvent("Half"), ErrorEvent("Broken."))["metadata"] == {"incomplete": True, "error": "Broken."}


def test_a_message_that_is_continued_keeps_its_parts() -> None:
    earlier = [
        {"type": "text", "text": "I look."},
        {"type": "tool-search", "toolCallId": "c1", "state": "input-available"},
    ]
    parts, record = MessageParts("m", version=5), MessageRecord(earlier)
    for event in (ToolResultEvent("c1", 1), TextEvent("Found.")):
        for part in parts.translate(event):
            record.add(part)
    text, call, *_, last = record.message()["parts"]
    assert (text["text"], call["state"], call["output"], last["text"]) == ("I look.", "output-available", 1, "Found.")
    assert earlier[1]["state"] == "input-available", "the given parts are not changed"


def test_a_call_that_is_repeated_in_a_continued_message_is_written_once() -> None:
    call = {"type": "tool-pay", "toolCallId": "c1", "state": "approval-responded", "input": {"x": 1}}
    record, parts = MessageRecord([call]), MessageParts("m", version=6)
    events: list[Any] = [ToolCallEvent(0, "c1", "pay", '{"x": 1}'), ToolResultEvent("c1", 2), FinishEvent("stop")]
    for event in events:
        for part in parts.translate(event):
            record.add(part)
    calls = [part for part in record.message()["parts"] if "toolCallId" in part]
    assert [(part["state"], part["input"], part["output"]) for part in calls] == [("output-available", {"x": 1}, 2)]


def test_an_empty_record_is_marked() -> None:
    assert MessageRecord([{"type": "text", "text": "earlier"}]).is_empty


@given(st.lists(EVENTS_AND_ERRORS, max_size=12), st.booleans())
def test_the_record_of_any_response_is_a_message_without_open_parts(events: list[Any], finish: bool) -> None:
    message = recorded(*events, finish=finish)
    UIMessage.model_validate(message)
    states = {part.get("state", "done") for part in message["parts"]}
    assert states <= {"done", "input-available", "output-available", "output-error", "approval-requested"}
    texts = [event.text for event in checked_events(events) if isinstance(event, TextEvent | ReasoningEvent)]
    assert "".join(part.get("text", "") for part in message["parts"]) == "".join(texts)
