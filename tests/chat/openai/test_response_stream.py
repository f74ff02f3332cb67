"""The events of a response, and the response that its events make up."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from app_toolkit.chat import (
    ApprovalRequest,
    ChatEvent,
    DocumentEvent,
    FinishEvent,
    ReasoningEvent,
    SourceEvent,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from app_toolkit.chat.openai.response_stream import FINAL, ResponseEvents, ResponseReader, WireEvent
from tests.chat.model_events import EVENTS, checked_events, for_openai

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
HEAD = {"id": "resp_1", "object": "response", "status": "in_progress", "output": [], "error": None, "usage": None}


def run(*events: ChatEvent, head: dict[str, Any] = HEAD) -> list[WireEvent]:
    """All events of a response, as they are read from a log."""
    response = ResponseEvents(head)
    found = [*response.created(), *response.started()]
    for event in for_openai(checked_events(events)):
        found += response.translate(event)
    found += response.completed(1_000)
    return list(json.loads(json.dumps(found)))


def types(events: list[WireEvent]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def read(events: list[WireEvent]) -> ResponseReader:
    reader = ResponseReader()
    for event in events:
        reader.add(event)
    return reader


def test_a_text_has_the_events_of_openai() -> None:
    events = run(TextEvent("Hel"), TextEvent(""), TextEvent("lo"), UsageEvent(3, 2, 1, 2), FinishEvent("stop"))
    assert types(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    added, part, first, second, done, part_done, item_done, completed = events[2:]
    where = {"item_id": added["item"]["id"], "output_index": 0}
    message = {"id": where["item_id"], "type": "message", "role": "assistant"}
    text = {"type": "output_text", "annotations": [], "logprobs": []}
    assert added["item"] == {**message, "status": "in_progress", "content": []}
    assert part == {**part, **where, "content_index": 0, "part": {**text, "text": ""}}
    assert [each["delta"] for each in (first, second)] == ["Hel", "lo"]
    assert second == {**second, **where, "content_index": 0, "logprobs": []}
    assert done == {**done, **where, "content_index": 0, "text": "Hello", "logprobs": []}
    assert part_done == {**part_done, **where, "content_index": 0, "part": {**text, "text": "Hello"}}
    assert item_done["item"] == {**message, "status": "completed", "content": [{**text, "text": "Hello"}]}
    response = completed["response"]
    assert (response["status"], response["completed_at"], response["incomplete_details"]) == ("completed", 1_000, None)
    assert response["output"] == [item_done["item"]]
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 5,
    }


def test_reasoning_is_an_item_of_its_own() -> None:
    events = run(ReasoningEvent("let "), ReasoningEvent("me"), TextEvent("yes"))
    assert types(events)[2:10] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
    ]
    assert events[2]["item"] == {**events[2]["item"], "type": "reasoning", "summary": []}
    assert events[3]["part"] == {"type": "summary_text", "text": ""}
    assert (events[6]["text"], events[6]["summary_index"]) == ("let me", 0)
    reasoning, message = events[-1]["response"]["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "let me"}]
    assert message["content"][0]["text"] == "yes"


def test_sources_are_citations_at_the_end_of_the_text_so_far() -> None:
    page, document = SourceEvent("https://example.com", "", "s1"), DocumentEvent("Manual", name="manual.pdf", id="s2")
    events = run(TextEvent("ab"), page, TextEvent("c"), document)
    web = {
        "type": "url_citation",
        "start_index": 2,
        "end_index": 2,
        "url": "https://example.com",
        "title": "https://example.com",
    }
    file = {"type": "file_citation", "file_id": "s2", "filename": "manual.pdf", "index": 3}
    added = [event for event in events if event["type"] == "response.output_text.annotation.added"]
    assert [(event["annotation_index"], event["annotation"]) for event in added] == [(0, web), (1, file)]
    for event in events[2:-1]:
        EVENT.validate_python(event)
    (message,) = events[-1]["response"]["output"]
    assert message["content"] == [{"type": "output_text", "text": "abc", "annotations": [web, file], "logprobs": []}]
    cut = read(events[: events.index(added[1])]).document("stopped")
    assert cut is not None
    assert cut["output"][0]["content"][0]["annotations"] == [web]


def test_a_call_that_needs_an_approval_is_an_item_and_its_result_names_it() -> None:
    call = ToolCall("c1", "pay", '{"amount": 5}')
    events = run(TextEvent("I can pay."), ApprovalRequest(call))
    assert types(events)[-3:] == ["output_item.added", "output_item.done", "completed"]
    for event in events[2:-1]:
        EVENT.validate_python(event)
    asked = events[-1]["response"]["output"][1]
    assert asked == {
        "id": "mcpr_c1",
        "type": "mcp_approval_request",
        "server_label": "app_toolkit",
        "name": "pay",
        "arguments": '{"amount": 5}',
    }
    for repeated in ([], [ToolCallEvent(0, "c1", "pay", call.arguments, executed=True)]):
        response = ResponseEvents(HEAD, [call])
        found: list[WireEvent] = []
        for event in checked_events([*repeated, ToolResultEvent("c1", "paid")], known_calls=["c1"]):
            found += response.translate(event)
        (done,) = [event["item"] for event in found if event["type"] == "response.output_item.done"]
        assert (done["type"], done["name"], done["arguments"]) == ("mcp_call", "pay", '{"amount": 5}')
        assert (done["output"], done["approval_request_id"]) == ("paid", "mcpr_c1")


def test_the_parts_of_several_calls_may_alternate() -> None:
    events = run(
        TextEvent("wait"),
        ToolCallEvent(0, "call_a", "a", '{"x"', executed=False),
        ToolCallEvent(1, "", "b", executed=False),
        ToolCallEvent(0, arguments=": 1}"),
        ToolCallEvent(1, arguments="{}"),
    )
    assert types(events)[5:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    deltas = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert [(each["output_index"], each["delta"]) for each in deltas] == [(1, '{"x"'), (1, ": 1}"), (2, "{}")]
    _, first, second = events[-1]["response"]["output"]
    assert first == {
        "id": first["id"],
        "type": "function_call",
        "status": "completed",
        "call_id": "call_a",
        "name": "a",
        "arguments": '{"x": 1}',
    }
    assert (second["name"], second["arguments"]) == ("b", "{}")
    assert second["call_id"].startswith("call_")
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [(each["name"], each["arguments"]) for each in done] == [("a", '{"x": 1}'), ("b", "{}")]


@pytest.mark.parametrize("executed", [True, None])
def test_a_call_of_a_tool_that_the_model_runs_itself_is_an_mcp_call_with_its_result(executed: bool | None) -> None:
    events = run(
        TextEvent("wait"),
        ToolCallEvent(0, "call_a", "a", '{"x"', executed),
        ToolCallEvent(0, arguments=": 1}"),
        ToolCallEvent(1, "call_b", "b", executed=executed),
        ToolResultEvent("call_b", "it broke", is_error=True),
        ToolResultEvent("call_a", [1]),
        TextEvent("one"),
    )
    assert not any("function_call" in type for type in types(events))
    mine = [event for event in events if event.get("output_index") == (1 if executed else 2)]
    assert types(mine) == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]
    failed = [event for event in events if event.get("output_index") == (2 if executed else 1)]
    assert (failed[2]["delta"], types(failed)[-2]) == ("{}", "mcp_call.failed"), "clients read the arguments as JSON"
    first, *calls, last = events[-1]["response"]["output"]
    assert (first["content"][0]["text"], last["content"][0]["text"]) == ("wait", "one")
    call, broken = calls if executed else reversed(calls)
    assert (
        mine[-1]["item"]
        == call
        == {
            "id": mine[0]["item"]["id"],
            "type": "mcp_call",
            "status": "completed",
            "server_label": "app_toolkit",
            "name": "a",
            "arguments": '{"x": 1}',
            "output": "[1]",
            "error": None,
            "approval_request_id": None,
        }
    )
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "it broke"}]}
    assert (broken["status"], broken["arguments"], broken["output"], broken["error"]) == ("failed", "{}", None, error)
    for event in mine + failed:
        EVENT.validate_python(event)


def test_a_call_that_the_model_runs_itself_and_that_has_no_result_is_incomplete() -> None:
    events = run(ToolCallEvent(0, "call_a", "a", "{}", executed=True), TextEvent("one"))
    call, _ = events[-1]["response"]["output"]
    assert (call["status"], call["output"]) == ("incomplete", None)
    assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize(("reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_a_response_that_was_cut_is_incomplete(reason: Any, why: str) -> None:
    last = run(ReasoningEvent("why"), TextEvent("beca"), FinishEvent(reason), TextEvent("use"), UsageEvent(1, 2))[-1]
    response = last["response"]
    assert (last["type"], response["status"]) == ("response.incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": why}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["output"][1]["content"][0]["text"] == "beca"
    assert response["usage"]["total_tokens"] == 3


def test_a_failed_response_keeps_its_output() -> None:
    events = ResponseEvents(HEAD)
    events.translate(TextEvent("beca"))
    events.translate(ToolCallEvent(0, "call_a", "a", '{"x'))
    (failed,) = events.failed("broken", "it broke")
    response = failed["response"]
    assert (failed["type"], response["status"]) == ("response.failed", "failed")
    assert response["error"] == {"code": "broken", "message": "it broke"}
    message, call = response["output"]
    assert (message["status"], call["status"], call["arguments"]) == ("completed", "incomplete", '{"x')


def test_a_response_in_the_background_is_queued_first() -> None:
    events = run(TextEvent("a"), head={**HEAD, "status": "queued"})
    assert types(events)[:3] == ["created", "queued", "in_progress"]
    statuses = [event["response"]["status"] for event in events if "response" in event]
    assert statuses == ["queued", "queued", "in_progress", "completed"]


@given(st.lists(EVENTS, max_size=12))
def test_every_item_is_opened_filled_and_closed_in_this_order(chat: list[ChatEvent]) -> None:
    events = run(*chat)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    by_index: dict[int, list[WireEvent]] = {}
    for event in events[2:-1]:
        by_index.setdefault(event["output_index"], []).append(event)
    assert sorted(by_index) == list(by_index), "items are opened in the order of the output"
    for index, mine in by_index.items():
        cited = [event for event in mine if event["type"] == "response.output_text.annotation.added"]
        kinds = [kind for kind, _ in itertools.groupby(types([event for event in mine if event not in cited]))]
        document = events[-1]["response"]["output"][index]
        delta = "".join(event.get("delta", "") for event in mine)
        assert mine[-1]["item"] == document
        assert document["id"] == mine[0]["item"]["id"]
        match document["type"]:
            case "mcp_call":
                ending = [f"mcp_call.{document['status']}"] * (document["status"] != "incomplete")
                arguments = ["mcp_call_arguments.delta", "mcp_call_arguments.done"][not delta :]
                middle = ["mcp_call.in_progress", *arguments, *ending]
                assert document["arguments"] == delta
            case "function_call":
                middle = ["function_call_arguments.delta", "function_call_arguments.done"][not delta :]
                assert document["arguments"] == delta
            case "mcp_approval_request":
                middle = []
            case kind:
                is_message = kind == "message"
                name, part = (
                    ("output_text", "content") if is_message else ("reasoning_summary_text", "reasoning_summary")
                )
                parts = [f"{name}.delta", f"{name}.done"][not delta :]
                middle = [f"{part}_part.added", *parts, f"{part}_part.done"]
                assert document["content" if is_message else "summary"][0]["text"] == delta
                assert delta or cited
        assert kinds == ["output_item.added", *middle, "output_item.done"]


@given(st.lists(EVENTS, max_size=12), st.data())
def test_a_response_can_be_put_together_from_its_first_events(chat: list[ChatEvent], data: st.DataObject) -> None:
    events = run(*chat)
    some = events[: data.draw(st.integers(1, len(events)))]
    reader = read(some)
    stopped, lost = reader.document("stopped"), reader.document("lost")
    assert stopped is not None
    assert lost is not None
    if len(some) == len(events):
        assert stopped == lost == events[-1]["response"]
        assert reader.missing("stopped") is None
        return
    assert (stopped["status"], lost["status"], lost["error"]["code"]) == ("cancelled", "failed", "server_error")
    said = "".join(event.get("delta", "") for event in some)
    items = [item for item in stopped["output"] if item["type"] != "mcp_approval_request"]
    kept = "".join(item.get("arguments") or _text(item) for item in items)
    assert sorted(kept) == sorted(said), "the deltas of several calls may alternate"
    assert all(item["status"] != "in_progress" for item in items)
    for outcome, kind in (("stopped", "response.incomplete"), ("lost", "response.failed")):
        last = reader.missing(outcome)  # type: ignore[arg-type]
        assert last == {"type": kind, "sequence_number": len(some), "response": reader.document(outcome)}  # type: ignore[arg-type]


def test_an_approval_that_was_added_is_whole_wherever_the_stream_ends() -> None:
    events = run(TextEvent("a"), ApprovalRequest(ToolCall("call", "pay", '{"amount":1}')))
    whole = next(
        event["item"] for event in events if event["type"] == "response.output_item.done" and "name" in event["item"]
    )
    added = next(event["sequence_number"] for event in events if event.get("item") == whole)
    for end in range(added + 1, len(events)):
        document = read(events[:end]).document("lost")
        assert document is not None
        assert document["output"][-1] == whole


def _text(item: dict[str, Any]) -> str:
    return "".join(part["text"] for part in item.get("content") or item.get("summary") or ())


def test_the_status_of_an_open_response_is_that_of_its_last_event() -> None:
    events = run(TextEvent("a"))
    document = read(events[:-1]).document(None)
    assert document is not None
    assert (document["status"], document["output"]) == ("in_progress", [])
    assert document["status"] not in FINAL


def test_without_events_there_is_no_response() -> None:
    reader = ResponseReader()
    assert (reader.status, reader.document("lost"), reader.missing("lost")) == (None, None, None)
