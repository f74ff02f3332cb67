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
    DataEvent,
    DocumentEvent,
    FileEvent,
    ReasoningEvent,
    SourceEvent,
    SQLConversationStore,
    StatusEvent,
    TextEvent,
    UsageEvent,
    ai_sdk_router,
    conversations_router,
)
from tests.chat.client_cases import agent
from tests.chat.served import served
from tests.patience import PATIENCE_S

from .node import FOLDER, MARKS

pytestmark = MARKS


async def text(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield ReasoningEvent("I think.")
    yield TextEvent("Hello ")
    yield TextEvent("wörld")
    yield UsageEvent(3, 4)


async def researcher(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield StatusEvent("Searching")
    yield DataEvent("chart", [1], "c1")
    yield TextEvent("Oslo")
    yield SourceEvent("https://example.com", "Example", "s1")
    yield DocumentEvent("Manual", "application/pdf", "manual.pdf", "s2")
    yield TextEvent(" it is")
    yield FileEvent("image/png", data=b"abc")
    yield DataEvent("chart", [1, 2], "c1")
    yield DataEvent("progress", 1, transient=True)


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
    store, app = SQLConversationStore(":memory:"), FastAPI()
    models: Any = {"text": text, "agent": agent, "researcher": researcher, "broken": broken}
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
    assert list(seen) == ["text", "agent", "researcher", "broken"]
    for model in ("text", "agent", "researcher"):
        assert plain(seen[model]["shown"]) == plain(seen[model]["stored"])
    for kind in ("shown", "stored"):
        assert seen["text"][kind][1]["metadata"]["usage"]["totalTokens"] == 7
    *_, part = seen["broken"]["stored"]
    assert part["metadata"] == {"incomplete": True, "error": "The model has broken."}
    assert part["parts"][-1] == {"type": "text", "text": "Half a ", "state": "done"}
    await store.close()
