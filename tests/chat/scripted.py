"""Models that say what a test tells them, and the requests that they got."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from app_toolkit.chat import ChatEvent, ChatMessage, ChatRequest
from app_toolkit.chat.chain import Source, ask


class Scripted:
    """A model that yields or raises the parts of its next script. After the last script, it repeats it."""

    def __init__(self, *scripts: Sequence[ChatEvent | Exception]) -> None:
        self._scripts = scripts
        self.requests: list[ChatRequest] = []
        self.running = 0

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        script = self._scripts[min(len(self.requests), len(self._scripts) - 1)]
        self.requests.append(request)
        self.running += 1
        try:
            for part in script:
                if isinstance(part, Exception):
                    raise part
                yield part
        finally:
            self.running -= 1


def question(text: str = "hello", **fields: Any) -> ChatRequest:
    return ChatRequest((ChatMessage("user", text),), **fields)


async def answer(model: Source, request: ChatRequest | None = None) -> list[ChatEvent]:
    """All events of a model."""
    return [event async for event in ask(model, request or question())]
