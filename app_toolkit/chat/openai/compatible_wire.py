"""Requests to a server with OpenAI's API, and the chunks of its responses, from and to the interface of chat models."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from app_toolkit import ChatError
from app_toolkit.chat.protocol import (
    Attachment,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    FinishEvent,
    FinishReason,
    ReasoningEvent,
    SourceEvent,
    TextEvent,
    Tool,
    ToolCallEvent,
    UsageEvent,
)

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
"""Servers have further reasons of their own. They count as `stop`."""

AUDIO_FORMATS = {"audio/mpeg": "mp3", "audio/wav": "wav", "audio/x-wav": "wav"}


def completion_body(
    request: ChatRequest,
    *,
    model: str | None = None,
    max_tokens_field: str = "max_tokens",
    forwarded_fields: Collection[str] = (),
    reasoning_field: str | None = None,
    continue_fields: Mapping[str, Any] | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the body of a request for a streamed chat completion.

    Parameters:
        request: The request.
        model: Name of the model. Default: the one of the request.
        max_tokens_field: Name of the field for `ChatRequest.max_tokens`. Default: `max_tokens`.
        forwarded_fields: Names in `ChatRequest.extra` that are copied. Default: none.
        reasoning_field: Field for the reasoning of earlier messages. Default: none, it is left out.
        continue_fields: Fields with which the server continues the last message. Default: none, it cannot.
        extra_body: Fields that override all others. Default: none.

    Raises:
        ChatError: The server cannot continue a response, although it has to.
    """
    messages = [_message(message, reasoning_field) for message in request.messages]
    begun = request.continue_from
    if begun is not None and begun.text:  # reasoning alone begins again, because servers do not continue it
        if continue_fields is None:
            raise ChatError("this model cannot continue a response", code="continue_not_supported")
        messages.append(_message(begun, reasoning_field))
        extra_body = {**continue_fields, **(extra_body or {})}
    body: dict[str, Any] = {
        "model": model or request.model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    options = {
        "tools": [_tool(tool) for tool in request.tools] or None,
        "tool_choice": _tool_choice(request.tool_choice),
        max_tokens_field: request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": list(request.stop) or None,
        # The choices of one request differ, although they have the same seed.
        "seed": None if request.seed is None else request.seed + request.choice,
        "response_format": request.response_format,
        "user": request.user,
    }
    forwarded = {name: value for name, value in (request.extra or {}).items() if name in forwarded_fields}
    set_options = {name: value for name, value in options.items() if value is not None}
    return {**forwarded, **body, **set_options, **(extra_body or {})}


def _message(message: ChatMessage, reasoning_field: str | None) -> dict[str, Any]:
    document: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if reasoning_field is not None and message.reasoning:
        document[reasoning_field] = message.reasoning
    if message.tool_calls:
        document["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        document["content"] = document["content"] or None
    if message.tool_call_id is not None:
        document["tool_call_id"] = message.tool_call_id
    return document


def _content(message: ChatMessage) -> Any:
    if not message.attachments:
        return message.text
    text = [{"type": "text", "text": message.text}] if message.text else []
    return [*text, *(_part(attachment) for attachment in message.attachments)]


def _part(attachment: Attachment) -> dict[str, Any]:
    if attachment.media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": attachment.url}}
    audio = AUDIO_FORMATS.get(attachment.media_type)
    if audio is not None and attachment.url.startswith("data:"):
        content = attachment.url.partition(",")[2]
        return {"type": "input_audio", "input_audio": {"data": content, "format": audio}}
    name = {} if attachment.name is None else {"filename": attachment.name}
    return {"type": "file", "file": {"file_data": attachment.url, **name}}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or None, "parameters": tool.parameters}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _tool_choice(choice: str | None) -> Any:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _sources(annotations: Any) -> Iterator[SourceEvent]:
    """Yield the pages that a delta cites. The SDK has no field for them."""
    for annotation in annotations if isinstance(annotations, list) else ():
        cited = annotation.get("url_citation") if isinstance(annotation, dict) else None
        if isinstance(cited, dict) and isinstance(url := cited.get("url"), str) and url:
            yield SourceEvent(url, str(cited.get("title") or ""))


class ChunkReader:
    """Translates the chunks of one streamed completion to events. It reads the first choice only."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        """Why the model stopped; None: no chunk has said so yet."""
        self._usage: Any = None
        self._ids: list[str] = []
        self._calls: dict[int, int] = {}

    def read(self, chunk: Any) -> Iterator[ChatEvent]:
        """Yield the events of a chunk. The usage and the finish reason come from `end`."""
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            if choice.index:
                continue
            self.finish_reason = choice.finish_reason or self.finish_reason
            delta = choice.delta
            if delta is None:
                continue
            # DeepSeek, SGLang and older versions of vLLM have the first name; Ollama, vLLM and OpenRouter the second.
            reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
            if reasoning and isinstance(reasoning, str):
                yield ReasoningEvent(reasoning)
            for text in (delta.content, getattr(delta, "refusal", None)):
                if text and isinstance(text, str):
                    yield TextEvent(text)
            yield from _sources(getattr(delta, "annotations", None))
            for call in delta.tool_calls or ():
                yield self._call(call)

    def end(self) -> Iterator[ChatEvent]:
        """Yield the usage and the finish reason, after the last chunk."""
        usage = self._usage
        if usage is not None:
            output, prompt = usage.completion_tokens_details, usage.prompt_tokens_details
            yield UsageEvent(
                usage.prompt_tokens or 0,
                usage.completion_tokens or 0,
                reasoning_tokens=(output.reasoning_tokens or 0) if output else 0,
                cached_tokens=(prompt.cached_tokens or 0) if prompt else 0,
            )
        yield FinishEvent(FINISH_REASONS.get(self.finish_reason or "", "stop"))

    def _call(self, part: Any) -> ToolCallEvent:
        """Return a part of a tool call. Some servers give no index, or the same index to several calls."""
        name, arguments = (part.function.name, part.function.arguments) if part.function else (None, None)
        index = part.index or 0
        number = self._calls.get(index)
        if number is not None and (not part.id or part.id == self._ids[number]):
            return ToolCallEvent(number, arguments=arguments or "")
        number = self._calls[index] = len(self._ids)
        self._ids.append(part.id or "")
        return ToolCallEvent(number, part.id or "", name or "", arguments or "", executed=False)
