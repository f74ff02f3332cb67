"""Items of OpenAI's API as stored messages."""

from typing import Any

import pytest

from app_toolkit.chat import MessageTree, StoredMessage
from app_toolkit.chat.ai_sdk.messages import UIMessage, chat_messages
from app_toolkit.chat.ai_sdk.placement import ui_document
from app_toolkit.chat.openai.response_items import ResponseItem
from app_toolkit.chat.openai.stored_items import answered_calls, items_of, stored_messages

PAGE = {"type": "url_citation", "start_index": 0, "end_index": 4, "url": "https://oslo.no", "title": "Oslo"}
FILE = {"type": "file_citation", "file_id": "file_1", "filename": "cities.pdf", "index": 15}


@pytest.mark.parametrize(
    "item",
    [
        {
            "type": "function_call",
            "id": "i",
            "call_id": "c1",
            "name": "search",
            "arguments": "{}",
            "status": "completed",
        },
        {"type": "function_call_output", "id": "i", "call_id": "c1", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "id": "i", "summary": [], "encrypted_content": "abc"},
        {"type": "message", "id": "i", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
        {
            "type": "message",
            "id": "i",
            "role": "user",
            "content": [{"type": "input_image", "image_url": "https://x/y.png"}],
        },
        {"type": "message", "id": "i", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
        {
            "type": "message",
            "id": "i",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Oslo is a city.", "annotations": [PAGE, FILE]}],
        },
        {"type": "message", "id": "i", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
    ],
)
def test_an_item_is_read_as_it_was_stored(item: dict[str, Any]) -> None:
    (message,) = stored_messages([ResponseItem.model_validate(item)], MessageTree())
    assert [each.model_dump(exclude_none=True) for each in items_of([message])] == [item]


def test_items_follow_the_active_message_and_have_free_ids() -> None:
    tree = MessageTree((StoredMessage("1", "user", []), StoredMessage("2", "user", [])), "1")
    items = [ResponseItem(id="2", role="user", content="x"), ResponseItem(role="assistant", content="y")]
    first, second = stored_messages(items, tree, "small")
    assert (first.parent_id, second.parent_id) == ("1", first.id)
    assert first.id != "2"
    assert (first.model, second.model) == (None, "small")


def test_a_message_of_the_ai_sdk_is_a_message_and_the_calls_of_tools_with_a_result() -> None:
    parts = [
        {"type": "step-start"},
        {"type": "tool-search", "toolCallId": "c1", "state": "output-available", "input": {"x": 1}, "output": [1]},
        {"type": "tool-search", "toolCallId": "c2", "state": "input-available", "input": {}},
        {"type": "text", "text": "One."},
    ]
    call, output, message = items_of([StoredMessage("a1", "assistant", parts)])
    assert (call.name, call.call_id, call.arguments) == ("search", "c1", '{"x": 1}')
    assert (output.type, output.call_id, output.output) == ("function_call_output", "c1", "[1]")
    assert (message.id, message.role) == ("a1", "assistant")


def test_citations_are_sources_of_the_ai_sdk() -> None:
    content = [{"type": "output_text", "text": "Oslo.", "annotations": [PAGE, FILE]}]
    (message,) = stored_messages(
        [ResponseItem.model_validate({"role": "assistant", "content": content})], MessageTree()
    )
    page, document = (part for part in message.parts if part["type"].startswith("source-"))
    assert (page["type"], page["url"], page["title"]) == ("source-url", "https://oslo.no", "Oslo")
    assert (document["type"], document["sourceId"], document["filename"]) == ("source-document", "file_1", "cities.pdf")


def test_sources_of_the_ai_sdk_are_citations_at_the_end_of_the_text_before_them() -> None:
    parts = [
        {"type": "text", "text": "Oslo."},
        {"type": "source-url", "sourceId": "s1", "url": "https://oslo.no", "title": "Oslo"},
        {"type": "source-document", "sourceId": "file_1", "mediaType": "application/pdf", "title": "Cities"},
    ]
    (item,) = items_of([StoredMessage("a1", "assistant", parts)])
    (text,) = item.model_dump(exclude_none=True)["content"]
    assert text["annotations"] == [
        {**PAGE, "start_index": 5, "end_index": 5},
        {**FILE, "filename": "Cities", "index": 5},
    ]


def test_a_call_of_a_function_gets_its_result_as_the_ai_sdk_has_it() -> None:
    call = ResponseItem(type="function_call", call_id="c1", name="search", arguments='{"x": 1}')
    (message,) = stored_messages([call], MessageTree())
    output = ResponseItem(type="function_call_output", call_id="c1", output="it rains")
    other = ResponseItem(type="function_call_output", call_id="c2", output="it is dry")
    (answered,) = answered_calls([output, other], [message])
    asked, result = chat_messages(UIMessage(**ui_document(answered)))
    assert (result.role, result.text) == ("tool", "it rains")
    assert [(each.id, each.name, each.arguments) for each in asked.tool_calls] == [("c1", "search", '{"x": 1}')]
    assert items_of([answered]) == items_of([message])
    assert answered_calls([output], [answered]) == [], "a result is set once"


def test_a_result_that_is_an_error_is_one_for_the_clients_of_both_protocols() -> None:
    call = ResponseItem(type="function_call", call_id="c1", name="search", arguments="{}")
    failed = ResponseItem(type="function_call_output", call_id="c1", output="no network", is_error=True)
    (answered,) = answered_calls([failed], stored_messages([call], MessageTree()))
    _, result = chat_messages(UIMessage(**ui_document(answered)))
    assert (result.text, result.is_error) == ("no network", True)
    parts = [part for part in answered.parts if "toolCallId" in part]
    _, output = items_of([StoredMessage("a1", "assistant", parts)])
    assert (output.output, output.is_error) == ("no network", True)
