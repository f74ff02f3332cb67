"""Calls of tools that wait for the approval of a user, in stored conversations."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app_toolkit.chat import (
    ApprovalRequest,
    ChatError,
    ChatEvent,
    ChatRequest,
    Conversation,
    SQLConversationStore,
    TextEvent,
    ToolCall,
    ToolResultEvent,
    ai_sdk_router,
    conversations_router,
)
from app_toolkit.streaming import MemoryStreamLog
from tests.chat.served import asking
from tests.chat.ui_stream import checked
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.anyio

PAY = ToolCall("c1", "pay", '{"amount": 5}')
QUESTION = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Pay it."}]}


class Payer:
    """A model that asks before it pays, and waits while it pays until it may go on."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.requests.append(request)
        for call in request.approved_calls:
            if self.error is not None:
                raise self.error
            await self.go.wait()
            yield ToolResultEvent(call.id, "paid")
        if request.messages[-1].role == "user" and not request.approved_calls:
            yield ApprovalRequest(PAY)
        else:
            yield TextEvent("Done.")

    @property
    def approved(self) -> list[tuple[ToolCall, ...]]:
        return [request.approved_calls for request in self.requests]


class HeldStore(SQLConversationStore):
    """A store that waits before it writes until it may go on."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        self.go = asyncio.Event()
        self.go.set()
        self.reads = self.waiting = 0

    async def get(self, user: str, id: str) -> Conversation | None:
        conversation = await super().get(user, id)
        self.reads += 1
        return conversation

    async def write(self, *arguments: Any, **options: Any) -> bool:
        self.waiting += 1
        await self.go.wait()
        self.waiting -= 1
        return await super().write(*arguments, **options)


class Tab:
    """A page that shows the conversation."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ask(self) -> list[dict[str, Any]]:
        return checked((await self.send(QUESTION)).text)

    async def send(self, message: dict[str, Any]) -> httpx.Response:
        return await self.http.post("/api/chat", json={"id": "chat", "message": message})

    async def load(self) -> dict[str, Any]:
        """The last message of the conversation."""
        found = await self.http.get("/api/conversations/chat")
        message: dict[str, Any] = found.json()["messages"][-1]
        return message


def answered(message: dict[str, Any], approved: bool = True, **fields: Any) -> dict[str, Any]:
    """A message as the AI SDK sends it after the user has answered."""
    *parts, call = message["parts"]
    approval = {**call.get("approval", {}), "approved": approved, **fields}
    return {**message, "parts": [*parts, {**call, "state": "approval-responded", "approval": approval}]}


@asynccontextmanager
async def running(model: Payer, store: SQLConversationStore | None = None) -> AsyncIterator[Tab]:
    """A process with this model."""
    store, app = store or SQLConversationStore(":memory:"), FastAPI()
    router = ai_sdk_router(model, log=MemoryStreamLog(), conversations=store, version=6)
    app.include_router(router, prefix="/api/chat")
    app.include_router(conversations_router(store), prefix="/api/conversations")
    async with asking(app) as http:
        yield Tab(http)
    await store.close()


async def test_an_answer_resumes_the_model_after_a_restart_of_its_process(tmp_path: Path) -> None:
    async with running(Payer(), SQLConversationStore(tmp_path / "chats.db")) as tab:
        await tab.ask()
    model = Payer()
    async with running(model, SQLConversationStore(tmp_path / "chats.db")) as tab:
        asked = await tab.load()
        assert (asked["parts"][-1]["state"], asked["parts"][-1]["approval"]) == ("approval-requested", {"id": "c1"})
        assert "metadata" not in asked, "the response is complete"
        parts = checked((await tab.send(answered(asked))).text, known_calls=frozenset({"c1"}))
        assert {"type": "tool-output-available", "toolCallId": "c1", "output": "paid"} in parts
        assert model.approved == [(PAY,)]
        done = await tab.load()
    assert done["id"] == asked["id"]
    call = {**asked["parts"][-1], "state": "output-available", "output": "paid"}
    call["approval"] = {"id": "c1", "approved": True}
    assert done["parts"][:2] == [{"type": "step-start"}, call]
    assert done["parts"][-1]["text"] == "Done."


