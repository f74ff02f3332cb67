"""Completions: the choices of one request, streamed or as one document."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from app_toolkit.chat.catalog import CheckedModel
from app_toolkit.chat.events import with_known_runners
from app_toolkit.chat.failures import ModelFailed, failure_of
from app_toolkit.chat.live_response import ClientGone, EventWriter, data, together
from app_toolkit.chat.openai.errors import error_document, error_response
from app_toolkit.chat.protocol import (
    ChatEvent,
    ChatRequest,
    ErrorEvent,
    FinishEvent,
    FinishReason,
    OptionalEvent,
    ReasoningEvent,
    SourceEvent,
    TextEvent,
    ToolCallEvent,
    UsageEvent,
    closing,
)

DONE = b"data: [DONE]\n\n"

EXPRESSED: frozenset[type[OptionalEvent]] = frozenset({SourceEvent})
"""The types of events that become deltas of a chat completion. Text completions have none."""

Delta = dict[str, Any]
Emit = Callable[[int, Delta, FinishReason | None], Awaitable[None]]
"""Takes a part of a choice: the number of the choice, what is added to its message, and why it ends."""


class Choice:
    """One response of a model, translated to the deltas of OpenAI's streams.

    Calls of tools that the model runs itself are left out, because clients run each call that they get.
    """

    def __init__(self, number: int, request: ChatRequest, emit: Emit) -> None:
        self.usage = UsageEvent(0, 0)
        self._number = number
        self._request = request
        self._emit = emit
        self._begun = False
        self._calls: dict[int, int] = {}
        """The indices of the calls for the client, by those of the events."""
        self._length = 0
        """The characters of the text so far."""

    async def run(self, model: CheckedModel) -> None:
        """Run the model to its end. It is closed if this is cancelled. Raises what the model raises."""
        async with closing(with_known_runners(model(self._request))) as events:
            async for event in events:
                await self._take(event)
                await asyncio.sleep(0)  # a model that never waits must not block the event loop

    async def _take(self, event: ChatEvent) -> None:
        match event:
            case UsageEvent():
                self.usage = event
            case ErrorEvent():
                raise ModelFailed(event.message, event.code)
            case TextEvent():
                self._length += len(event.text)
                await self._add({"content": event.text})
            case SourceEvent():
                await self._add({"annotations": [self._citation(event)]})
            case ReasoningEvent():
                await self._add({"reasoning_content": event.text})
            case ToolCallEvent(executed=False):
                await self._add({"tool_calls": [self._call(event)]})
            case FinishEvent():
                await self._add({}, event.reason)

    def _citation(self, event: SourceEvent) -> dict[str, Any]:
        """Return a source as a citation at the end of the text so far."""
        at = self._length
        citation = {"start_index": at, "end_index": at, "title": event.title or event.url, "url": event.url}
        return {"type": "url_citation", "url_citation": citation}

    def _call(self, event: ToolCallEvent) -> dict[str, Any]:
        index = self._calls.setdefault(event.index, len(self._calls))
        if not event.id:
            return {"index": index, "function": {"arguments": event.arguments}}
        function = {"name": event.name, "arguments": event.arguments}
        return {"index": index, "id": event.id, "type": "function", "function": function}

    async def _add(self, delta: Delta, reason: FinishReason | None = None) -> None:
        if not self._begun:
            self._begun = True
            await self._emit(self._number, {"role": "assistant", "content": ""}, None)
        await self._emit(self._number, delta, reason)


class Completion:
    """The choices of one chat completion. They run at the same time, and the first one that fails ends all."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def __init__(self, model: CheckedModel, request: ChatRequest, choices: int) -> None:
        """`choices`: how many choices the request has."""
        self._model = model
        self._requests = [replace(request, choice=number) for number in range(choices)]
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, number: int) -> "WholeMessage":
        """Return a choice that is not streamed, and has nothing yet."""
        return WholeMessage(number)

    def chunk(self, number: int, delta: Delta, reason: FinishReason | None) -> dict[str, Any] | None:
        """Return a part of a choice as an object of the stream. None: the format has no place for it."""
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": reason}

    async def document(self) -> dict[str, Any]:
        """Return the response as one document. Raises what a model raises."""
        wholes = [self.whole(number) for number in range(len(self._requests))]

        async def emit(number: int, delta: Delta, reason: FinishReason | None) -> None:
            wholes[number].add(delta, reason)

        usage = await self._run(emit)
        return {**self._head(self.kind), "choices": [whole.document() for whole in wholes], "usage": usage}

    async def send_stream(self, include_usage: bool, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response as a stream of chunks. An exception before the first chunk is a response with its status.

        Parameters:
            include_usage: Whether the last chunk has the usage, and the others `usage: null`.
        """
        writer = EventWriter(send)
        head = self._head(self.chunk_kind)
        rest: dict[str, Any] = {"usage": None} if include_usage else {}

        async def emit(number: int, delta: Delta, reason: FinishReason | None) -> None:
            choice = self.chunk(number, delta, reason)
            if choice is not None:
                await writer.write(data({**head, "choices": [choice], **rest}))

        with suppress(ClientGone):
            try:
                async with writer.kept_alive():
                    usage = await self._run(emit)
                last = data({**head, "choices": [], "usage": usage}) if include_usage else b""
                await writer.end(last + DONE)
            except ClientGone:
                raise
            except Exception as failed:
                failure = failure_of(failed)
                if writer.started:
                    await writer.end(data(error_document(failure)))
                else:
                    await error_response(failure)(scope, receive, send)

    async def _run(self, emit: Emit) -> dict[str, Any]:
        """Run all choices and return their usage."""
        choices = [Choice(number, request, emit) for number, request in enumerate(self._requests)]
        await together([partial(choice.run, self._model) for choice in choices])
        # The choices of one prompt follow each other, from number 0 on.
        prompts: list[int] = []
        for request, choice in zip(self._requests, choices, strict=True):
            if request.choice == 0:
                prompts.append(0)
            prompts[-1] = max(prompts[-1], choice.usage.input_tokens)
        prompt = sum(prompts)
        output = sum(choice.usage.output_tokens for choice in choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": max(choice.usage.cached_tokens for choice in choices)},
            "completion_tokens_details": {"reasoning_tokens": sum(choice.usage.reasoning_tokens for choice in choices)},
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._requests[0].model}


class TextCompletion(Completion):
    """The choices of one text completion, with one or several prompts.

    Reasoning and calls of tools are left out, because the format has no place for them.
    """

    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def __init__(self, model: CheckedModel, requests: Sequence[ChatRequest], choices: int, *, echo: bool) -> None:
        """Prepare a completion.

        Parameters:
            model: The model.
            requests: One for each prompt.
            choices: How many choices each prompt has.
            echo: Whether each choice begins with its prompt.
        """
        super().__init__(model, requests[0], choices)
        self._requests = [replace(request, choice=number) for request in requests for number in range(choices)]
        self._echo = echo

    def whole(self, number: int) -> "WholeMessage":
        return WholeText(number, self._begin(number))

    def chunk(self, number: int, delta: Delta, reason: FinishReason | None) -> dict[str, Any] | None:
        text = self._begin(number) if "role" in delta else delta.get("content", "")
        if not text and reason is None:
            return None
        return {"index": number, "text": text, "logprobs": None, "finish_reason": text_reason(reason)}

    def _begin(self, number: int) -> str:
        return self._requests[number].prompt if self._echo else ""


def text_reason(reason: FinishReason | None) -> FinishReason | None:
    """Return why a text completion ends."""
    return "stop" if reason == "tool_calls" else reason


class WholeMessage:
    """The message of one choice, joined from its deltas."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._reason: FinishReason | None = None
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._annotations: list[dict[str, Any]] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}

    def add(self, delta: Delta, reason: FinishReason | None) -> None:
        self._reason = reason or self._reason
        if "content" in delta:
            self._texts.append(delta["content"])
        if "reasoning_content" in delta:
            self._reasoning.append(delta["reasoning_content"])
        self._annotations += delta.get("annotations", ())
        for call in delta.get("tool_calls", ()):
            index = call["index"]
            self._calls.setdefault(index, call)
            self._arguments.setdefault(index, []).append(call["function"]["arguments"])

    def document(self) -> dict[str, Any]:
        """Return the choice as an object of the response."""
        text = "".join(self._texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self._calls and not text else text,
            "refusal": None,
        }
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._annotations:
            message["annotations"] = self._annotations
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["function"]["name"], "arguments": "".join(self._arguments[index])},
                }
                for index, call in sorted(self._calls.items())
            ]
        return {"index": self._number, "message": message, "logprobs": None, "finish_reason": self._reason}


class WholeText(WholeMessage):
    """The text of one choice, joined from its deltas."""

    def __init__(self, number: int, begin: str) -> None:
        """`begin`: the text before the first delta."""
        super().__init__(number)
        self._texts.append(begin)

    def document(self) -> dict[str, Any]:
        text, reason = "".join(self._texts), text_reason(self._reason)
        return {"index": self._number, "text": text, "logprobs": None, "finish_reason": reason}
