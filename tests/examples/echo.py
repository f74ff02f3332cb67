"""The example's application, whose assistant repeats what it is asked. A test serves it under `app-toolkit dev`."""

import asyncio
import importlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import chat.assistant

from app_toolkit.chat import ChatEvent, ChatRequest, FinishEvent, TextEvent, ToolCallEvent, ToolResultEvent

PERIOD_S = float(os.environ.get("CHAT_PERIOD_S", "0.02"))
"""Seconds before each line of an answer."""


class Echo(chat.assistant.Assistant):
    """Repeats the last message line by line. A line `/NAME ARGUMENTS RESULT`, both without blanks, calls a tool."""

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        for index, line in enumerate(request.prompt.splitlines(keepends=True)):
            await asyncio.sleep(PERIOD_S)
            if not line.startswith("/"):
                yield TextEvent(line)
                continue
            name, arguments, result = line[1:].split()
            yield ToolCallEvent(index, f"call-{index}", name, arguments, executed=True)
            await asyncio.sleep(PERIOD_S)
            is_error = result == "error"
            yield ToolResultEvent(f"call-{index}", "no such city" if is_error else json.loads(result), is_error)
        yield FinishEvent()


chat.assistant.Assistant = Echo  # type: ignore[misc]

app = importlib.import_module("chat.app").app  # it binds the assistant
