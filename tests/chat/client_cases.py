"""What the cases of `benchmarks/apps/clients` need of an app, and how a client runs them."""

import asyncio
import json
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app_toolkit import QueueFull
from app_toolkit.chat import ChatError, ChatEvent, ChatRequest, TextEvent, ToolCallEvent, ToolResultEvent
from app_toolkit.chat.echo import EchoModel
from benchmarks.conformance.clients import PASSED, node_command
from tests.chat.served import served
from tests.patience import PATIENCE_S, until

MODULES = Path(os.environ.get("APP_TOOLKIT_TEST_NODE_MODULES") or "missing")
REFUSALS = 2


class Counted:
    """An `EchoModel` that says how many of its responses run, by the words of their prompts, and refuses some."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._echo = EchoModel(period_s=0.01)

    async def count_tokens(self, request: ChatRequest) -> int:
        return await self._echo.count_tokens(request)

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        words = request.prompt.split()
        self.running.update(words)
        try:
            if words[:1] == ["/refuse"] and self.refused[words[2]] < REFUSALS:
                self.refused[words[2]] += 1
                status = int(words[1])
                raise QueueFull("10 requests wait") if status == 503 else ChatError("not now", status=status)
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


def add_counts(app: FastAPI, model: Counted) -> None:
    """Add the routes that say which responses run, and which were refused."""

    @app.get("/running")
    async def running(word: str) -> int:
        return model.running[word]

    @app.get("/refused")
    async def refused(name: str) -> int:
        return model.refused[name]


def of_node(folder: Path, module: str, package: str) -> list[str]:
    """The command that runs a module of cases on Node. Skips the test if the package is not installed."""
    if shutil.which("node") is None or not (MODULES / package / "package.json").is_file():
        pytest.skip(f"APP_TOOLKIT_TEST_NODE_MODULES names no node_modules folder with the package {package}")
    return node_command(MODULES, folder, module)


async def check_cases(app: FastAPI, model: Counted, command: list[str]) -> None:
    """Check that all cases of a client pass, and leave no response behind."""
    async with served(app) as url:
        verdicts: dict[str, Any] = json.loads((await printed(*command, url, url)).splitlines()[-1])
        await until(lambda: not model.running.total())
    assert len(verdicts) > 5
    assert set(verdicts.values()) == {PASSED}, verdicts


async def printed(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return out.decode()
