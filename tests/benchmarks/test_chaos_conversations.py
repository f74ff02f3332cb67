"""The client of stored conversations, which finds messages that are lost, double, changed or misplaced."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from fastapi import FastAPI

from app_toolkit.chat import (
    ApprovalRequest,
    ChatEvent,
    ChatRequest,
    FileStore,
    SQLConversationStore,
    TextEvent,
    ToolCall,
    ToolResultEvent,
    ai_sdk_router,
    conversations_router,
    files_router,
)
from app_toolkit.streaming import MemoryStreamLog
from benchmarks.chaos.conversations import CHANGED, DOUBLE, LOST, MISPLACED, WRONG, Chat, Counts, Message, faults_of
from benchmarks.chaos.conversations_victim import PAY, questions_of, response_to
from tests.chat.served import asking

pytestmark = pytest.mark.anyio


class Writer:
    """The model of the scenario, without pauses."""

    def __init__(self, files: FileStore) -> None:
        self._files = files

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        for call in request.approved_calls:
            yield ToolResultEvent(call.id, "paid")
        questions = await questions_of(request, self._files)
        if questions[-1].startswith(PAY) and not request.approved_calls and request.messages[-1].role == "user":
            yield ApprovalRequest(ToolCall(f"call-{questions[-1]}", PAY, "{}"))
        else:
            yield TextEvent(response_to(questions))


async def conversed(folder: Path, turns: int) -> tuple[Chat, Counts, dict[str, Message]]:
    """A client after so many turns, and the messages that are stored."""
    store, app, counts = SQLConversationStore(":memory:"), FastAPI(), Counts()
    files = FileStore(folder, url="/files")
    chats = ai_sdk_router(Writer(files), log=MemoryStreamLog(), conversations=store, files=files, version=6)
    app.include_router(chats, prefix="/chat")
    app.include_router(files_router(files), prefix="/files")
    app.include_router(conversations_router(store), prefix="/conversations")
    async with asking(app) as http:
        chat = Chat(http, "", "chat", Random(3), counts)
        await chat.converse(turns)
        messages = await chat.conversation()
    await store.close()
    return chat, counts, messages


async def test_a_conversation_with_all_kinds_of_turns_has_no_fault(tmp_path: Path) -> None:
    chat, counts, messages = await conversed(tmp_path, 40)
    assert (faults_of(chat, messages).total(), counts.problems, counts.interrupted) == (0, [], 0)
    assert chat.approved
    assert chat.denied
    assert any(len(question["parts"]) == 2 for question, _ in chat.questions.values()), "one has a file"
    parents = [message["parent_id"] for message in messages.values()]
    assert len(set(parents)) < len(parents), "it has branches"


async def test_each_damage_is_a_fault(tmp_path: Path) -> None:
    chat, _, messages = await conversed(tmp_path, 6)
    first, question = next((id, message) for id, message in messages.items() if id in chat.questions)
    answer = next(id for id in messages if id in chat.responses)

    def after(**changed: Message) -> dict[str, int]:
        return faults_of(chat, {**messages, **changed})

    assert faults_of(chat, {id: message for id, message in messages.items() if id != first}) == {LOST: 1}
    assert after(other={**question, "id": "other"}) == {DOUBLE: 1}
    assert after(**{first: {**question, "parts": [{"type": "text", "text": "no"}]}}) == {CHANGED: 1}
    assert after(**{first: {**question, "parent_id": "other"}}) == {MISPLACED: 1}
    for damage in ({"parts": []}, {"parent_id": "other"}, {"metadata": {"incomplete": True}}):
        assert after(**{answer: {**messages[answer], **damage}}) == {WRONG: 1}
