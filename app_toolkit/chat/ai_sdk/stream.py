"""The parts of a UI message stream, version 1, and how the events of a model become parts.

The schemas of older clients refuse a part with a key that they do not know, so a part has only the keys that all
versions of the AI SDK from 5 on know.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Never

from fastapi.encoders import jsonable_encoder

from app_toolkit.chat.protocol import (
    ApprovalRequest,
    ChatEvent,
    DataEvent,
    DocumentEvent,
    ErrorEvent,
    FileEvent,
    FinishEvent,
    FinishReason,
    OptionalEvent,
    ReasoningEvent,
    SourceEvent,
    StatusEvent,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)

Part = dict[str, Any]

EXPRESSED: frozenset[type[OptionalEvent]] = frozenset({SourceEvent, DocumentEvent, FileEvent, DataEvent, StatusEvent})
"""The types of events that become parts in every version of the AI SDK."""

FINISH_REASONS: Mapping[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool-calls",
    "content_filter": "content-filter",
}

APPROVALS_SINCE = 6
"""The version of the AI SDK from which on every release knows approvals of tools."""

FINISH_REASON_SINCE = 6
"""The version of the AI SDK from which on every release knows `finishReason`."""


def encode(part: Part) -> bytes:
    """Return a part as an event of a stream log: an empty type, a line feed, and the data.

    Raises:
        ValueError: A number of the part is not finite, which JSON does not have.
    """
    options: Any = {"separators": (",", ":"), "default": jsonable_encoder, "allow_nan": False}
    try:
        return b"\n" + json.dumps(part, ensure_ascii=False, **options).encode()
    except UnicodeEncodeError:  # half of a surrogate pair in the result of a tool
        return b"\n" + json.dumps(part, **options).encode()


@dataclass(slots=True)
class PartialCall:
    """A tool call whose arguments the model writes."""

    id: str
    name: str
    executed: bool
    """Whether the model runs the tool itself."""
    arguments: list[str] = field(default_factory=list)
    """In the parts of the model: joining them for each part would take quadratic time."""
    has_changed: bool = False
    """Whether arguments were added after they were last read."""
    complete: bool = False

    def part(self, kind: str, **fields: Any) -> Part:
        """Return a part about this call. Clients do not run a tool that is executed by its provider."""
        executed = {"providerExecuted": True} if self.executed else {}
        return {"type": kind, "toolCallId": self.id, **fields, **executed}


class MessageParts:
    """Translates the events of one response. The parts of all events in this order are a valid stream.

    The model calls tools and then goes on in a new step, as it does in the AI SDK: a step ends when all of its tools
    have results and the model yields something else.
    """

    def __init__(self, message_id: str, *, version: int) -> None:
        """Begin a message.

        Parameters:
            message_id: The id of the message.
            version: The version of the AI SDK of the client.
        """
        self.finished = False
        self._message_id = message_id
        self._version = version
        self._started = False
        self._open: tuple[Literal["text", "reasoning"], str] | None = None
        """The part that the model writes, and its id."""
        self._texts = 0
        self._calls: dict[int, PartialCall] = {}
        """The calls of this step by their index."""
        self._denied: tuple[str, ...] = ()
        self._unanswered: set[str] = set()
        self._has_results = False
        self._usage: UsageEvent | None = None

    def deny(self, calls: Iterable[str]) -> None:
        """Tell the client first that these calls of the message that is continued are not run. They are ids."""
        if self._version >= APPROVALS_SINCE:
            self._denied = tuple(calls)

    def translate(self, event: ChatEvent) -> list[Part]:
        """Return the parts of the next event, which `EventChecker` has checked."""
        match event:
            case TextEvent(text):
                return [*self._start(), *self._write("text", text)]
            case ReasoningEvent(text):
                return [*self._start(), *self._write("reasoning", text)]
            case ToolCallEvent():
                return [*self._start(), *self._call(event)]
            case ToolResultEvent():
                return [*self._start(), *self._result(event)]
            case UsageEvent():
                self._usage = event
            case ErrorEvent(message):
                return self.fail(message)
            case FinishEvent(reason):
                return self._finish(reason)
            case SourceEvent() | DocumentEvent() | StatusEvent() | DataEvent(transient=True):
                return [*self._start(), optional_part(event)]  # the text that the model writes goes on
            case FileEvent() | DataEvent():
                return [*self._start(), *self._close(), optional_part(event)]
            case ApprovalRequest(call):
                return [*self._start(), *self._close(), *self._next_step(), *approval_parts(call)]
        return []

    def _finish(self, reason: FinishReason) -> list[Part]:
        parts = [*self._start(), *self._close(), *self._complete_all(force=True)]
        self.finished = True
        finish: Part = {"type": "finish"}
        if self._usage is not None:
            finish["messageMetadata"] = {"usage": usage_document(self._usage)}
        if self._version >= FINISH_REASON_SINCE:
            finish["finishReason"] = FINISH_REASONS[reason]
        return [*parts, {"type": "finish-step"}, finish]

    def fail(self, message: str) -> list[Part]:
        """Return the last parts of a response that failed."""
        if self.finished:
            return []
        parts = [*self._start(), *self._close()]
        self.finished = True
        return [*parts, {"type": "error", "errorText": message}]

    def _start(self) -> list[Part]:
        if self._started:
            return []
        self._started = True
        denied = [{"type": "tool-output-denied", "toolCallId": id} for id in self._denied]
        return [{"type": "start", "messageId": self._message_id}, {"type": "start-step"}, *denied]

    def _close(self) -> list[Part]:
        """End the part that the model writes."""
        if self._open is None:
            return []
        (kind, id), self._open = self._open, None
        return [{"type": f"{kind}-end", "id": id}]

    def _next_step(self) -> list[Part]:
        """Begin the next step if the tools of this one have their results."""
        if not self._has_results or self._unanswered:
            return []
        parts = [*self._close(), *self._complete_all(force=True)]
        self._calls.clear()
        self._has_results = False
        return [*parts, {"type": "finish-step"}, {"type": "start-step"}]

    def _write(self, kind: Literal["text", "reasoning"], text: str) -> list[Part]:
        parts = [*self._complete_all(force=False), *self._next_step()]
        if self._open is None or self._open[0] != kind:
            parts += self._close()
            self._texts += 1
            self._open = kind, f"{kind}-{self._texts}"
            parts.append({"type": f"{kind}-start", "id": self._open[1]})
        return [*parts, {"type": f"{kind}-delta", "id": self._open[1], "delta": text}]

    def _call(self, event: ToolCallEvent) -> list[Part]:
        parts: list[Part] = []
        if event.id:
            parts += [*self._close(), *self._next_step()]
            call = PartialCall(event.id, event.name, bool(event.executed))
            self._calls[event.index] = call
            self._unanswered.add(call.id)
            parts.append(call.part("tool-input-start", toolName=call.name))
        call = self._calls[event.index]
        if event.arguments:
            call.arguments.append(event.arguments)
            call.has_changed = True
            parts.append({"type": "tool-input-delta", "toolCallId": call.id, "inputTextDelta": event.arguments})
        return parts

    def _complete_all(self, *, force: bool) -> list[Part]:
        return [part for call in self._calls.values() for part in self._complete(call, force=force)]

    def _complete(self, call: PartialCall, *, force: bool) -> list[Part]:
        """Give the client the arguments of a call. `force`: even if they are not a JSON document."""
        if call.complete or not (call.has_changed or force):
            return []
        arguments, call.has_changed = "".join(call.arguments), False
        try:
            input = json.loads(arguments or "{}", parse_constant=_refuse)
        except ValueError:
            if not force:
                return []
            self._unanswered.discard(call.id)
            error = "the arguments of the tool call are not a JSON document"
            part = call.part("tool-input-error", toolName=call.name, input=arguments, errorText=error)
        else:
            part = call.part("tool-input-available", toolName=call.name, input=input)
        call.complete = True
        return [part]

    def _result(self, event: ToolResultEvent) -> list[Part]:
        parts = self._close()
        call = next((call for call in self._calls.values() if call.id == event.id), None)
        if call is None:  # of a message that is continued
            call = PartialCall(event.id, "", False)
        else:
            parts += self._complete(call, force=True)
            call.executed = True
        self._unanswered.discard(event.id)
        self._has_results = True
        if event.is_error:
            text = event.result if isinstance(event.result, str) else json.dumps(event.result, default=jsonable_encoder)
            return [*parts, call.part("tool-output-error", errorText=text)]
        return [*parts, call.part("tool-output-available", output=event.result)]


def expressed(version: int) -> frozenset[type[OptionalEvent]]:
    """Return the types of events that become parts for clients of this version of the AI SDK."""
    return EXPRESSED | {ApprovalRequest} if version >= APPROVALS_SINCE else EXPRESSED


def approval_parts(call: ToolCall) -> list[Part]:
    """Return the parts that ask the user for an approval. The id of the call is also the id of the approval."""
    partial_call = PartialCall(call.id, call.name, executed=True)
    return [
        partial_call.part("tool-input-start", toolName=call.name),
        partial_call.part("tool-input-available", toolName=call.name, input=json.loads(call.arguments)),
        {"type": "tool-approval-request", "approvalId": call.id, "toolCallId": call.id},
    ]


def optional_part(event: SourceEvent | DocumentEvent | FileEvent | DataEvent | StatusEvent) -> Part:
    """Return the part of an event that is a part by itself."""
    match event:
        case SourceEvent():
            return _without_empty({"type": "source-url", "sourceId": event.id, "url": event.url}, title=event.title)
        case DocumentEvent():
            document = {"type": "source-document", "sourceId": event.id, "mediaType": event.media_type}
            return _without_empty({**document, "title": event.title}, filename=event.name)
        case FileEvent():
            return {"type": "file", "url": event.url, "mediaType": event.media_type}
        case DataEvent():
            part = {"type": f"data-{event.name}", "data": event.data}
            return _without_empty(part, id=event.id, transient=event.transient)
        case StatusEvent(text):
            return {"type": "data-status", "data": {"text": text}, "transient": True}


def _without_empty(part: Part, **fields: str | bool) -> Part:
    return part | {name: value for name, value in fields.items() if value}


def usage_document(usage: UsageEvent) -> dict[str, int]:
    """Return the usage of a response, with the names of the AI SDK."""
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
        "reasoningTokens": usage.reasoning_tokens,
        "cachedInputTokens": usage.cached_tokens,
    }


def _refuse(constant: str) -> Never:
    raise ValueError(f"{constant} is not JSON")
