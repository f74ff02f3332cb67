"""The requests of AG-UI become those of a model."""

from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from app_toolkit.chat import Attachment, ChatMessage, Tool, ToolCall
from app_toolkit.chat.ag_ui.wire import Run, read_run
from app_toolkit.chat.failures import InvalidParameter
from app_toolkit.chat.protocol import DENIED

CALL = {"id": "c1", "type": "function", "function": {"name": "send", "arguments": '{"a": 1}'}}
ASKED = [
    {"id": "1", "role": "user", "content": "send it"},
    {"id": "2", "role": "assistant", "content": "Shall I?", "toolCalls": [CALL]},
]


def read(messages: list[dict[str, Any]], **fields: Any) -> Run:
    body = {"threadId": "t", "runId": "r", "messages": messages, **fields}
    return read_run(RunAgentInput.model_validate(body), "gpt")


def test_messages_of_all_roles_reach_the_model() -> None:
    messages = [
        {"id": "1", "role": "system", "content": "Be brief."},
        {"id": "2", "role": "developer", "content": "In English."},
        {"id": "3", "role": "user", "content": "send it"},
        {"id": "4", "role": "reasoning", "content": "hm"},
        {"id": "5", "role": "assistant", "toolCalls": [CALL]},
        {"id": "6", "role": "activity", "activityType": "PLAN", "content": {"steps": 1}},
        {"id": "7", "role": "assistant", "content": "One moment."},
        {"id": "8", "role": "tool", "toolCallId": "c1", "content": "", "error": "no network"},
    ]
    assert read(messages).request.messages == (
        ChatMessage("system", "Be brief."),
        ChatMessage("system", "In English."),
        ChatMessage("user", "send it"),
        ChatMessage("assistant", tool_calls=(ToolCall("c1", "send", '{"a": 1}'),), reasoning="hm"),
        ChatMessage("tool", "no network", tool_call_id="c1", is_error=True),
        ChatMessage("assistant", "One moment."),
    )


def test_parts_become_text_and_attachments() -> None:
    content = [
        {"type": "text", "text": "what is this?"},
        {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}},
        {"type": "audio", "source": {"type": "url", "value": "https://example.com/a"}},
        {"type": "document", "source": {"type": "file", "value": "file_1"}},
    ]
    (message,) = read([{"id": "1", "role": "user", "content": content}]).request.messages
    assert message.text == "what is this?"
    assert message.attachments == (
        Attachment("image/png", "data:image/png;base64,aGk="),
        Attachment("audio/*", "https://example.com/a"),
        Attachment("application/octet-stream", "", file_id="file_1"),
    )


def test_tools_and_what_the_client_adds_reach_the_model() -> None:
    request = read(
        ASKED[:1],
        tools=[{"name": "look_up", "description": "Looks.", "parameters": {"type": "object"}}],
        context=[{"description": "page", "value": "/cart"}],
        state={"count": 1, "none": None, "\ud83d": "\ud83d"},
        forwardedProps={"temperature": 0.5},
    ).request
    assert request.tools == (Tool("look_up", "Looks.", {"type": "object"}),)
    assert request.extra == {
        "threadId": "t",
        "runId": "r",
        "context": [{"description": "page", "value": "/cart"}],
        "state": {"count": 1, "none": None, "\ud83d": "\ud83d"},
        "forwardedProps": {"temperature": 0.5},
    }


@pytest.mark.parametrize("payload", [{"approved": True}, True])
def test_an_approved_call_is_run_by_the_model(payload: Any) -> None:
    run = read(ASKED, resume=[{"interruptId": "c1", "status": "resolved", "payload": payload}])
    assert run.request.approved_calls == (ToolCall("c1", "send", '{"a": 1}'),)
    assert run.request.messages[1] == ChatMessage("assistant", "Shall I?")
    assert run.denied == ()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"status": "resolved", "payload": {"approved": False, "reason": "too late"}}, "too late"),
        ({"status": "cancelled"}, DENIED),
    ],
)
def test_a_denied_call_has_a_result_that_says_why(entry: dict[str, Any], reason: str) -> None:
    run = read(ASKED, resume=[{"interruptId": "c1", **entry}])
    assert run.denied == (ChatMessage("tool", reason, tool_call_id="c1"),)
    assert run.request.messages[1:] == (
        ChatMessage("assistant", "Shall I?", tool_calls=(ToolCall("c1", "send", '{"a": 1}'),)),
        *run.denied,
    )
    assert run.request.approved_calls == ()


@pytest.mark.parametrize(
    ("entry", "content", "is_approved"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, '{"approved":true}', True),
        ({"status": "resolved", "payload": {"approved": False}}, '{"approved":false}', False),
        ({"status": "cancelled"}, '{"status":"cancelled"}', False),
    ],
)
def test_an_answer_that_copilotkit_adds_to_the_messages_is_no_result(
    entry: dict[str, Any], content: str, is_approved: bool
) -> None:
    answered = [*ASKED, {"id": "3", "role": "tool", "toolCallId": "c1", "content": content}]
    run = read(answered, resume=[{"interruptId": "c1", **entry}])
    assert [message.text for message in run.request.messages[2:]] == ([] if is_approved else [DENIED])
    assert len(run.request.approved_calls) == is_approved


def test_a_call_without_an_answer_is_left_out_and_a_repeated_answer_is_ignored() -> None:
    assert read(ASKED).request.messages[1] == ChatMessage("assistant", "Shall I?")
    answered = [*ASKED, {"id": "3", "role": "tool", "toolCallId": "c1", "content": "sent"}]
    run = read(answered, resume=[{"interruptId": "c1", "status": "resolved", "payload": {"approved": True}}])
    assert run.request.approved_calls == ()


def test_an_interrupt_has_one_answer() -> None:
    approval = {"interruptId": "c1", "status": "resolved", "payload": {"approved": True}}
    with pytest.raises(InvalidParameter, match="two answers") as refused:
        read(ASKED, resume=[approval, {"interruptId": "c1", "status": "cancelled"}])
    assert refused.value.param == "resume[1].interruptId"


@pytest.mark.parametrize(
    ("entry", "param"),
    [
        ({"interruptId": "c2", "status": "cancelled"}, "resume[0].interruptId"),
        ({"interruptId": "c1", "status": "resolved", "payload": "yes"}, "resume[0].payload.approved"),
    ],
)
def test_an_answer_to_nothing_or_of_another_form_is_refused(entry: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        read(ASKED, resume=[entry])
    assert refused.value.param == param
