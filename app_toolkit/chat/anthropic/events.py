"""The events of a model as those of a stream of Anthropic's API, whose blocks follow each other."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from app_toolkit.chat.failures import ModelFailed
from app_toolkit.chat.json_objects import json_object
from app_toolkit.chat.protocol import (
    ChatEvent,
    ErrorEvent,
    FinishEvent,
    FinishReason,
    OptionalEvent,
    ReasoningEvent,
    SourceEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)

WireEvent = dict[str, Any]

EXPRESSED: frozenset[type[OptionalEvent]] = frozenset({SourceEvent})
"""A citation of a document has its place among the documents of the request, which a `DocumentEvent` does not have."""

Thinking = Literal["shown", "omitted", "left out"]
"""What a client gets of the reasoning. `omitted`: blocks without their text."""

STOP_REASONS: Mapping[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}

SIGNATURE = "unsigned"
"""The signature of thinking blocks, which is not checked. Clients do not send blocks without a signature back."""

SERVER_NAME = "app_toolkit"
"""The name of the MCP server of calls that the model runs itself."""


@dataclass(slots=True)
class Block:
    """A block that the stream has begun."""

    key: str | int
    """The type of a text or of thinking, or the index of a call."""
    number: int
    """Its place in the content of the message."""
    id: str = ""
    """Of a call."""
    arguments: list[str] = field(default_factory=list)

    @property
    def is_call(self) -> bool:
        return isinstance(self.key, int)

    def is_complete(self, answered: set[str]) -> bool:
        """Return whether another block may follow. `answered`: the ids of calls with a result."""
        text = "".join(self.arguments)
        return not self.is_call or json_object(text) is not None or (not text and self.id in answered)


class MessageEvents:
    """Translates the events of a response, of which `executed` is known for each call.

    A stream has one open block. Events of another block wait until the arguments of the open call are complete, at most
    to the end of the response, whose size is their bound.
    """

    def __init__(self, id: str, model: str, thinking: Thinking, *, shows_executed: bool) -> None:
        """Begin a response.

        Parameters:
            id: The ID of the message.
            model: The name of the model.
            thinking: What the client gets of the reasoning.
            shows_executed: Whether the client gets the calls that the model runs itself.
        """
        self.begun = False
        """Whether there are events."""
        self._head: WireEvent = {"id": id, "type": "message", "role": "assistant", "model": model}
        self._thinking = thinking
        self._shows_executed = shows_executed
        self._usage = UsageEvent(0, 0)
        self._number = 0
        self._open: Block | None = None
        self._answered: set[str] = set()
        self._waiting: list[ChatEvent] = []

    def translate(self, event: ChatEvent) -> Iterator[WireEvent]:
        """Yield what an event becomes.

        Raises:
            ModelFailed: It is an `ErrorEvent`, or the arguments of a call are no JSON object.
        """
        match event:
            case UsageEvent():
                self._usage = event
                return
            case ErrorEvent():
                raise ModelFailed(event.message, event.code)
            case ToolCallEvent(executed=True) | ToolResultEvent() if not self._shows_executed:
                return
            case ReasoningEvent() if self._thinking == "left out":
                return
        if not self.begun:
            self.begun = True
            message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": self._tokens()}
            yield {"type": "message_start", "message": message}
        if isinstance(event, FinishEvent):
            yield from self._finish(event)
            return
        if isinstance(event, ToolResultEvent):
            self._answered.add(event.id)
        self._wait(event)
        yield from self._write_waiting()

    def _finish(self, event: FinishEvent) -> Iterator[WireEvent]:
        is_cut = event.reason in ("length", "content_filter")
        while self._waiting:
            yield from self._close(is_cut)
            yield from self._write_waiting()
        yield from self._close(is_cut)
        is_stopped = event.reason == "stop" and event.stop_string is not None
        delta = {
            "stop_reason": "stop_sequence" if is_stopped else STOP_REASONS[event.reason],
            "stop_sequence": event.stop_string if is_stopped else None,
        }
        yield {"type": "message_delta", "delta": delta, "usage": self._tokens()}
        yield {"type": "message_stop"}

    def _wait(self, event: ChatEvent) -> None:
        """Add an event to those that wait. More arguments of a call that waits are added to its first event."""
        if isinstance(event, ToolCallEvent) and not event.id:
            for place, first in enumerate(self._waiting):
                if isinstance(first, ToolCallEvent) and first.index == event.index:
                    self._waiting[place] = replace(first, arguments=first.arguments + event.arguments)
                    return
        self._waiting.append(event)

    def _write_waiting(self) -> Iterator[WireEvent]:
        """Write the events that may be written now, in their order."""
        has_written = True
        while has_written and self._waiting:
            has_written = False
            events, self._waiting = self._waiting, []
            for event in events:
                if self._has_to_wait(event):
                    self._waiting.append(event)
                else:
                    yield from self._write(event)
                    has_written = True

    def _has_to_wait(self, event: ChatEvent) -> bool:
        if self._open is not None and self._open.key == _key(event):
            return False
        return bool(self._waiting) or (self._open is not None and not self._open.is_complete(self._answered))

    def _write(self, event: ChatEvent) -> Iterator[WireEvent]:
        match event:
            case TextEvent(text):
                yield from self._begin(event, {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case SourceEvent():
                yield from self._begin(event, {"type": "text", "text": ""})
                yield self._delta({"type": "citations_delta", "citation": _citation(event)})
            case ReasoningEvent(text):
                yield from self._begin(event, {"type": "thinking", "thinking": "", "signature": ""})
                if self._thinking == "shown":
                    yield self._delta({"type": "thinking_delta", "thinking": text})
            case ToolCallEvent(index) if event.id or (self._open is not None and self._open.key == index):
                yield from self._begin(event, _call_block(event))
                if event.arguments:
                    yield self._delta({"type": "input_json_delta", "partial_json": event.arguments})
            case ToolCallEvent():
                pass  # after the arguments are complete, nothing but white space can follow
            case ToolResultEvent():
                yield from self._close()
                yield {"type": "content_block_start", "index": self._number, "content_block": _result_block(event)}
                yield {"type": "content_block_stop", "index": self._number}
                self._number += 1

    def _begin(self, event: ChatEvent, content: WireEvent) -> Iterator[WireEvent]:
        """Begin the block of an event, unless it is open."""
        key = _key(event)
        if self._open is not None and self._open.key == key:
            return
        yield from self._close()
        self._open = Block(key, self._number, content.get("id", ""))
        self._number += 1
        yield {"type": "content_block_start", "index": self._open.number, "content_block": content}

    def _delta(self, delta: WireEvent) -> WireEvent:
        assert self._open is not None
        if "partial_json" in delta:
            self._open.arguments.append(delta["partial_json"])
        return {"type": "content_block_delta", "index": self._open.number, "delta": delta}

    def _close(self, is_cut: bool = False) -> Iterator[WireEvent]:
        """Close the open block. `is_cut`: whether the arguments of a call may be incomplete."""
        block, self._open = self._open, None
        if block is None:
            return
        if block.key == "thinking":
            signature = {"type": "signature_delta", "signature": SIGNATURE}
            yield {"type": "content_block_delta", "index": block.number, "delta": signature}
        arguments = "".join(block.arguments)
        if arguments and not is_cut and json_object(arguments) is None:
            raise ModelFailed(
                f"the model called a tool with arguments that are no JSON object: {arguments[:100]!r}", "invalid_call"
            )
        yield {"type": "content_block_stop", "index": block.number}

    def _tokens(self) -> dict[str, Any]:
        usage = self._usage
        return {
            "input_tokens": max(0, usage.input_tokens - usage.cached_tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        }


class WholeMessage:
    """A message, joined from the events of its stream."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = {}
        self._parts: list[list[str]] = []

    def add(self, event: WireEvent) -> None:
        """Add an event."""
        match event["type"]:
            case "message_start":
                self._document = event["message"]
            case "content_block_start":
                self._document["content"].append(event["content_block"])
                self._parts.append([])
            case "content_block_delta":
                match event["delta"]:
                    case {"signature": signature}:
                        self._document["content"][event["index"]]["signature"] = signature
                    case {"citation": citation}:
                        self._document["content"][event["index"]].setdefault("citations", []).append(citation)
                    case {"text": part} | {"thinking": part} | {"partial_json": part}:
                        self._parts[event["index"]].append(part)
            case "message_delta":
                self._document.update(event["delta"], usage=event["usage"])

    def document(self) -> dict[str, Any]:
        """Return the message. The input of a call that was cut is empty."""
        for block, parts in zip(self._document["content"], self._parts, strict=True):
            text = "".join(parts)
            match block["type"]:
                case "text" | "thinking" as kind:
                    block[kind] = text
                case "tool_use" | "mcp_tool_use":
                    block["input"] = json_object(text) or {}
        return self._document


def _key(event: ChatEvent) -> str | int:
    match event:
        case TextEvent() | SourceEvent():
            return "text"
        case ReasoningEvent():
            return "thinking"
        case ToolCallEvent(index):
            return index
    return "result"


def _citation(event: SourceEvent) -> WireEvent:
    """Return a page as a result of a search. The cited text is not known, and no server reads the index back."""
    location = {"type": "web_search_result_location", "cited_text": "", "encrypted_index": ""}
    return {**location, "url": event.url, "title": event.title or None}


def _call_block(event: ToolCallEvent) -> WireEvent:
    block: WireEvent = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
    return {**block, "type": "mcp_tool_use", "server_name": SERVER_NAME} if event.executed else block


def _result_block(event: ToolResultEvent) -> WireEvent:
    text = event.result if isinstance(event.result, str) else json.dumps(event.result, ensure_ascii=False, default=str)
    return {
        "type": "mcp_tool_result",
        "tool_use_id": event.id,
        "is_error": event.is_error,
        "content": [{"type": "text", "text": text}],
    }
