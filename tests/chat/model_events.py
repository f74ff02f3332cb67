"""The events of a model as routers get them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, get_args

from hypothesis import strategies as st

from app_toolkit.chat import (
    ApprovalRequest,
    ChatEvent,
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
from app_toolkit.chat.events import EventChecker, checked, with_known_runners
from app_toolkit.chat.protocol import OptionalEvent

TEXTS = st.text(st.sampled_from("ab é日\ud83d\ude00\u2028{}1"), max_size=4)
IDS = st.sampled_from(["", "call_a", "call_b"])

EVENTS = st.one_of(
    st.builds(TextEvent, TEXTS),
    st.builds(ReasoningEvent, TEXTS),
    st.builds(
        ToolCallEvent,
        st.integers(0, 2),
        IDS,
        st.sampled_from(["", "search"]),
        TEXTS,
        st.sampled_from([None, True, False]),
    ),
    st.builds(ToolResultEvent, IDS, st.just({"a": 1}), st.booleans()),
    st.builds(UsageEvent, st.integers(0, 9), st.integers(0, 9)),
    st.builds(FinishEvent, st.sampled_from(["stop", "length", "tool_calls", "content_filter"])),
    st.builds(SourceEvent, st.just("https://example.com"), TEXTS, IDS),
    st.builds(DocumentEvent, TEXTS, id=IDS),
    st.builds(FileEvent, st.just("image/png"), st.sampled_from(["", "https://example.com/a.png"]), st.just(b"")),
    st.builds(DataEvent, st.sampled_from(["chart", "status"]), st.just([1]), IDS, st.booleans()),
    st.builds(StatusEvent, TEXTS),
    st.builds(
        ApprovalRequest, st.builds(ToolCall, IDS, st.sampled_from(["", "pay"]), st.sampled_from(["", "{}", "{"]))
    ),
)
"""Events of a model, in any order."""

EXPRESSED = frozenset(get_args(OptionalEvent))
"""The types of all events that some protocol expresses."""

EVENTS_AND_ERRORS = EVENTS | st.builds(ErrorEvent, TEXTS)


def checked_events(events: Iterable[Any], **options: Any) -> list[ChatEvent]:
    """What a router gets from a model that yields these events. Those that are refused are left out."""
    checker = EventChecker("gpt", **{"expressed": EXPRESSED, **options})
    passed: list[ChatEvent] = []
    for event in events:
        try:
            passed += list(checker.take(event))
        except ValueError:
            continue
        if checker.has_failed:
            return passed
    return [*passed, *checker.end()]


async def of_model(events: Iterable[Any], model: str = "gpt", **options: Any) -> list[ChatEvent]:
    """What a router gets from a model that yields these events, or raises them."""

    async def yielded() -> AsyncIterator[ChatEvent]:
        for event in events:
            if isinstance(event, Exception):
                raise event
            yield event

    return [event async for event in checked(yielded(), EventChecker(model, **{"expressed": EXPRESSED, **options}))]


def for_openai(events: Iterable[ChatEvent]) -> list[ChatEvent]:
    """What `openai_router` translates of checked events."""

    async def yielded() -> AsyncIterator[ChatEvent]:
        for event in events:
            yield event

    async def read() -> list[ChatEvent]:
        return [event async for event in with_known_runners(yielded())]

    return asyncio.run(read())
