"""The requests of the Responses API, as chat models get them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app_toolkit.chat import Attachment, ChatMessage, ChatRequest, Tool, offered_tools
from app_toolkit.chat.failures import InvalidParameter
from app_toolkit.chat.openai.response_items import (
    ResponseItem,
    ResponseRequest,
    chat_messages,
    input_items,
    page_of,
    response_chat_request,
    response_head,
)
from app_toolkit.chat.protocol import ToolCall

LOOK_UP = {"type": "function", "name": "look_up", "description": "look", "parameters": {"type": "object"}}


def asked(input: Any = "hello", **fields: Any) -> ChatRequest:
    return response_chat_request(ResponseRequest(model="m", input=input, **fields))


def test_a_text_is_a_message_of_the_user_after_the_instructions() -> None:
    assert asked("hello", instructions="be brief") == ChatRequest(
        messages=(ChatMessage("system", "be brief"), ChatMessage("user", "hello")), model="m"
    )


def test_items_are_the_messages_of_a_conversation() -> None:
    request = asked(
        [
            {"role": "developer", "content": "be brief"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "rain?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look", "x": 1}]},
            {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "look_up", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "look_up", "arguments": "[]"},
            {"type": "function_call_output", "call_id": "a", "output": "it rains"},
            {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "a lot"}]},
            {"type": "function_call", "call_id": "c", "name": "look_up"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ]
    )
    assert request.messages == (
        ChatMessage("system", "be brief"),
        ChatMessage("user", "rain?"),
        ChatMessage(
            "assistant",
            "I look",
            (ToolCall("a", "look_up", "{}"), ToolCall("b", "look_up", "[]")),
            reasoning="hm",
        ),
        ChatMessage("tool", "it rains", tool_call_id="a"),
        ChatMessage("tool", "a lot", tool_call_id="b"),
        ChatMessage("assistant", "", (ToolCall("c", "look_up", ""),)),
        ChatMessage("assistant", "no"),
    )


def test_images_and_files_are_attachments() -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "https://x.test/a.png?b", "detail": "auto"},
        {"type": "input_file", "file_data": "YQ==", "filename": "a.pdf"},
        {"type": "input_file", "file_url": "https://x.test/b.csv"},
        {"type": "input_text", "text": "there"},
    ]
    (message,) = asked([{"role": "user", "content": parts}]).messages
    assert message.text == "look\nthere"
    assert message.attachments == (
        Attachment("image/png", "https://x.test/a.png?b"),
        Attachment("application/pdf", "data:application/pdf;base64,YQ==", "a.pdf"),
        Attachment("text/csv", "https://x.test/b.csv"),
    )


def test_options_have_the_names_of_chat_completions() -> None:
    request = asked(
        tools=[{**LOOK_UP, "strict": True}],
        tool_choice="required",
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        user="u",
        reasoning={"effort": "low", "summary": "auto"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
        include=["reasoning.encrypted_content"],
        truncation="auto",
        stream_options={"include_obfuscation": False},
        top_k=3,
    )
    assert request.tools == (Tool("look_up", "look", {"type": "object"}),)
    assert (request.tool_choice, request.max_tokens, request.user) == ("required", 5, "u")
    assert (request.temperature, request.top_p) == (0.5, 0.9)
    assert request.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}},
    }
    assert request.extra == {
        "reasoning_effort": "low",
        "parallel_tool_calls": False,
        "verbosity": "low",
        "top_k": 3,
    }
    assert asked(text={"format": {"type": "json_object"}}).response_format == {"type": "json_object"}
    assert asked(text={"format": {"type": "text"}}).response_format is None


def test_the_choice_of_a_tool() -> None:
    tools = [LOOK_UP, {**LOOK_UP, "name": "other"}]
    assert asked(tools=tools, tool_choice={"type": "function", "name": "other"}).tool_choice == "other"
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    request = asked(tools=tools, tool_choice=allowed)
    assert ([tool.name for tool in request.tools], request.tool_choice) == (["other"], "required")
    nameless = {"type": "allowed_tools", "mode": "auto", "tools": [{"name": ["other"]}, {"type": "function"}]}
    assert asked(tools=tools, tool_choice=nameless).tools == ()


OTHER_TOOLS = [
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
    {"type": "web_search", "external_web_access": False},
    {"type": "local_shell"},
    {"type": "computer_use_preview", "display_width": 1024, "display_height": 768, "environment": "browser"},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "s", "server_url": "https://x.test"},
    {"type": "image_generation"},
]


def test_tools_of_other_types_are_ignored_with_one_note_for_each_type(caplog: pytest.LogCaptureFixture) -> None:
    tools = [*OTHER_TOOLS, LOOK_UP, {"type": "own type of this test"}, {"type": "own type of this test", "name": "b"}]
    for _ in range(2):
        assert [tool.name for tool in asked(tools=tools).tools] == ["look_up"]
    noted = "tools of the type 'own type of this test' are ignored: chat models know functions only"
    assert [record.message for record in caplog.records].count(noted) == 1


def test_the_log_has_a_bounded_number_of_notes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offered_tools, "MAX_NOTED", 0)
    asked(tools=[{"type": f"type {number}"} for number in range(3)])
    assert not caplog.records


@pytest.mark.parametrize(
    ("tools", "choice", "expected"),
    [
        ([LOOK_UP, *OTHER_TOOLS], {"type": "web_search"}, "auto"),
        ([LOOK_UP, *OTHER_TOOLS], {"type": "custom", "name": "apply_patch"}, "auto"),
        ([LOOK_UP, *OTHER_TOOLS], {"type": "mcp", "server_label": "s"}, "auto"),
        ([LOOK_UP, *OTHER_TOOLS], "required", "required"),
        (OTHER_TOOLS, {"type": "web_search"}, None),
        (OTHER_TOOLS, "required", None),
        (
            [LOOK_UP, *OTHER_TOOLS],
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
            None,
        ),
    ],
)
def test_the_choice_of_an_ignored_tool_leaves_the_choice_to_the_model(tools: Any, choice: Any, expected: Any) -> None:
    assert asked(tools=tools, tool_choice=choice).tool_choice == expected


def test_calls_of_other_tools_in_the_input_are_calls_of_functions_or_left_out() -> None:
    action = {"type": "exec", "command": ["ls"]}
    operation = {"type": "delete_file", "path": "a.py"}
    screenshot = {"type": "computer_screenshot", "image_url": "data:,x"}
    request = asked(
        [
            {"role": "user", "content": "go"},
            {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": 'x "y"'},
            {"type": "custom_tool_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "ok"}]},
            {"type": "local_shell_call", "id": "1", "call_id": "b", "action": action, "status": "completed"},
            {"type": "local_shell_call_output", "id": "1", "call_id": "b", "output": "a.py"},
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            {"type": "function_call_output", "call_id": "c", "output": "b.py"},
            {"type": "computer_call", "call_id": "d", "pending_safety_checks": []},
            {"type": "computer_call_output", "call_id": "d", "output": screenshot},
            {"type": "apply_patch_call", "call_id": "e", "operation": operation},
            {"type": "apply_patch_call_output", "call_id": "e", "status": "completed"},
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
            {"type": "file_search_call", "id": "fs_1", "queries": ["x"], "results": None},
            {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": []},
            {"type": "image_generation_call", "id": "ig_1", "result": "AAAA"},
            {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
            {"role": "user", "content": "go on"},
        ]
    )
    assert request.messages == (
        ChatMessage("user", "go"),
        ChatMessage("assistant", "", (ToolCall("a", "apply_patch", '{"input": "x \\"y\\""}'),)),
        ChatMessage("tool", "ok", tool_call_id="a"),
        ChatMessage("assistant", "", (ToolCall("b", "local_shell", json.dumps(action)),)),
        ChatMessage("tool", "a.py", tool_call_id="b"),
        ChatMessage("assistant", "", (ToolCall("c", "shell", '{"commands": ["ls"]}'),)),
        ChatMessage("tool", "b.py", tool_call_id="c"),
        ChatMessage("assistant", "", (ToolCall("d", "computer", "{}"),)),
        ChatMessage("tool", json.dumps(screenshot), tool_call_id="d"),
        ChatMessage("assistant", "", (ToolCall("e", "apply_patch", json.dumps(operation)),)),
        ChatMessage("tool", "", tool_call_id="e"),
        ChatMessage("user", "go on"),
    )


def test_calls_that_the_model_has_run_itself_are_calls_with_their_results() -> None:
    call = {"type": "mcp_call", "server_label": "app_toolkit", "name": "search", "arguments": '{"x": 1}'}
    error = {"type": "mcp_tool_execution_error", "content": "it broke"}
    request = asked(
        [
            {"role": "assistant", "content": "I look."},
            {**call, "id": "mcp_1", "status": "completed", "output": "[1]", "error": None},
            {**call, "id": "mcp_2", "status": "failed", "output": None, "error": error},
            {**call, "id": "mcp_3", "status": "incomplete", "output": None, "error": None},
            {"role": "assistant", "content": "I found one."},
        ]
    )
    assert request.messages == (
        ChatMessage("assistant", "I look.", (ToolCall("mcp_1", "search", '{"x": 1}'),)),
        ChatMessage("tool", "[1]", tool_call_id="mcp_1"),
        ChatMessage("assistant", "", (ToolCall("mcp_2", "search", '{"x": 1}'),)),
        ChatMessage("tool", json.dumps(error), tool_call_id="mcp_2", is_error=True),
        ChatMessage("assistant", "I found one."),
    )


ASKED = {
    "type": "mcp_approval_request",
    "id": "mcpr_c1",
    "server_label": "app_toolkit",
    "name": "pay",
    "arguments": "{}",
}
ANSWER = {"type": "mcp_approval_response", "approval_request_id": "mcpr_c1"}


def test_an_approved_call_is_given_to_the_model_until_it_has_a_result() -> None:
    question = {"role": "user", "content": "pay"}
    request = asked([question, ASKED, {**ANSWER, "approve": True}])
    assert request.approved_calls == (ToolCall("c1", "pay", "{}"),)
    assert request.messages == (ChatMessage("user", "pay"),)
    assert asked([question, ASKED]).approved_calls == ()
    run = {"type": "mcp_call", "id": "mcp_1", "name": "pay", "arguments": "{}", "approval_request_id": "mcpr_c1"}
    lost = asked([question, ASKED, {**ANSWER, "approve": True}, run])
    assert lost.approved_calls == (ToolCall("c1", "pay", "{}"),)
    done = asked([question, ASKED, {**ANSWER, "approve": True}, {**run, "output": "paid"}])
    assert done.approved_calls == ()
    assert done.messages[1:] == (
        ChatMessage("assistant", tool_calls=(ToolCall("c1", "pay", "{}"),)),
        ChatMessage("tool", "paid", tool_call_id="c1"),
    )


@pytest.mark.parametrize(("reason", "text"), [("too much", "too much"), (None, "The call of the tool was denied.")])
def test_a_denied_call_is_a_call_whose_result_is_the_reason(reason: str | None, text: str) -> None:
    request = asked([{"role": "user", "content": "pay"}, ASKED, {**ANSWER, "approve": False, "reason": reason}])
    assert request.approved_calls == ()
    assert request.messages[1:] == (
        ChatMessage("assistant", tool_calls=(ToolCall("c1", "pay", "{}"),)),
        ChatMessage("tool", text, tool_call_id="c1"),
    )


def test_approvals_of_other_servers_are_ignored_and_an_answer_needs_its_request() -> None:
    question, other = {"role": "user", "content": "pay"}, {**ASKED, "server_label": "stripe"}
    for approve in (True, False):
        request = asked([question, other, {**ANSWER, "approve": approve}])
        assert (request.messages, request.approved_calls) == ((ChatMessage("user", "pay"),), ())
    with pytest.raises(InvalidParameter) as refused:
        asked([question, {**ANSWER, "approve": True}])
    assert refused.value.param == "input[1].approval_request_id"


def test_a_call_that_the_model_has_run_itself_is_ignored_if_it_has_no_name() -> None:
    nameless = {"type": "mcp_call", "id": "mcp_1", "call_id": "a", "arguments": "{}", "output": "[1]"}
    assert asked([{"role": "user", "content": "hello"}, nameless]).messages == (ChatMessage("user", "hello"),)


@pytest.mark.parametrize(
    ("output", "text"), [(0, "0"), (False, "false"), ({}, "{}"), (None, ""), ("", ""), ([], "")], ids=repr
)
def test_the_output_of_a_tool_of_another_type_is_its_json(output: Any, text: str) -> None:
    item = {"type": "computer_call_output", "call_id": "a", "output": output}
    assert asked([item]).messages == (ChatMessage("tool", text, tool_call_id="a"),)


def test_the_choice_of_a_function_without_its_name_says_that_the_name_is_missing() -> None:
    with pytest.raises(InvalidParameter, match=r"the field tool_choice\.name is missing"):
        asked(tools=[LOOK_UP], tool_choice={"type": "function"})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"input": [{"content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": "a"}, {"role": "user"}]}, "input[1].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].file_data"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "f"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "output": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "f"}]}, "input[0].output"),
        ({"input": [{"type": "function_call_output", "call_id": "f", "output": {"a": 1}}]}, "input[0].output"),
        ({"input": [{"type": "function_call_output", "call_id": "f", "output": 0}]}, "input[0].output"),
        ({"input": [{"type": "function_call_output", "call_id": "f", "output": {}}]}, "input[0].output"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ],
)
def test_an_unusable_item_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidParameter) as wrong:
        asked(**fields)
    assert wrong.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"metadata": {str(number): "a" for number in range(17)}}, "metadata"),
        ({"metadata": {"a" * 65: "a"}}, "metadata"),
        ({"metadata": {"a": "a" * 513}}, "metadata"),
    ],
)
def test_fields_that_have_no_meaning_here_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidParameter) as wrong:
        ResponseRequest(model="m", input="a", **fields).check()
    assert wrong.value.param == param


@pytest.mark.parametrize("fields", [{"model": ""}, {"max_output_tokens": 0}, {"metadata": {"a": 1}}, {"input": 5}])
def test_fields_of_a_wrong_type_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ResponseRequest(**{"model": "m", "input": "a", **fields})


def test_the_response_has_the_fields_of_the_request() -> None:
    body = ResponseRequest(
        model="m",
        input="a",
        background=True,
        instructions="be brief",
        tools=[{**LOOK_UP, "strict": True}],  # type: ignore[list-item]
        tool_choice={"type": "function", "name": "look_up"},  # type: ignore[arg-type]
        text={"format": {"type": "json_object"}, "verbosity": "low"},  # type: ignore[arg-type]
        metadata={"a": "b"},
    )
    head = response_head(body, "resp_1", 5)
    assert (head["id"], head["object"], head["created_at"], head["status"]) == ("resp_1", "response", 5, "queued")
    assert head["tools"] == [{**LOOK_UP, "strict": True}]
    assert head["tool_choice"] == {"type": "function", "name": "look_up"}
    assert head["text"] == {"format": {"type": "json_object"}, "verbosity": "low"}
    assert (head["instructions"], head["metadata"], head["store"]) == ("be brief", {"a": "b"}, True)
    plain = response_head(ResponseRequest(model="m", input="a", store=False), "resp_1", 5)
    assert (plain["status"], plain["store"], plain["tool_choice"]) == ("in_progress", False, "auto")
    assert plain["text"] == {"format": {"type": "text"}}


ITEMS = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text()}),
    st.fixed_dictionaries(
        {"type": st.just("function_call"), "call_id": st.just("a"), "name": st.just("f"), "arguments": st.text()}
    ),
    st.fixed_dictionaries({"type": st.just("function_call_output"), "call_id": st.just("a"), "output": st.text()}),
    st.fixed_dictionaries({"type": st.just("custom_tool_call"), "call_id": st.just("a"), "input": st.text()}),
    st.fixed_dictionaries({"type": st.just("mcp_call"), "id": st.just("m"), "name": st.just("f"), "output": st.text()}),
    st.just({"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "queries": [None]}}),
    st.just({"type": "reasoning", "id": "rs_1", "summary": []}),
)


@given(st.lists(ITEMS, max_size=8), st.integers(0, 8))
def test_a_conversation_in_two_requests_is_the_same_conversation(items: list[dict[str, Any]], cut: int) -> None:
    """The items of the first request are kept as JSON, and come before those of the second one."""
    whole = [ResponseItem.model_validate(each) for each in items]
    first = input_items(ResponseRequest(model="m", input=items[:cut]))  # type: ignore[arg-type]
    kept = [ResponseItem.model_validate(each.model_dump(exclude_none=True)) for each in first]
    messages = chat_messages(whole)
    if messages:
        request = response_chat_request(ResponseRequest(model="m", input=items[cut:]), kept)  # type: ignore[arg-type]
        assert list(request.messages) == messages
    texts = [each.text for each in messages if each.role != "tool" and not each.tool_calls]
    assert set(texts) <= {each.get("content") for each in items}


def test_an_error_in_a_continued_conversation_names_the_item_of_the_request() -> None:
    earlier = [ResponseItem(role="user", content="a"), ResponseItem(role="assistant", content="b")]
    body = ResponseRequest(model="m", input=[{"role": "user", "content": "c"}, {"type": "other"}])  # type: ignore[list-item]
    with pytest.raises(InvalidParameter, match=r"input\[1\] has the type 'other'"):
        response_chat_request(body, earlier)


def test_reasoning_belongs_to_the_message_or_the_call_that_follows_it() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}
    request = asked(
        [
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "first"}]},
            {"type": "function_call", "call_id": "a", "name": "look_up", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "it rains"},
            summary,
            {"role": "user", "content": "and now?"},
            summary,
            {"role": "assistant", "content": "rain"},
            summary,
        ]
    )
    assert [(each.role, each.reasoning) for each in request.messages] == [
        ("assistant", "first"),
        ("tool", ""),
        ("user", ""),
        ("assistant", "short"),
    ]


INPUT = [ResponseItem(id=f"msg_{number}", role="user", content=str(number)) for number in range(5)]


@given(st.integers(1, 7), st.sampled_from(["asc", "desc"]))
def test_pages_of_input_items_have_each_item_once(limit: int, order: Any) -> None:
    found: list[str] = []
    page = page_of(INPUT, limit, order, None)
    while True:
        found += [each["id"] for each in page.data]
        assert (page.first_id, page.last_id) == (page.data[0]["id"], page.data[-1]["id"])
        if not page.has_more:
            break
        page = page_of(INPUT, limit, order, page.last_id)
    ids = [f"msg_{number}" for number in range(5)]
    assert found == (ids if order == "asc" else ids[::-1])


def test_page_after_an_unknown_item_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="'msg_9'"):
        page_of(INPUT, 1, "asc", "msg_9")


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["a"]},
        {"logprobs": True},
        {"top_logprobs": 2},
        {"include": ["message.output_text.logprobs"]},
    ],
)
def test_stop_and_logprobs_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match="not supported"):
        ResponseRequest(model="m", input="a", **fields).check()
    ResponseRequest(model="m", input="a", top_logprobs=0).check()  # type: ignore[call-arg]
