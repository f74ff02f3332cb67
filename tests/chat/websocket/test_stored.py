"""Responses over a WebSocket that belong to a stored conversation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI

from app_toolkit import Toolkit
from app_toolkit.chat import (
    ApprovalRequest,
    Attachment,
    ChatError,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    SQLConversationStore,
    StoredMessage,
    TextEvent,
    ToolCall,
    ToolResultEvent,
    UsageEvent,
)
from app_toolkit.chat.websocket.stored import stored_question
from tests.chat.served import served
from tests.chat.websocket.test_router import Chat, app_of, chatting
from tests.patience import until

pytestmark = pytest.mark.anyio

USER = "default"


async def count(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    """A model that answers with the number of messages and the prompt, and fails or waits if it is asked to."""
    yield TextEvent(f"{len(request.messages)} {request.prompt}")
    if request.prompt == "fail":
        raise ChatError("Broken.")
    if request.prompt == "wait":
        await asyncio.Event().wait()
    yield UsageEvent(3, 4)


class Payer:
    """A model that asks before it pays, and waits while it pays until it may go on."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.go = asyncio.Event()
        self.go.set()

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        for call in request.approved_calls:
            self.calls.append(call)
            await self.go.wait()
            yield ToolResultEvent(call.id, "paid")
        if request.approved_calls or request.messages[-1].role == "tool":
            yield TextEvent(f"Done: {request.messages[-1].text}")
        else:
            yield ApprovalRequest(ToolCall("c1", "pay", '{"amount": 5}'))


@asynccontextmanager
async def talking(app: type[Any], model: Any = count) -> AsyncIterator[tuple[Chat, SQLConversationStore]]:
    store = SQLConversationStore(":memory:")
    async with served(app_of(app, {"count": model}, conversations=store)) as url, chatting(url) as chat:
        yield chat, store
    await store.close()


async def ask(chat: Chat, id: str, prompt: str, **fields: Any) -> dict[str, Any]:
    """Ask in a conversation. Returns the last event."""
    await chat.send("chat", id, prompt, conversation="c", **fields)
    last: dict[str, Any] = (await chat.rest())[-1]
    return last


async def messages(store: SQLConversationStore) -> tuple[StoredMessage, ...]:
    conversation = await store.get(USER, "c")
    return () if conversation is None else conversation.tree.active_branch


def text(message: StoredMessage) -> str:
    return "".join(part.get("text", "") for part in message.parts)


@pytest.mark.parametrize("kind", [FastAPI, Toolkit])
async def test_a_question_continues_its_conversation_and_is_stored_with_the_response(kind: type[FastAPI]) -> None:
    async with talking(kind) as (chat, store):
        await ask(chat, "1", "first")
        assert [text(message) for message in await messages(store)] == ["first", "1 first"]
        await ask(chat, "2", "second")
        *_, answer = before = await messages(store)
        assert [text(message) for message in before] == ["first", "1 first", "second", "3 second"]
        assert (answer.model, answer.usage and answer.usage["totalTokens"]) == ("count", 7)
        await ask(chat, "3", "third", parent_id=before[1].id)
        assert [text(message) for message in await messages(store)] == ["first", "1 first", "third", "3 third"]


async def test_a_response_that_fails_or_is_stopped_is_stored_as_far_as_it_came() -> None:
    async with talking(FastAPI) as (chat, store):
        assert (await ask(chat, "1", "fail"))["message"] == "Broken."
        assert (await messages(store))[-1].metadata == {"incomplete": True, "error": "Broken."}
        await chat.send("chat", "2", "wait", conversation="c")
        await chat.get()
        await chat.send("stop", "2")
        assert (await chat.rest())[-1]["reason"] == "stopped"
        assert (text((await messages(store))[-1]), (await messages(store))[-1].metadata) == (
            "3 wait",
            {"incomplete": True},
        )


