"""The translation to and from servers with OpenAI's API."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat import (
    Attachment,
    ChatError,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    FinishEvent,
    ReasoningEvent,
    SourceEvent,
    TextEvent,
    Tool,
    ToolCall,
    ToolCallEvent,
    UsageEvent,
)
from app_toolkit.chat.openai.compatible_wire import ChunkReader, completion_body
from app_toolkit.chat.openai.wire import ChatCompletionRequest, chat_request

chat = pytest.importorskip("openai.types.chat", reason="openai is not installed")

words = st.text("abc äß\n", max_size=8)
names = st.text("abc_", min_size=1, max_size=8)
schemas = st.none() | st.just({"type": "object", "properties": {"a": {"type": "string"}}})
attachments = st.sampled_from(
    [
        Attachment("image/png", "data:image/png;base64,AAAA"),
        Attachment("image/jpeg", "https://example.com/a.jpg"),
        Attachment("audio/mpeg", "data:audio/mpeg;base64,AAAA"),
        Attachment("application/pdf", "data:application/pdf;base64,AAAA", "a.pdf"),
    ]
)
messages = st.one_of(
    st.builds(
        ChatMessage, st.sampled_from(["system", "user"]), words, attachments=st.tuples() | st.tuples(attachments)
    ),
    st.builds(ChatMessage, st.just("assistant"), words, st.lists(st.builds(ToolCall, names, names, words)).map(tuple)),
    st.builds(ChatMessage, st.just("tool"), words, tool_call_id=names),
)
tools = st.lists(st.builds(Tool, names, words, schemas), max_size=2).map(tuple)
requests = st.builds(
    ChatRequest,
    st.lists(messages, min_size=1, max_size=4).map(tuple),
    names,
    tools,
    st.none() | st.sampled_from(["auto", "none", "required"]),
    st.none() | st.integers(1, 99),
    st.none() | st.floats(0, 2),
    st.none() | st.floats(0, 1),
    st.lists(names, max_size=2).map(tuple),
    st.none() | st.integers(0, 99),
    st.none() | st.just({"type": "json_object"}),
    st.none() | names,
)


@given(requests)
def test_our_own_router_reads_the_same_request(request: ChatRequest) -> None:
    assert chat_request(ChatCompletionRequest(**completion_body(request))) == request


def test_a_tool_that_must_be_called_is_named() -> None:
    request = ChatRequest((ChatMessage("user", "a"),), tools=(Tool("look_up"),), tool_choice="look_up")
    assert completion_body(request)["tool_choice"] == {"type": "function", "function": {"name": "look_up"}}
    assert chat_request(ChatCompletionRequest(**completion_body(request))) == request


def test_options_of_the_model_override_the_request() -> None:
    request = ChatRequest(
        (ChatMessage("user", "a"),), "small", max_tokens=5, seed=7, choice=2, extra={"top_k": 1, "stream": False}
    )
    body = completion_body(
        request,
        model="big",
        max_tokens_field="max_completion_tokens",
        forwarded_fields=("top_k", "stream"),
        extra_body={"seed": 1, "think": False},
    )
    assert (body["model"], body["max_completion_tokens"], body["top_k"]) == ("big", 5, 1)
    assert (body["stream"], body["seed"], body["think"]) == (True, 1, False)
    assert completion_body(replace(request, choice=0))["seed"] == 7
    assert completion_body(request)["seed"] == 9
    assert completion_body(request).keys() == {"model", "messages", "stream", "stream_options", "max_tokens", "seed"}


def read(*chunks: dict[str, Any]) -> list[ChatEvent]:
    """The events of chunks, which the SDK makes of whatever a server sends."""
    reader = ChunkReader()
    events = [event for each in chunks for event in reader.read(chat.ChatCompletionChunk.construct(**each))]
    return events + list(reader.end())


def delta(reason: str | None = None, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": index, "delta": fields, "finish_reason": reason}]}


def call(arguments: str | None, index: int | None = None, id: str | None = None, name: str | None = None) -> Any:
    found = {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}
    return delta(tool_calls=[{key: value for key, value in found.items() if value is not None}])


def test_citations_of_pages_are_sources() -> None:
    cited = [{"type": "url_citation", "url_citation": {"url": "https://a", "title": "A", "start_index": 0}}]
    wrong = [{"type": "url_citation", "url_citation": {"title": "B"}}, {"type": "other"}, "text"]
    assert read(delta(content="a", annotations=cited), delta(annotations=wrong), delta(annotations="text")) == [
        TextEvent("a"),
        SourceEvent("https://a", "A"),
        FinishEvent("stop"),
    ]


def test_text_and_reasoning_come_under_the_names_of_several_servers() -> None:
    assert read(
        delta(role="assistant", content=""),
        delta(reasoning_content="let", content=None),
        delta(reasoning="me", content=""),
        delta(reasoning="think", reasoning_content="think"),
        delta(content="hello"),
        delta(content="another choice", index=1),
        delta(refusal="no"),
        delta("stop", content="!"),
    ) == [
        ReasoningEvent("let"),
        ReasoningEvent("me"),
        ReasoningEvent("think"),
        TextEvent("hello"),
        TextEvent("no"),
        TextEvent("!"),
        FinishEvent("stop"),
    ]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # As OpenAI and vLLM send them.
        (
            [call("", 0, "a", "one"), call("{}", 0), call("", 1, "b", "two"), call("[]", 1)],
            [("a", "one", 0, ""), ("", "", 0, "{}"), ("b", "two", 1, ""), ("", "", 1, "[]")],
        ),
        # Complete calls with one index, as some versions of Ollama.
        ([call("{}", 0, "a", "one"), call("[]", 0, "b", "two")], [("a", "one", 0, "{}"), ("b", "two", 1, "[]")]),
        # Without an index, as Gemini.
        ([call("{}", None, "a", "one"), call("[]", None, "b", "two")], [("a", "one", 0, "{}"), ("b", "two", 1, "[]")]),
        # The id in every part.
        ([call("{", 3, "a", "one"), call("}", 3, "a")], [("a", "one", 0, "{"), ("", "", 0, "}")]),
        ([call(None, 0, "a", "one")], [("a", "one", 0, "")]),
    ],
)
def test_the_parts_of_tool_calls_are_kept_apart(
    parts: list[dict[str, Any]], expected: list[tuple[str, str, int, str]]
) -> None:
    found = read(*parts, delta("tool_calls"))
    assert found[:-1] == [
        ToolCallEvent(index, id, name, arguments, executed=False if name else None)
        for id, name, index, arguments in expected
    ]
    assert found[-1] == FinishEvent("tool_calls")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("length", "length"), ("content_filter", "content_filter"), ("function_call", "tool_calls"), ("eos", "stop")],
)
def test_reasons_of_other_servers_become_ours(reason: str, expected: str) -> None:
    assert read(delta(reason, content="a"))[-1] == FinishEvent(expected)  # type: ignore[arg-type]


def test_the_last_usage_counts() -> None:
    first = {"prompt_tokens": 3, "completion_tokens": 1}
    details = {"completion_tokens_details": {"reasoning_tokens": 2}, "prompt_tokens_details": {"cached_tokens": 1}}
    last = {"prompt_tokens": 3, "completion_tokens": 9, **details}
    assert read({**delta(content="a"), "usage": first}, delta("stop"), {"choices": [], "usage": last}) == [
        TextEvent("a"),
        UsageEvent(3, 9, reasoning_tokens=2, cached_tokens=1),
        FinishEvent("stop"),
    ]
    assert read({**delta("stop"), "usage": {}})[0] == UsageEvent(0, 0)


def test_a_reason_tells_whether_the_response_is_complete() -> None:
    reader = ChunkReader()
    list(reader.read(chat.ChatCompletionChunk.construct(**delta(content="a"))))
    assert reader.finish_reason is None
    list(reader.read(chat.ChatCompletionChunk.construct(**delta("stop"))))
    assert reader.finish_reason == "stop"


def test_earlier_reasoning_is_sent_only_if_the_server_has_a_field_for_it() -> None:
    request = ChatRequest((ChatMessage("user", "a"), ChatMessage("assistant", "b", reasoning="because")))
    assert completion_body(request)["messages"][1] == {"role": "assistant", "content": "b"}
    (_, sent) = completion_body(request, reasoning_field="reasoning_content")["messages"]
    assert sent == {"role": "assistant", "content": "b", "reasoning_content": "because"}


def test_a_response_is_continued_only_if_the_server_can() -> None:
    vllm = {"continue_final_message": True, "add_generation_prompt": False}
    request = ChatRequest((ChatMessage("user", "a"),), continue_from=ChatMessage("assistant", "b"))
    body = completion_body(request, continue_fields=vllm)
    assert body["messages"][-1] == {"role": "assistant", "content": "b"}
    assert body.items() >= vllm.items()
    with pytest.raises(ChatError, match="cannot continue"):
        completion_body(request)


def test_reasoning_alone_is_begun_again() -> None:
    request = ChatRequest((ChatMessage("user", "a"),))
    begun = replace(request, continue_from=ChatMessage("assistant", reasoning="b"))
    assert completion_body(begun, continue_fields={"continue_final_message": True}) == completion_body(request)
