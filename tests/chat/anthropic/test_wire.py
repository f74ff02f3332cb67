"""Requests of Anthropic's API become requests for chat models."""

from typing import Any

import pytest

from app_toolkit.chat import Attachment, ChatMessage, ChatRequest, Tool, ToolCall
from app_toolkit.chat.anthropic.wire import MessageRequest, chat_request, page_of
from app_toolkit.chat.failures import InvalidParameter

CACHED = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {"type": "object", "properties": {}}


def request_of(*messages: Any, **fields: Any) -> ChatRequest:
    body = {"model": "gpt", "max_tokens": 9, "messages": messages or [{"role": "user", "content": "a"}], **fields}
    return chat_request(MessageRequest.model_validate(body))


def messages_of(*messages: Any, **fields: Any) -> tuple[ChatMessage, ...]:
    return request_of(*messages, **fields).messages


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content, **CACHED}


def test_the_system_prompt_is_the_first_message_as_text_or_as_blocks() -> None:
    assert messages_of(system="b")[0] == ChatMessage("system", "b")
    assert messages_of(system=[text("b"), text("c")])[0] == ChatMessage("system", "b\nc")
    assert messages_of({"role": "system", "content": "d"}) == (ChatMessage("system", "d"),)


def test_calls_thinking_and_results_of_tools_have_their_messages() -> None:
    assistant = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "so", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            text("I look."),
            {"type": "tool_use", "id": "c1", "name": "search", "input": {"a": "ä"}},
        ],
    }
    image = {"type": "image", "source": {"type": "url", "url": "https://x/a.png"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [text("r"), image], "is_error": True}
    call = ToolCall("c1", "search", '{"a": "ä"}')
    assert messages_of(assistant, user(result, text("go on"))) == (
        ChatMessage("assistant", "I look.", tool_calls=(call,), reasoning="so"),
        ChatMessage(
            "tool", "r", tool_call_id="c1", attachments=(Attachment("image/*", "https://x/a.png"),), is_error=True
        ),
        ChatMessage("user", "go on"),
    )


def test_calls_that_a_server_has_run_are_messages_of_their_own() -> None:
    content = [
        text("I look."),
        {"type": "mcp_tool_use", "id": "c1", "name": "search", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "c1", "is_error": False, "content": [text("r")]},
        {"type": "server_tool_use", "id": "c2", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "c2", "content": [{"type": "web_search_result", "url": "u"}]},
        text("Done."),
    ]
    assert messages_of({"role": "assistant", "content": content}) == (
        ChatMessage("assistant", "I look.", tool_calls=(ToolCall("c1", "search", "{}"),)),
        ChatMessage("tool", "r", tool_call_id="c1"),
        ChatMessage("assistant", tool_calls=(ToolCall("c2", "web_search", "{}"),)),
        ChatMessage("tool", '[{"type": "web_search_result", "url": "u"}]', tool_call_id="c2"),
        ChatMessage("assistant", "Done."),
    )


@pytest.mark.parametrize(
    ("block", "content"),
    [
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            Attachment("image/png", "data:image/png;base64,AA=="),
        ),
        (
            {"type": "document", "title": "t", "source": {"type": "url", "url": "https://x/a.pdf"}},
            Attachment("application/pdf", "https://x/a.pdf", "t"),
        ),
        (
            {"type": "document", "title": "t", "source": {"type": "text", "data": "d"}},
            "t\nd",
        ),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "d"}]}}, "d"),
        ({"type": "search_result", "title": "t", "source": "u", "content": [{"type": "text", "text": "d"}]}, "t\nu\nd"),
    ],
)
def test_images_and_documents_are_attachments_or_texts(block: Any, content: str | Attachment) -> None:
    (message,) = messages_of(user(block))
    assert ([message.text] if isinstance(content, str) else list(message.attachments)) == [content]


def test_options_have_the_names_of_chat_models() -> None:
    request = request_of(
        stop_sequences=["x"],
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        metadata={"user_id": "u"},
        thinking={"type": "enabled", "budget_tokens": 1024, "unknown": 1},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        tools=[{"name": "f", "description": "d", "input_schema": SCHEMA, **CACHED}, {"type": "web_search_20250305"}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    assert request == ChatRequest(
        (ChatMessage("user", "a"),),
        "gpt",
        (Tool("f", "d", SCHEMA),),
        "required",
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        stop=("x",),
        response_format={"type": "json_schema", "json_schema": {"name": "response", "schema": SCHEMA}},
        user="u",
        extra={
            "top_k": 3,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "reasoning_effort": "low",
            "parallel_tool_calls": False,
        },
    )


@pytest.mark.parametrize(
    ("choice", "chosen"), [({"type": "auto"}, "auto"), ({"type": "none"}, "none"), ({"type": "tool", "name": "f"}, "f")]
)
def test_a_choice_of_tools_is_that_of_chat_models(choice: Any, chosen: str) -> None:
    tool = {"type": "custom", "name": "f", "input_schema": SCHEMA}
    assert request_of(tools=[tool], tool_choice=choice).tool_choice == chosen
    assert request_of(tools=[{"type": "bash_20250124", "name": "bash"}], tool_choice=choice).tool_choice is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"messages": [user({"type": "image", "source": {"type": "cloud", "file_id": "f"}})]},
            "messages[0].content[0].source.type",
        ),
        ({"messages": [user({"type": "container_upload"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user({"type": "tool_result", "content": "a"})]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [user({"type": "tool_use", "id": "c"})]}, "messages[0].content[0].name"),
        ({"mcp_servers": [{"url": "u"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
    ],
)
def test_what_is_not_supported_is_refused_with_the_name_of_the_field(fields: Any, param: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        request_of(**fields)
    assert refused.value.param == param


def test_a_page_of_models_follows_or_precedes_one_of_them() -> None:
    assert page_of("abcd", 2, None, None) == (["a", "b"], True)
    assert page_of("abcd", 2, "b", None) == (["c", "d"], False)
    assert page_of("abcd", 2, None, "d") == (["b", "c"], True)
    assert page_of("abcd", 2, "d", None) == ([], False)
