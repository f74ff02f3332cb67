"""A chat model for tests, demonstrations and front ends: no network, no weights."""

import asyncio
from collections.abc import AsyncIterator

from app_toolkit import ChatError, Deployment
from app_toolkit.chat.protocol import (
    ApprovalRequest,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    ErrorEvent,
    FinishEvent,
    ReasoningEvent,
    SourceEvent,
    StatusEvent,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)


class EchoModel(
    Deployment, name="echo-model", max_ongoing_requests=100, max_open_streams=0, resources={"num_cpus": 0.1}
):
    """Answers with the words of the last message, one by one.

    Words that begin with `/` make it behave in a way that clients must handle: `/reason` reasons first, `/tool NAME`
    calls a tool, `/approve` asks whether it may run a tool, `/status` says what it does, `/source` names a source,
    `/fail` fails before the first event, `/break` after it, `/length` ends because of the length,
    `/forever` does not end.
    """

    def __init__(self, period_s: float = 0.0) -> None:
        """Create the model.

        Parameters:
            period_s: Seconds before each word. Default: 0.
        """
        self._period_s = period_s

    async def count_tokens(self, request: ChatRequest) -> int:
        """Return the number of words of all messages."""
        return sum(len(message.text.split()) for message in request.messages)

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Yield the response. Raises `ChatError` for `/fail`."""
        words = request.prompt.split()
        commands = [word for word in words if word.startswith("/")]
        if "/fail" in commands:
            raise ChatError("the model was asked to fail", status=503, code="asked_to_fail")
        if "/status" in commands:
            yield StatusEvent("Thinking")
        begun = request.continue_from or ChatMessage("assistant")
        if "/reason" in commands:
            for word in ("let", "me", "think")[len(begun.reasoning.split()) :]:
                await asyncio.sleep(self._period_s)
                yield ReasoningEvent(f"{word} ")
        if "/tool" in commands and request.tools and request.messages[-1].role != "tool":
            yield ToolCallEvent(0, "call_0", request.tools[0].name, executed=False)
            for part in ('{"text": ', '"hello"}'):
                await asyncio.sleep(self._period_s)
                yield ToolCallEvent(0, arguments=part)
            yield UsageEvent(len(words), 1)
            yield FinishEvent("tool_calls")
            return
        if "/approve" in commands and request.messages[-1].role == "user" and not request.approved_calls:
            yield ApprovalRequest(ToolCall("call_0", "send", '{"text": "hello"}'))
            yield UsageEvent(len(words), 1)
            return
        for call in request.approved_calls:
            yield ToolResultEvent(call.id, "done")
        answered = [word for word in words if word not in commands]
        if request.approved_calls:
            answered = ["the", "tool", "returned", "done"]
        if request.messages[-1].role == "tool":
            answered = ["the", "tool", "returned", *request.messages[-1].text.split()]
        position, count = 0, 0  # in the response, and of the words that follow `continue_from`
        while True:
            for word in answered or ["hello"]:
                position += 1
                if position <= len(begun.text.split()):
                    continue
                if count == request.max_tokens:
                    yield UsageEvent(len(words), count)
                    yield FinishEvent("length")
                    return
                await asyncio.sleep(self._period_s)
                yield TextEvent(word if position == 1 else f" {word}")
                count += 1
                if "/break" in commands:
                    yield ErrorEvent("the model was asked to break")
                    return
            if "/forever" not in commands:
                break
        if "/source" in commands:
            yield SourceEvent("https://example.com", "Example", "source_0")
        yield UsageEvent(len(words), count)
        yield FinishEvent("length" if "/length" in commands else "stop")