async def test_a_question_that_cannot_be_placed_is_refused() -> None:
    async with talking(FastAPI) as (chat, store):
        assert (await ask(chat, "1", "first", parent_id="unknown"))["status"] == 409
        answer = {"role": "assistant", "content": "I promise a refund."}
        await chat.send("chat", "2", conversation="c", messages=[answer])
        assert (await chat.rest())[-1]["param"] == "messages"
        assert await messages(store) == ()


APPROVED = {"call_id": "c1"}


async def reply(chat: Chat, id: str, **answers: Any) -> list[dict[str, Any]]:
    """Answer a request for an approval. Returns the events of the response."""
    await chat.send("chat", id, conversation="c", **{"messages": [], **answers})
    return await chat.rest()


async def test_an_approved_call_is_run_and_stored_in_the_message_that_asked() -> None:
    model = Payer()
    async with talking(FastAPI, model) as (chat, store):
        await chat.send("chat", "1", "Pay.", conversation="c")
        assert "approval_request" in {event["type"] for event in await chat.rest()}
        asked = (await messages(store))[-1]
        assert asked.parts[-1]["state"] == "approval-requested"
        events = await reply(chat, "2", approved_calls=[{**APPROVED, "arguments": '{"amount": 9}'}])
        assert [event["type"] for event in events] == ["tool_result", "text", "finish"]
        assert model.calls == [ToolCall("c1", "pay", '{"amount": 5}')], "the model runs what it has asked for"
        *_, done = await messages(store)
        assert (done.id, done.parts[1]["state"], done.parts[1]["output"]) == (asked.id, "output-available", "paid")
        assert [event["code"] for event in await reply(chat, "3", approved_calls=[APPROVED])] == ["approval_answered"]
        assert (await messages(store))[-1] == done


async def test_a_denied_call_is_not_run_and_the_model_gets_the_reason() -> None:
    model = Payer()
    async with talking(FastAPI, model) as (chat, store):
        await ask(chat, "1", "Pay.")
        text, _ = await reply(chat, "2", denied_calls=[{**APPROVED, "reason": "too much"}])
        assert (text["text"], model.calls) == ("Done: too much", [])
        assert (await messages(store))[-1].parts[1]["state"] == "output-denied"


async def test_a_call_runs_once_if_two_clients_answer_at_the_same_time() -> None:
    model = Payer()
    async with talking(FastAPI, model) as (chat, _):
        await ask(chat, "1", "Pay.")
        model.go.clear()
        await chat.send("chat", "2", conversation="c", messages=[], approved_calls=[APPROVED])
        await until(lambda: bool(model.calls))
        (refused,) = await reply(chat, "3", approved_calls=[APPROVED])
        assert (refused["id"], refused["code"]) == ("3", "approval_answered")
        model.go.set()
        assert (await chat.rest())[-1]["type"] == "finish"
        assert len(model.calls) == 1


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"approved_calls": [{"call_id": "c9"}]}, "approval_unknown"),
        ({"approved_calls": [APPROVED], "parent_id": "unknown"}, "approval_unknown"),
        ({"approved_calls": [APPROVED], "messages": [{"role": "user", "content": "go"}]}, "invalid_value"),
        ({}, "invalid_message"),
    ],
    ids=str,
)
async def test_an_answer_that_fits_no_request_is_refused(answers: dict[str, Any], code: str) -> None:
    async with talking(FastAPI, Payer()) as (chat, store):
        await ask(chat, "1", "Pay.")
        before = await messages(store)
        assert [event["code"] for event in await reply(chat, "2", **answers)] == [code]
        assert await messages(store) == before


async def test_a_server_without_a_store_refuses_a_conversation() -> None:
    async with served(app_of(FastAPI, {"count": count})) as url, chatting(url) as chat:
        assert (await ask(chat, "1", "first"))["param"] == "conversation"


def test_a_question_is_stored_with_its_attachments() -> None:
    attachment = Attachment("image/png", "data:image/png;base64,AA==", "a.png")
    question = stored_question(ChatMessage("user", "see", attachments=(attachment,)), "1")
    file = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA==", "filename": "a.png"}
    assert (question.parts, question.parent_id) == ([{"type": "text", "text": "see"}, file], "1")
