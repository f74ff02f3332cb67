"""Responses that another process continues from what the stream log has of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI

from app_toolkit.chat import (
    ChatEvent,
    ChatMessage,
    ChatRequest,
    DataEvent,
    FileEvent,
    ReasoningEvent,
    SourceEvent,
    SQLConversationStore,
    StatusEvent,
    StoredMessage,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    ai_sdk_router,
    continued,
)
from app_toolkit.chat.ai_sdk.logged import LoggedResponse, request_event
from app_toolkit.chat.ai_sdk.messages import UIChat
from app_toolkit.chat.ai_sdk.stream import MessageParts, Part, encode
from app_toolkit.streaming import MemoryStreamLog
from app_toolkit.streaming.stream_log import Append
from tests.chat.scripted import Scripted
from tests.chat.ui_stream import checked
from tests.patience import until

pytestmark = pytest.mark.anyio

SEARCH = ToolCallEvent(0, "c1", "search", '{"q": 1}', executed=True)
HALF = [TextEvent("I search."), SEARCH, ToolResultEvent("c1", "found"), TextEvent("one")]
EVENTS: Sequence[ChatEvent] = [
    StatusEvent("Thinking"),
    ReasoningEvent("Hm."),
    *HALF,
    DataEvent("chart", {"height": 1}, id="d1"),
    SourceEvent("https://example.com", "Example", "s1"),
    TextEvent(" two"),
    FileEvent("image/png", "https://example.com/cat.png"),
    ToolCallEvent(1, "c2", "search", "", executed=True),
    ToolCallEvent(1, arguments="{}"),
    ToolResultEvent("c2", "nothing", is_error=True),
    TextEvent("three"),
]
QUESTION = StoredMessage("u1", "user", [{"type": "text", "text": "question"}])


def parts_of(events: Sequence[ChatEvent]) -> list[Part]:
    translator = MessageParts("m1", version=6)
    return [part for event in events for part in translator.translate(event)]


class Endless(Scripted):
    """A model that does not end after its script."""

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        async for event in super().chat(request):
            yield event
        await asyncio.Event().wait()


@dataclass
class Talk:
    http: httpx.AsyncClient
    model: Scripted
    store: SQLConversationStore

    async def answer(self) -> StoredMessage:
        conversation = await self.store.get("default", "chat")
        assert conversation is not None
        (message,) = (message for message in conversation.tree.messages if message.id == "m1")
        return message


@asynccontextmanager
async def lost(parts: Sequence[Part], *script: ChatEvent, ends: bool = True) -> AsyncIterator[Talk]:
    """Leave what a process leaves that dies during a response, and continue with a model of this script."""
    log, store, app = MemoryStreamLog(), SQLConversationStore(":memory:"), FastAPI()
    model = Scripted(script) if ends else Endless(script)
    app.include_router(ai_sdk_router(continued(model), log=log, conversations=store, version=6), prefix="/api/chat")
    request = UIChat(id="chat", system="Be short.", topic="weather")  # type: ignore[call-arg]
    events = [request_event("default", "u1", chat=request), *map(encode, parts)]
    await store.write("default", "chat", QUESTION, create=True)
    await log.begin("s1", "a process", "text/event-stream", 'chat:["default", "chat"]')
    await log.append([Append("s1", "a process", 1, tuple(events))])
    await log.end("s1", "a process", "lost")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(base_url="http://test", transport=transport) as http:
        yield Talk(http, model, store)


@pytest.mark.parametrize("count", range(1, len(EVENTS)))
def test_the_parts_of_a_replayed_response_go_on_as_if_nothing_had_happened(count: int) -> None:
    whole, begun = parts_of(EVENTS), parts_of(EVENTS[:count])
    replayed = LoggedResponse(begun).replayed(6)
    assert replayed is not None
    translator, _ = replayed
    assert [*begun, *(part for event in EVENTS[count:] for part in translator.translate(event))] == whole


@pytest.mark.parametrize(
    "parts",
    [
        parts_of([TextEvent("one")])[:-1],
        parts_of([TextEvent("one"), DataEvent("chart", 1)])[:-1],
        parts_of([ToolCallEvent(0, "c1", "ask", "{}", executed=False)]),
        [],
    ],
    ids=["begun text", "ended text", "call of the client", "nothing"],
)
def test_a_response_whose_state_is_not_certain_is_not_replayed(parts: list[Part]) -> None:
    assert LoggedResponse(parts).replayed(6) is None


async def test_the_model_gets_the_request_and_what_the_log_has() -> None:
    async with lost(parts_of(HALF), TextEvent(" two")) as talk:
        parts = checked((await talk.http.get("/api/chat/chat/stream")).text)
        (request,) = talk.model.requests
        assert request.messages == (
            ChatMessage("system", "Be short."),
            ChatMessage("user", "question"),
            ChatMessage("assistant", "I search.", (ToolCall("c1", "search", '{"q": 1}'),)),
            ChatMessage("tool", "found", tool_call_id="c1"),
        )
        assert request.continue_from == ChatMessage("assistant", "one")
        assert (request.extra or {})["topic"] == "weather"
        assert [part["delta"] for part in parts if part["type"] == "text-delta"] == ["I search.", "one", " two"]
        answer = await talk.answer()
        assert [part["text"] for part in answer.parts if part["type"] == "text"] == ["I search.", "one two"]
        assert (answer.parent_id, answer.model, dict(answer.metadata)) == ("u1", "default", {})


async def test_a_call_that_the_dead_process_was_running_gets_an_error_as_its_result() -> None:
    async with lost(parts_of(HALF[:2]), TextEvent("It failed.")) as talk:
        parts = checked((await talk.http.get("/api/chat/chat/stream")).text)
        (error,) = (part for part in parts if part["type"] == "tool-output-error")
        assert error["errorText"] == "The response was interrupted."
        assert talk.model.requests[0].messages[-1] == ChatMessage(
            "tool", error["errorText"], tool_call_id="c1", is_error=True
        )
        assert parts[-1]["type"] == "finish"


async def test_a_response_that_its_process_has_stored_is_not_continued() -> None:
    async with lost(parts_of(HALF[:1]), TextEvent("again")) as talk:
        stored = StoredMessage("m1", "assistant", [{"type": "text", "text": "I search. Found."}], parent_id="u1")
        await talk.store.write("default", "chat", stored)
        assert checked((await talk.http.get("/api/chat/chat/stream")).text)[-1]["type"] == "error"
        assert not talk.model.requests
        assert list((await talk.answer()).parts) == list(stored.parts)


async def test_a_continued_response_that_is_stopped_is_stored_as_far_as_it_came() -> None:
    async with lost(parts_of(HALF), TextEvent(" two"), ends=False) as talk:
        reading = asyncio.create_task(talk.http.get("/api/chat/chat/stream"))
        await until(lambda: bool(talk.model.requests))
        assert (await talk.http.post("/api/chat/chat/stop")).json()["stopped"] is True
        assert checked((await reading).text)[-1] == {"type": "abort"}
        answer = await talk.answer()
        assert answer.parts[-1]["text"] == "one two"
        assert dict(answer.metadata) == {"incomplete": True}


async def test_the_next_message_keeps_and_marks_what_the_log_has() -> None:
    async with lost(parts_of(HALF), TextEvent("next")) as talk:
        message = {"id": "u2", "role": "user", "parts": [{"type": "text", "text": "go on"}]}
        checked((await talk.http.post("/api/chat", json={"id": "chat", "message": message})).text)
        assert [request.prompt for request in talk.model.requests] == ["go on"]
        assert (await talk.answer()).metadata["incomplete"] is True
