"""What routers can rely on in the events of every model."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat import (
    ApprovalRequest,
    ChatError,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    DataEvent,
    DocumentEvent,
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
    UsageEvent,
)
from app_toolkit.chat import events as chat_events
from app_toolkit.chat.ai_sdk.stream import MessageParts
from app_toolkit.chat.catalog import Catalog
from app_toolkit.chat.events import Characters, EventChecker, checked, until_stop
from tests.chat.model_events import EVENTS_AND_ERRORS, checked_events, for_openai, of_model

pytestmark = pytest.mark.anyio

FINISH = FinishEvent("stop")
STOPPED = FinishEvent("stop", "STOP")


class Odd:
    pass


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ("hello", "yielded 'hello' of the type str, which is no event of app_toolkit.chat"),
        (None, "yielded None of the type NoneType, which is no event"),
        ({"text": "x" * 500}, "of the type dict, which is no event"),
        (Odd(), "of the type Odd, which is no event"),
        (TextEvent, "of the type type, which is no event"),
        (TextEvent(None), "yielded a TextEvent whose text is None: it must be str"),  # type: ignore[arg-type]
        (TextEvent(b"x"), "yielded a TextEvent whose text is b'x': it must be str"),  # type: ignore[arg-type]
        (ToolCallEvent(0, "c", "f", {"a": 1}), "whose arguments is {'a': 1}: it must be str"),  # type: ignore[arg-type]
        (ToolCallEvent("0", "c", "f"), "whose index is '0': it must be int"),  # type: ignore[arg-type]
        (ToolCallEvent(0, "c", "f", executed="yes"), "whose executed is 'yes': it must be bool or None"),  # type: ignore[arg-type]
        (UsageEvent(1.5, 2), "whose input_tokens is 1.5: it must be int"),  # type: ignore[arg-type]
        (SourceEvent(""), "a SourceEvent whose url is empty"),
        (DocumentEvent(""), "a DocumentEvent whose title is empty"),
        (FileEvent("png", "https://a"), "whose media_type is 'png': write it as image/png"),
        (FileEvent("image/png"), "a FileEvent with neither url nor data: it must have one of them"),
        (FileEvent("image/png", "https://a", b"x"), "a FileEvent with both url and data"),
        (DataEvent("a b", 1), "whose name is 'a b': it must have ASCII letters"),
        (DataEvent("status", 1), "error and status are reserved"),
        (ApprovalRequest("pay"), "whose call is 'pay': it must be ToolCall"),  # type: ignore[arg-type]
        (ApprovalRequest(ToolCall("c", "", "{}")), "an ApprovalRequest whose call has no name"),
        (ApprovalRequest(ToolCall("c", "pay", "{")), "whose arguments are '{': they must be a JSON document"),
        (ApprovalRequest(ToolCall("c", "pay", None)), "its fields must be str"),  # type: ignore[arg-type]
        (FinishEvent("eos"), "whose reason is 'eos': it must be one of stop, length, tool_calls, content_filter"),  # type: ignore[arg-type]
    ],
)
async def test_what_is_no_event_is_an_error_that_names_it_and_the_model(event: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        await of_model([TextEvent("a"), event], "org/gpt")
    assert str(refused.value).startswith("the model 'org/gpt' yielded ")
    assert why in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("kind", ["coroutine", "list"])
async def test_a_function_that_is_no_generator_is_an_error_that_names_the_model(kind: str) -> None:
    async def forgotten() -> str:
        return "a text"

    returned: Any = forgotten() if kind == "coroutine" else [TextEvent("a")]
    with pytest.raises(TypeError, match=f"the model 'gpt' returned a {kind}: its function must be an async generator"):
        await anext(checked(returned, EventChecker("gpt")))


async def test_a_response_ends_with_one_finish_event_after_which_only_usage_counts() -> None:
    assert await of_model([]) == [FINISH]
    assert await of_model([TextEvent("a")]) == [TextEvent("a"), FINISH]
    late = [TextEvent("a"), FinishEvent("length"), TextEvent("b"), FinishEvent("stop"), UsageEvent(1, 2)]
    assert await of_model(late) == [TextEvent("a"), UsageEvent(1, 2), FinishEvent("length")]


async def test_nothing_follows_an_error_and_the_model_is_closed() -> None:
    closed = False

    async def model() -> AsyncIterator[ChatEvent]:
        nonlocal closed
        try:
            yield TextEvent("a")
            yield ErrorEvent("it broke")
            yield TextEvent("b")
        finally:
            closed = True

    found = [event async for event in checked(model(), EventChecker("gpt"))]
    assert found == [TextEvent("a"), ErrorEvent("it broke")]
    assert closed


async def test_sources_and_documents_have_ids_and_each_id_comes_once() -> None:
    page, document = SourceEvent("https://a", "A", "s1"), DocumentEvent("Manual", id="s1")
    first, unnamed, other, finish = await of_model([page, SourceEvent("https://b"), document, page, DocumentEvent("C")])
    assert (first, finish) == (page, FINISH)
    assert isinstance(unnamed, SourceEvent)
    assert isinstance(other, DocumentEvent)
    assert unnamed.id.startswith("source_")
    assert unnamed.id != other.id


async def test_a_call_that_needs_an_approval_has_an_id_and_is_no_call_for_the_client() -> None:
    request = ApprovalRequest(ToolCall("c1", "pay", '{"a": 1}'))
    first, second, other, finish = await of_model([request, request, ApprovalRequest(ToolCall("", "look", ""))])
    assert (first, finish) == (request, FINISH)
    for event, name in ((second, "pay"), (other, "look")):
        assert isinstance(event, ApprovalRequest)
        assert event.call.name == name
        assert event.call.id.startswith("call_")
    assert isinstance(other, ApprovalRequest)
    assert other.call.arguments == "{}"
    with pytest.raises(ValueError, match="a result of the tool call 'c1', which it has not yielded"):
        await of_model([request, ToolResultEvent("c1", 1)])
    again, _ = await of_model([request], known_calls=["c1"])
    assert isinstance(again, ApprovalRequest)
    assert again.call.id != "c1", "the answer to an earlier request is not the answer to this one"


async def test_a_file_has_a_url() -> None:
    made, linked, _ = await of_model([FileEvent("image/png", data=b"abc"), FileEvent("image/png", "https://a/b.png")])
    assert made == FileEvent("image/png", "data:image/png;base64,YWJj")
    assert linked == FileEvent("image/png", "https://a/b.png")


async def test_what_a_protocol_does_not_express_is_left_out_and_divides_no_text() -> None:
    pieces = [TextEvent("\ud83d"), SourceEvent("https://a"), FileEvent("image/png", data=b"a"), TextEvent("\ude00")]
    assert await of_model(pieces, expressed=()) == [TextEvent("😀"), FINISH]
    with pytest.raises(ValueError, match="a SourceEvent whose url is empty"):
        await of_model([SourceEvent("")], expressed=())


async def test_a_status_divides_no_text() -> None:
    events = await of_model([TextEvent("\ud83d"), StatusEvent("Searching"), TextEvent("\ude00")])
    assert events == [StatusEvent("Searching"), TextEvent("😀"), FINISH]


CALL, RESULT = ToolCallEvent(0, "c1", "search", "{}"), ToolResultEvent("c1", 1)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([CALL], "tool_calls"),
        ([CALL, FinishEvent("stop")], "tool_calls"),
        ([CALL, FinishEvent("length")], "length"),
        ([CALL, RESULT], "stop"),
        ([CALL, RESULT, FinishEvent("tool_calls")], "stop"),
        ([CALL, RESULT, ToolCallEvent(1, "c2", "pay")], "tool_calls"),
        ([ToolCallEvent(0, "c1", "search", executed=True), FinishEvent("tool_calls")], "stop"),
        ([ToolCallEvent(0, "c1", "search", executed=False), FinishEvent("stop")], "tool_calls"),
        ([TextEvent("a"), FinishEvent("tool_calls")], "stop"),
    ],
)
async def test_the_reason_says_whether_there_are_calls_that_the_client_has_to_run(
    events: list[ChatEvent], reason: str
) -> None:
    assert (await of_model(events))[-1] == FinishEvent(reason)  # type: ignore[arg-type]


async def test_each_call_has_its_own_id_and_index() -> None:
    found = await of_model(
        [
            ToolCallEvent(7, "c1", "a", '{"x"'),
            ToolCallEvent(7, "c2", "b"),
            ToolCallEvent(9, "", "c", "{}"),
            ToolCallEvent(7, "c2", "b", "[]"),
            ToolCallEvent(1, "c2", "d"),
            ToolCallEvent(2, "old", "e"),
        ],
        used_ids=["old"],
    )
    first = [event for event in found if isinstance(event, ToolCallEvent) and event.id]
    assert [(event.index, event.name) for event in first] == [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e")]
    assert [event.id for event in first[:2]] == ["c1", "c2"]
    assert all(event.id.startswith("call_") for event in first[2:])
    rest = [event for event in found if isinstance(event, ToolCallEvent) and not event.id]
    assert [event.arguments for event in first] == ['{"x"', "", "{}", "", ""]
    assert [(event.index, event.arguments) for event in rest] == [(1, "[]")]


async def test_an_agent_may_use_an_id_and_an_index_again_in_its_next_step() -> None:
    step = [ToolCallEvent(0, "c", "search", "{}"), ToolResultEvent("c", 1)]
    first, answer, second, last, finish = await of_model([*step, *step])
    assert isinstance(first, ToolCallEvent)
    assert isinstance(second, ToolCallEvent)
    assert (first.index, second.index) == (0, 1)
    assert first.id != second.id
    assert (answer, last) == (ToolResultEvent(first.id, 1), ToolResultEvent(second.id, 1))
    assert finish == FINISH


def arguments_by_id(events: list[ChatEvent]) -> dict[str, str]:
    """The arguments of each call, by the id that clients get."""
    ids: dict[int, str] = {}
    arguments: dict[str, str] = {}
    for event in parts_of(events, ToolCallEvent):
        id = ids.setdefault(event.index, event.id)
        arguments[id] = arguments.get(id, "") + event.arguments
    return arguments


async def test_deltas_of_openai_whose_later_parts_have_none_are_one_call() -> None:
    later: Any = ToolCallEvent(0, None, None, '{"x":1}')  # type: ignore[arg-type]
    first: Any = ToolCallEvent(0, "a", "f", None)  # type: ignore[arg-type]
    assert await of_model([first, later]) == [
        ToolCallEvent(0, "a", "f"),
        ToolCallEvent(0, arguments='{"x":1}'),
        FinishEvent("tool_calls"),
    ]


async def test_a_call_whose_id_comes_after_its_name_keeps_the_id_that_the_client_has() -> None:
    late = [ToolCallEvent(0, "", "f"), ToolCallEvent(0, "a", "", '{"x"'), ToolCallEvent(0, "a", "", ":1}")]
    call, *rest, answer, _ = await of_model([*late, ToolResultEvent("a", 1)])
    assert isinstance(call, ToolCallEvent)
    assert call.id.startswith("call_")
    assert rest == [ToolCallEvent(0, arguments='{"x"'), ToolCallEvent(0, arguments=":1}")]
    assert answer == ToolResultEvent(call.id, 1)


async def test_calls_with_one_index_are_told_apart_by_the_ids_of_their_parts() -> None:
    begun = [ToolCallEvent(0, "a", "f", "[1"), ToolCallEvent(0, "b", "g", "[2")]
    mixed = [ToolCallEvent(0, "a", "", ",3"), ToolCallEvent(0, "b", "", ",4"), ToolCallEvent(0, "a", "", "]")]
    events = [*begun, *mixed, ToolCallEvent(0, arguments=" "), ToolCallEvent(0, "b", "", "]")]
    assert arguments_by_id(await of_model(events)) == {"a": "[1,3] ", "b": "[2,4]"}


async def test_more_arguments_of_an_answered_call_name_it_although_another_call_has_begun() -> None:
    with pytest.raises(ValueError, match="more arguments of the tool call 'c1', which was complete"):
        await of_model([CALL, RESULT, ToolCallEvent(0, "c2", "g"), ToolCallEvent(0, "c1", "", "{}")])


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([ToolCallEvent(1, arguments="{}")], "a part of a tool call with the index 1, which has not begun"),
        ([ToolCallEvent(1, "c2")], "a part of a tool call with the index 1, which has not begun"),
        ([ToolResultEvent("c9", 1)], "a result of the tool call 'c9', which it has not yielded"),
        ([CALL, RESULT, RESULT], "a result of the tool call 'c1', which has a result already"),
        ([CALL, RESULT, ToolCallEvent(0, arguments="{}")], "more arguments of the tool call 'c1', which was complete"),
        ([CALL, TextEvent("a"), ToolCallEvent(0, arguments="}")], "more arguments of the tool call 'c1', which was"),
        (
            [ToolCallEvent(0, "c1", "pay", executed=False), RESULT],
            "a result of the tool call 'c1', which it left to the client with executed=False",
        ),
    ],
)
async def test_calls_and_results_in_an_impossible_order_are_errors(events: list[ChatEvent], why: str) -> None:
    with pytest.raises(ValueError, match="the model 'gpt' yielded ") as refused:
        await of_model(events)
    assert why in str(refused.value)


async def test_space_after_complete_arguments_is_left_out() -> None:
    assert await of_model([CALL, TextEvent("a"), ToolCallEvent(0, arguments=" \n")]) == [
        CALL,
        TextEvent("a"),
        FinishEvent("tool_calls"),
    ]


async def test_the_time_for_the_arguments_of_a_call_grows_with_their_length_only() -> None:
    part = ToolCallEvent(0, arguments="x" * 400)
    checker, parts = EventChecker("gpt"), MessageParts("m", version=6)
    begun = time.process_time()
    for event in [ToolCallEvent(0, "c1", "f"), *[part] * 10_000]:
        for passed in checker.take(event):
            parts.translate(passed)
    assert time.process_time() - begun < 5, "joining all parts each time takes more than 10 s"


def test_events_of_a_subclass_are_events() -> None:
    class Word(TextEvent):
        pass

    assert checked_events([Word("a")]) == [TextEvent("a"), FINISH]


async def test_the_result_of_a_call_in_a_continued_message_is_passed_once() -> None:
    assert await of_model([RESULT], known_calls=["c1"]) == [RESULT, FINISH]
    with pytest.raises(ValueError, match="'c1', which it has not yielded"):
        await of_model([RESULT, RESULT], known_calls=["c1"])


async def test_a_call_of_a_continued_message_that_the_model_repeats_keeps_its_id_until_it_has_its_result() -> None:
    repeated = [CALL, RESULT]
    *first, second, answer, finish = await of_model([*repeated, *repeated], known_calls=["c1"])
    assert first == repeated
    assert isinstance(second, ToolCallEvent)
    assert second.id.startswith("call_")
    assert (answer, finish) == (ToolResultEvent(second.id, 1), FINISH)
    next_step = await of_model([RESULT, CALL], known_calls=["c1"])
    assert [event.id for event in parts_of(next_step, ToolCallEvent)] != ["c1"]


async def test_halves_of_surrogate_pairs_are_joined_over_events_or_replaced() -> None:
    found = await of_model(
        [
            TextEvent("a\ud83d"),
            UsageEvent(1, 1),
            TextEvent("\ude00b\ude00"),
            TextEvent("\ud83d"),
            ReasoningEvent("\ude00"),
            ToolCallEvent(0, "c\ud83d", "f\ud83d", '"\ud83d'),
            ToolCallEvent(1, "c2", "g", '"\ude00"'),
            ToolCallEvent(0, arguments='\ude00"'),
            ErrorEvent("no \ud83d"),
        ]
    )
    assert found == [
        TextEvent("a"),
        UsageEvent(1, 1),
        TextEvent("😀b\ufffd"),
        TextEvent("\ufffd"),
        ReasoningEvent("\ufffd"),
        ToolCallEvent(0, "c\ufffd", "f\ufffd", '"'),
        ToolCallEvent(1, "c2", "g", '"\ufffd"'),
        ToolCallEvent(0, arguments='😀"'),
        ErrorEvent("no \ufffd"),
    ]


@given(st.lists(st.text(st.characters() | st.sampled_from("\ud83d\ude00"))))
def test_a_text_has_the_same_characters_in_any_parts(parts: list[str]) -> None:
    characters = Characters()
    joined = "".join([*map(characters.add, parts), characters.end()])
    assert joined == "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def parts_of(events: list[ChatEvent], kind: type[Any]) -> Iterator[Any]:
    return (event for event in events if isinstance(event, kind))


@given(st.lists(EVENTS_AND_ERRORS, max_size=12))
def test_any_events_become_a_response_that_routers_can_translate(events: list[ChatEvent]) -> None:
    found = checked_events(events)
    assert isinstance(found[-1], FinishEvent | ErrorEvent)
    assert not any(isinstance(event, FinishEvent | ErrorEvent) for event in found[:-1])
    calls: dict[int, ToolCallEvent] = {}
    unanswered: dict[str, ToolCallEvent] = {}
    for event in found:
        match event:
            case TextEvent(text) | ReasoningEvent(text):
                assert text.encode()
            case ToolCallEvent() if event.id:
                assert event.index == len(calls)
                assert event.name
                event.arguments.encode()
                assert event.id not in {call.id for call in calls.values()}
                calls[event.index] = unanswered[event.id] = event
            case ToolCallEvent():
                begun = calls[event.index]
                assert begun.id in unanswered
                assert (event.arguments.encode() != b"", event.name, event.executed) == (True, "", begun.executed)
            case ToolResultEvent():
                assert unanswered.pop(event.id).executed is not False
            case FinishEvent(reason):
                asked = any(not call.executed for call in unanswered.values())
                assert reason in ("length", "content_filter", "tool_calls" if asked else "stop")
    rest = itertools.takewhile(lambda event: not isinstance(event, FinishEvent | ErrorEvent), events)
    said = "".join(event.text for event in rest if isinstance(event, TextEvent | ReasoningEvent))
    heard = "".join(event.text for event in parts_of(found, TextEvent | ReasoningEvent))  # type: ignore[arg-type]
    ascii_of = "".join(letter for letter in said if letter.isascii())
    assert "".join(letter for letter in heard if letter.isascii()) == ascii_of


@given(st.lists(EVENTS_AND_ERRORS, max_size=12))
def test_openai_clients_get_each_call_when_it_is_known_who_runs_it(events: list[ChatEvent]) -> None:
    before = checked_events(events)
    found = for_openai(before)
    calls: dict[int, list[ToolCallEvent]] = {}
    answered: set[str] = set()
    for event in found:
        if isinstance(event, ToolCallEvent):
            calls.setdefault(event.index, []).append(event)
            assert event.executed is not None
        elif isinstance(event, ToolResultEvent):
            answered.add(event.id)
    by_id = {parts[0].id: parts for parts in calls.values()}
    assert all(part.executed for id in answered for part in by_id[id])
    if isinstance(found[-1], FinishEvent):
        asked = [parts for parts in calls.values() if not parts[0].executed]
        assert asked == [] or found[-1].reason != "stop"
        assert {event.id for event in before if isinstance(event, ToolCallEvent)} - {""} == set(by_id)
    others = [event for event in before if not isinstance(event, ToolCallEvent)]
    assert [event for event in found if not isinstance(event, ToolCallEvent)] == others


def test_a_call_that_is_left_to_the_client_is_passed_at_once() -> None:
    call = ToolCallEvent(0, "c1", "pay", "{}", executed=False)
    assert isinstance(for_openai(checked_events([call, TextEvent("a")]))[0], ToolCallEvent)
    unmarked = ToolCallEvent(0, "c1", "pay", "{}")
    assert for_openai(checked_events([unmarked, TextEvent("a")]))[0] == TextEvent("a")


async def test_a_catalog_checks_the_events_and_knows_the_calls_of_the_conversation() -> None:
    async def model(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        yield ToolCallEvent(0, "call_0", "search", "{}")
        yield ToolResultEvent("call_9", 1)
        if request.prompt == "text":
            yield "text"  # type: ignore[misc]

    def ask(prompt: str) -> AsyncIterator[ChatEvent]:
        earlier = ChatMessage("assistant", tool_calls=(ToolCall("call_0", "search", "{}"),))
        request = ChatRequest((ChatMessage("user", prompt), earlier, ChatMessage("tool", "1", tool_call_id="call_0")))
        return Catalog({"gpt": model}, {}).find("gpt")(request, known_calls=["call_9"])

    call, *_ = [event async for event in ask("hello")]
    assert isinstance(call, ToolCallEvent)
    assert call.id.startswith("call_")
    assert call.id != "call_0"
    with pytest.raises(TypeError, match="the model 'gpt' yielded 'text'"):
        [event async for event in ask("text")]


async def stopped_at(string: str, *events: Any, then: asyncio.Event | None = None) -> list[ChatEvent]:
    """The events of a model until its text has a string. The model yields all of them, and waits for `then`."""

    async def model() -> AsyncIterator[ChatEvent]:
        for event in events:
            if isinstance(event, Exception):
                raise event
            yield event
        if then is not None:
            await then.wait()

    return [event async for event in until_stop(checked(model(), EventChecker("gpt")), [string])]


WORDS = [TextEvent(word) for word in ("he", "llo ", "STO", "P wor", "ld")]


async def test_the_usage_of_a_model_whose_text_ends_at_a_stop_string_is_counted() -> None:
    usage = UsageEvent(3, 5)
    assert await stopped_at("STOP", *WORDS, usage) == [*WORDS[:2], usage, STOPPED]
    assert await stopped_at("STOP", usage, *WORDS) == [usage, *WORDS[:2], STOPPED]
    assert await stopped_at("STOP", *WORDS) == [*WORDS[:2], STOPPED], "the model does not count"
    assert await stopped_at("STOP", *WORDS, FinishEvent("length"), usage) == [*WORDS[:2], usage, STOPPED]
    assert (await stopped_at("STOP", CALL, RESULT, *WORDS))[-1] == STOPPED
    assert (await stopped_at("STOP", CALL, *WORDS))[-1] == FinishEvent("tool_calls", "STOP")


async def test_a_model_that_goes_on_too_long_or_fails_after_a_stop_string_has_one_token_for_each_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_events, "USAGE_S", 0.01)
    for end in ({"then": asyncio.Event()}, {}):
        events = WORDS if end else [*WORDS, ValueError("it broke")]
        assert await stopped_at("STOP", *events, **end) == [*WORDS[:2], UsageEvent(0, 4), STOPPED]
        assert await stopped_at("STOP", UsageEvent(3, 1), *events, **end) == [UsageEvent(3, 1), *WORDS[:2], STOPPED]


async def test_a_model_goes_on_for_three_events_after_a_stop_string(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_events, "USAGE_S", 60)
    usage, never = UsageEvent(3, 5), asyncio.Event()
    stop, more = TextEvent("a STOP"), [TextEvent("b")]
    async with asyncio.timeout(30):
        assert await stopped_at("STOP", stop, *more * 2, usage, then=never) == [TextEvent("a "), usage, STOPPED]
        estimated = [TextEvent("a "), UsageEvent(0, 1), STOPPED]
        assert await stopped_at("STOP", stop, *more * 3, usage, then=never) == estimated
        assert await stopped_at("STOP", stop, *more * 2) == [TextEvent("a "), STOPPED], "the model does not count"


async def test_a_model_that_never_waits_is_closed_after_a_stop_string() -> None:
    closed = False

    async def model() -> AsyncIterator[ChatEvent]:
        nonlocal closed
        try:
            while True:
                yield TextEvent("STOP")
        finally:
            closed = True

    usage, finish = [event async for event in until_stop(checked(model(), EventChecker("gpt")), ["STOP"])]
    assert isinstance(usage, UsageEvent)
    assert finish == STOPPED
    assert closed


async def test_usage_before_the_first_event_leaves_an_error_its_status() -> None:
    async def failing() -> AsyncIterator[ChatEvent]:
        yield UsageEvent(1, 0)
        yield UsageEvent(2, 0)
        raise ChatError("busy", status=503)

    with pytest.raises(ChatError, match="busy"):
        await anext(checked(failing(), EventChecker("gpt")))
    assert await of_model([UsageEvent(1, 0), UsageEvent(2, 0), TextEvent("a")]) == [
        UsageEvent(2, 0),
        TextEvent("a"),
        FINISH,
    ]
    assert await of_model([UsageEvent(1, 0)]) == [UsageEvent(1, 0), FINISH]
