"""Stored messages are those that the npm package `ai` shows, and it accepts them.

Set APP_TOOLKIT_TEST_NODE_MODULES to a node_modules folder with `ai` (`npm install ai`).
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from app_toolkit.chat import (
    ChatError,
    ChatEvent,
    ChatRequest,
    ReasoningEvent,
    SQLiteConversationStore,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
    ai_sdk_router,
    conversations_router,
)
from tests.chat.served import served
from tests.patience import PATIENCE_S

from .node import FOLDER, MARKS

pytestmark = MARKS


async def text(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield ReasoningEvent("I think.")
    yield TextEvent("Hello ")
    yield TextEvent("wörld")
    yield UsageEvent(3, 4)


async def agent(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield TextEvent("I look.")
    yield ToolCallEvent(0, "c1", "search", '{"query": "x"}')
    yield ToolCallEvent(1, "c2", "search", "{}")
    yield ToolResultEvent("c1", {"found": [1]})
    yield ToolResultEvent("c2", "nothing", is_error=True)
    yield TextEvent("I found one.")


async def broken(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield TextEvent("Half a ")
    raise ChatError("The model has broken.")


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without their metadata, and without the ids that some releases give to parts."""
    return [
        {
            "role": message["role"],
            "id": message["id"],
            "parts": [{key: value for key, value in part.items() if key != "id"} for part in message["parts"]],
        }
        for message in messages
    ]


async def test_the_stored_messages_are_those_that_the_client_shows(tmp_path: Path) -> None:
    store, app = SQLiteConversationStore(":memory:"), FastAPI()
    models: Any = {"text": text, "agent": agent, "broken": broken}
    app.include_router(ai_sdk_router(models, conversations=store), prefix="/api/chat")
    app.include_router(conversations_router(store), prefix="/api/conversations")
    shutil.copy(Path(__file__).with_name("stored_chat.mjs"), tmp_path)
    (tmp_path / "node_modules").symlink_to(FOLDER)  # a module finds packages only below a folder that it is in
    async with served(app) as url, asyncio.timeout(PATIENCE_S):
        process = await asyncio.create_subprocess_exec(
            "node", tmp_path / "stored_chat.mjs", url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    seen = json.loads(out)
    assert list(seen) == ["text", "agent", "broken"]
    for model in ("text", "agent"):
        assert plain(seen[model]["shown"]) == plain(seen[model]["stored"])
    for kind in ("shown", "stored"):
        assert seen["text"][kind][1]["metadata"]["usage"]["totalTokens"] == 7
    *_, part = seen["broken"]["stored"]
    assert part["metadata"] == {"incomplete": True, "error": "The model has broken."}
    assert part["parts"][-1] == {"type": "text", "text": "Half a ", "state": "done"}
    store.close()
