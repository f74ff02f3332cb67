"""The router for the Vercel AI SDK with the npm package `ai` itself, without React.

Set APP_TOOLKIT_TEST_NODE_MODULES to a node_modules folder with `ai` (`npm install ai`).
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app_toolkit import Toolkit
from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent, ToolCallEvent, ToolResultEvent, ai_sdk_router
from app_toolkit.chat.echo import EchoModel
from app_toolkit.streaming import MemoryStreamLog
from benchmarks.conformance.clients import PASSED, node_command
from tests.chat.node import FOLDER, MARKS
from tests.chat.served import served
from tests.patience import PATIENCE_S, until

pytestmark = MARKS


class Counted:
    """An `EchoModel` that says how many of its responses run, by the words of their prompts."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self._echo = EchoModel(period_s=0.01)

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        words = request.prompt.split()
        self.running.update(words)
        try:
            async for event in self._echo.chat(request):
                yield event
        finally:
            self.running.subtract(words)


async def agent(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield TextEvent("I look.")
    yield ToolCallEvent(0, "c1", "search", '{"query": "x"}')
    yield ToolCallEvent(1, "c2", "search", "{}")
    yield ToolResultEvent("c1", {"found": [1]})
    yield ToolResultEvent("c2", "nothing", is_error=True)
    yield TextEvent("I found one.")


async def verdicts(url: str, folder: Path) -> dict[str, str]:
    """What the package says of each case."""
    process = await asyncio.create_subprocess_exec(
        *node_command(Path(FOLDER), folder, "ai_sdk.mjs"),
        *(url, url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    seen: dict[str, str] = json.loads(out)
    return seen


@pytest.mark.parametrize("kind", [FastAPI, Toolkit])
async def test_the_chats_of_the_package_show_the_events_of_the_model(kind: type[FastAPI], tmp_path: Path) -> None:
    model, app = Counted(), kind()
    models: dict[str, Any] = {"echo": model, "agent": agent}
    app.include_router(ai_sdk_router(models, log=MemoryStreamLog()), prefix="/api/chat")
    app.include_router(ai_sdk_router(models, resume=False, version=6), prefix="/plain")

    @app.get("/running")
    async def running(word: str) -> int:
        return model.running[word]

    async with served(app) as url:
        seen = await verdicts(url, tmp_path)
        await until(lambda: not model.running.total())
    assert len(seen) > 10
    assert set(seen.values()) == {PASSED}, seen