async def test_a_denied_call_is_not_run_and_the_model_gets_the_reason() -> None:
    model = Payer()
    async with running(model) as tab:
        await tab.ask()
        await tab.send(answered(await tab.load(), approved=False, reason="too much"))
        assert model.approved[-1] == ()
        assert [(message.role, message.text) for message in model.requests[-1].messages] == [
            ("user", "Pay it."),
            ("assistant", ""),
            ("tool", "too much"),
        ]
        done = await tab.load()
        approval = {"id": "c1", "approved": False, "reason": "too much"}
        assert (done["parts"][1]["state"], done["parts"][1]["approval"]) == ("output-denied", approval)


@pytest.mark.parametrize("approved", [True, False])
async def test_an_answer_of_a_second_tab_that_comes_too_late_is_refused(approved: bool) -> None:
    model = Payer()
    async with running(model) as tab:
        await tab.ask()
        asked = await tab.load()
        await tab.send(answered(asked, approved=approved))
        done = await tab.load()
        late = await tab.send(answered(asked, approved=not approved))
        assert late.status_code == 409
        assert late.text == "the call of the tool 'pay' has been answered already: load the conversation again"
        assert (await tab.load(), len(model.requests)) == (done, 2)


@pytest.mark.parametrize("approved", [True, False])
async def test_an_answer_of_a_second_tab_does_not_stop_the_tool(approved: bool) -> None:
    model = Payer()
    async with running(model) as tab:
        await tab.ask()
        asked = await tab.load()
        model.go.clear()
        first = asyncio.create_task(tab.send(answered(asked)))
        await until(lambda: len(model.requests) == 2)
        assert (await tab.load())["parts"][-1]["approval"] == {"id": "c1", "approved": True}
        second = await tab.send(answered(asked, approved=approved))
        assert second.status_code == 409
        model.go.set()
        async with asyncio.timeout(PATIENCE_S):
            await first
        assert (await tab.load())["parts"][1]["output"] == "paid"
        assert model.approved == [(), (PAY,)]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_call_runs_once_if_two_tabs_answer_before_an_answer_is_stored(approved: bool) -> None:
    model, store = Payer(), HeldStore(":memory:")
    async with running(model, store) as tab:
        await tab.ask()
        asked = await tab.load()
        model.go.clear()
        store.go.clear()
        first = asyncio.create_task(tab.send(answered(asked)))
        await until(lambda: store.waiting == 1)
        reads = store.reads
        second = asyncio.create_task(tab.send(answered(asked, approved=approved)))
        await until(lambda: store.reads > reads)
        store.go.set()
        await until(lambda: len(model.requests) == 2)
        model.go.set()
        async with asyncio.timeout(PATIENCE_S):
            response, refused = await asyncio.gather(first, second)
        assert {"type": "abort"} not in checked(response.text, known_calls=frozenset({"c1"}))
        assert refused.status_code == 409
        assert model.approved == [(), (PAY,)]
        assert (await tab.load())["parts"][1]["output"] == "paid"


async def test_a_client_cannot_answer_for_a_call_without_a_request_or_give_its_result() -> None:
    model = Payer()
    async with running(model) as tab:
        await tab.ask()
        asked = await tab.load()
        *_, call = asked["parts"]
        other = {**call, "toolCallId": "c9", "state": "approval-responded", "approval": {"id": "c9", "approved": True}}
        result = {**call, "state": "output-available", "output": "paid"}
        changed = {**call, "input": {"amount": 1}}
        wrong_id = {**call, "state": "approval-responded", "approval": {"id": "c9", "approved": True}}
        for forged in (other, result, wrong_id, changed):
            await tab.send({**asked, "parts": [forged]})
            assert model.approved[-1] == ()
            assert (await tab.load())["parts"][1] == call
        await tab.send(answered({**asked, "parts": [changed]}))
        assert model.approved[-1] == (PAY,), "the model runs what it has asked for"


async def test_an_approved_call_comes_again_if_the_response_was_interrupted() -> None:
    model = Payer()
    async with running(model) as tab:
        await tab.ask()
        model.error = ChatError("the bank is closed")
        await tab.send(answered(await tab.load()))
        model.error = None
        await tab.send(await tab.load())
        assert model.approved == [(), (PAY,), (PAY,)]
        assert (await tab.load())["parts"][1]["output"] == "paid"
