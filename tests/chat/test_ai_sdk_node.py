"""The router for the Vercel AI SDK with the npm package `ai` itself, without React.

Set APP_TOOLKIT_TEST_NODE_MODULES to a node_modules folder with `ai` (`npm install ai`).
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app_toolkit import Toolkit
from app_toolkit.chat import (
    ChatEvent,
    ChatRequest,
    SQLiteConversationStore,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    ai_sdk_router,
)
from app_toolkit.chat.models import EchoModel
from app_toolkit.chat.stored_chat import DEFAULT_USER
from app_toolkit.streaming import MemoryStreamLog
from tests.patience import PATIENCE_S, until
from tests.streaming.test_resumable import serving

NODE = shutil.which("node")
FOLDER = os.environ.get("APP_TOOLKIT_TEST_NODE_MODULES", "")
SCRIPT = Path(__file__).parent / "ai_sdk.mjs"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(NODE is None, reason="node is not installed"),
    pytest.mark.skipif(
        not FOLDER or not (Path(FOLDER) / "ai" / "package.json").is_file(),
        reason="APP_TOOLKIT_TEST_NODE_MODULES names no node_modules folder with the package ai",
    ),
]


class Counted:
    """An `EchoModel` that says how many of its responses run."""

    def __init__(self) -> None:
        self.running = 0
        self._echo = EchoModel(period_s=0.01)

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.running += 1
        try:
            async for event in self._echo.chat(request):
                yield event
        finally:
            self.running -= 1


async def agent(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield TextEvent("I look.")
    yield ToolCallEvent(0, "c1", "search", '{"query": "x"}')
    yield ToolCallEvent(1, "c2", "search", "{}")
    yield ToolResultEvent("c1", {"found": [1]})
    yield ToolResultEvent("c2", "nothing", is_error=True)
    yield TextEvent("I found one.")


async def run_script(url: str) -> dict[str, Any]:
    assert NODE is not None
    process = await asyncio.create_subprocess_exec(
        NODE, SCRIPT, FOLDER, url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    seen: dict[str, Any] = json.loads(out)
    return seen


def parts(chat: dict[str, Any], number: int = -1) -> list[dict[str, Any]]:
    """The parts of a message, with the keys that matter."""
    keys = ("type", "text", "state", "input", "output", "errorText")
    return [{key: part[key] for key in keys if part.get(key) is not None} for part in chat["messages"][number]["parts"]]


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "state": "done"}


STEP = {"type": "step-start"}


@pytest.mark.parametrize("kind", [FastAPI, Toolkit])
async def test_the_chats_of_the_package_see_what_the_model_yields(kind: type[FastAPI]) -> None:
    model, app = Counted(), kind()
    models: dict[str, Any] = {"echo": model, "agent": agent}
    store = SQLiteConversationStore(":memory:")
    app.include_router(ai_sdk_router(models, log=MemoryStreamLog(), conversations=store), prefix="/api/chat")
    app.include_router(ai_sdk_router(models, resume=False, version=6), prefix="/plain")
    async with serving(app) as url:
        seen = await run_script(url)
        await until(lambda: not model.running)
    await check_stored(seen, store)
    check_responses(seen)
    check_errors(seen)
    check_streams_that_end_early(seen)


async def check_stored(seen: dict[str, Any], store: SQLiteConversationStore) -> None:
    """The stored messages are those of the clients, but for the ids that some releases give to parts."""
    found = [await store.get(DEFAULT_USER, each.id) for each in await store.list(DEFAULT_USER)]
    stored = [[plain(message) for message in each.messages] for each in found if each is not None]
    for name in ("text", "reasoning", "agent", "conversation", "tool"):
        assert [plain(message) for message in seen[name]["messages"]] in stored, name
    broken = next(each for each in found if each is not None and each.title == "word /break")
    assert broken.messages[-1]["metadata"] == {"incomplete": True, "error": "the model was asked to break"}
    store.close()


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    parts = [{key: value for key, value in part.items() if key != "id"} for part in message["parts"]]
    return {"id": message["id"], "role": message["role"], "parts": parts}


def check_responses(seen: dict[str, Any]) -> None:
    assert parts(seen["text"]) == [STEP, said("hello ä world")]
    assert (seen["text"]["status"], seen["text"]["isError"]) == ("ready", False)
    assert seen["text"]["messages"][1]["id"].startswith("msg_")
    if not seen["version"].startswith("5."):
        assert seen["version6"]["finishReason"] == "length"
    assert parts(seen["reasoning"]) == [
        STEP,
        {"type": "reasoning", "text": "let me think ", "state": "done"},
        said("yes"),
    ]
    assert [part.get("text") for message in seen["conversation"]["messages"] for part in message["parts"]] == [
        "first",
        None,
        "first",
        "second",
        None,
        "second",
    ]
    assert parts(seen["agent"]) == [
        STEP,
        said("I look."),
        {"type": "tool-search", "state": "output-available", "input": {"query": "x"}, "output": {"found": [1]}},
        {"type": "tool-search", "state": "output-error", "input": {}, "errorText": "nothing"},
        STEP,
        said("I found one."),
    ]
    assert len(seen["tool"]["messages"]) == 2
    call, answer = parts(seen["tool"])[1], parts(seen["tool"])[-1]
    assert (call["type"], call["output"]) == ("tool-weather", {"ok": {"text": "hello"}})
    assert answer["text"] == 'the tool returned {"ok": {"text": "hello"}}'
    assert [part["type"] for part in seen["reader"]["parts"]] == ["step-start", "text"]
    assert seen["reader"]["parts"][1]["text"] == "one two"
    assert parts(seen["textProtocol"]) == [STEP, said("plain words")]


def check_errors(seen: dict[str, Any]) -> None:
    assert (seen["refused"]["status"], seen["refused"]["error"]) == ("error", "the model was asked to fail")
    assert (seen["broken"]["status"], seen["broken"]["error"]) == ("error", "the model was asked to break")
    assert parts(seen["broken"]) == [STEP, said("word")]


def check_streams_that_end_early(seen: dict[str, Any]) -> None:
    resumed = seen["resumed"]
    assert resumed["replayed"]
    assert resumed["stop"] == {"success": True}
    assert resumed["first"]["isAbort"]
    assert resumed["first"]["messages"][1]["id"] == resumed["second"]["messages"][1]["id"]
    assert len(resumed["second"]["messages"]) == 2
    assert (resumed["second"]["status"], resumed["second"].get("error")) == ("ready", None)
    assert parts(resumed["second"])[1]["state"] == "done"
    assert (resumed["third"]["status"], resumed["third"]["messages"]) == ("ready", [])
    replaced = seen["replaced"]
    assert (replaced["first"]["status"], replaced["first"].get("error")) == ("ready", None)
    assert parts(replaced["second"]) == [STEP, said("instead")]
    assert (seen["aborted"]["status"], seen["aborted"]["isAbort"]) == ("ready", True)
