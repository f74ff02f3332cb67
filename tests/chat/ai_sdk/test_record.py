"""Records of messages: they are what a client has after it has read the same stream."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat import ErrorEvent, FinishEvent, ReasoningEvent, TextEvent, ToolCallEvent, ToolResultEvent
from app_toolkit.chat.ai_sdk.messages import UIMessage
from app_toolkit.chat.ai_sdk.record import MessageRecord
from app_toolkit.chat.ai_sdk.stream import MessageParts

EVENTS = st.one_of(
    st.builds(TextEvent, st.text(min_size=1)),
    st.builds(ReasoningEvent, st.text(min_size=1)),
    st.builds(ErrorEvent, st.text()),
    st.just(FinishEvent()),
    st.builds(lambda index, text: ToolCallEvent(index, f"c{index}", "search", text), st.integers(0, 2), st.text()),
)


def recorded(*events: Any, finish: bool = True) -> dict[str, Any]:
    parts, record = MessageParts("m", version=5), MessageRecord()
    for event in events:
        for part in parts.translate(event):
            record.add(part)
    for part in parts.finish() if finish else ():
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
            },
            {"type": "tool-search", "toolCallId": "c2", "state": "output-error", "input": {}, "errorText": "nothing"},
            {"type": "step-start"},
            {"type": "text", "text": "Found.", "state": "done"},
        ],
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
    parts, record = MessageParts("m", version=5, known_calls=["c1"]), MessageRecord(earlier)
    for event in (ToolResultEvent("c1", 1), TextEvent("Found.")):
        for part in parts.translate(event):
            record.add(part)
    text, call, *_, last = record.message()["parts"]
    assert (text["text"], call["state"], call["output"], last["text"]) == ("I look.", "output-available", 1, "Found.")
    assert earlier[1]["state"] == "input-available", "the given parts are not changed"


def test_an_empty_record_is_marked() -> None:
    assert MessageRecord([{"type": "text", "text": "earlier"}]).is_empty


@given(st.lists(EVENTS, max_size=12), st.booleans())
def test_the_record_of_any_response_is_a_message_without_open_parts(events: list[Any], finish: bool) -> None:
    message = recorded(*events, finish=finish)
    UIMessage.model_validate(message)
    assert {part.get("state", "done") for part in message["parts"]} <= {"done", "input-available", "output-error"}
    said: list[str] = []
    for event in events:
        if isinstance(event, ErrorEvent | FinishEvent):
            break
        if isinstance(event, TextEvent | ReasoningEvent):
            said.append(event.text)
    assert "".join(part.get("text", "") for part in message["parts"]) == "".join(said)
