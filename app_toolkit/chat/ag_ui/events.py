"""The events of a model as those of a run of AG-UI, version 1."""

import json
import uuid
from collections.abc import Collection, Iterable
from typing import Any

from fastapi.encoders import jsonable_encoder

from app_toolkit.chat.failures import ModelFailed
from app_toolkit.chat.protocol import (
    ApprovalRequest,
    ChatEvent,
    ChatMessage,
    DataEvent,
    ErrorEvent,
    FinishEvent,
    OptionalEvent,
    ReasoningEvent,
    StatusEvent,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)

WireEvent = dict[str, Any]

EXPRESSED: frozenset[type[OptionalEvent]] = frozenset({DataEvent, StatusEvent, ApprovalRequest})
"""The types of events that the protocol expresses."""

STATE = "state"
"""The name of the `DataEvent` that replaces the state of the client."""

ANSWER = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
"""The JSON schema of the answer to an interrupt."""


class RunEvents:
    """Translates the events of one response. The events of all of them in this order are a valid run."""

    def __init__(
        self,
        started: WireEvent,
        model: str,
        *,
        repeated: Collection[str] = (),
        denied: Iterable[ChatMessage] = (),
    ) -> None:
        """Begin no run yet.

        Parameters:
            started: The event that begins the run.
            model: The name of the model.
            repeated: The ids of calls that the client has, and that the model may yield again.
            denied: Results of calls that the client does not have yet.
        """
        self._started = started
        self._ids = {name: started[name] for name in ("threadId", "runId")}
        self._model = model
        self._repeated = repeated
        self._denied = denied
        self._begun = False
        self._message: str | None = None
        """The id of the message to which the next call belongs."""
        self._open: tuple[str, str] | None = None
        """`text` or `reasoning`, and the id of the message that the model writes."""
        self._calls: dict[int, str] = {}
        """The ids of the calls whose arguments the model writes, by their index."""
        self._step: str | None = None
        self._interrupts: list[WireEvent] = []
        self._usage: UsageEvent | None = None

    def translate(self, event: ChatEvent) -> list[WireEvent]:
        """Return the events of the next event, which `EventChecker` has checked. Raises `ModelFailed`."""
        match event:
            case TextEvent(text):
                return [*self.begin(), *self._write("text", text)]
            case ReasoningEvent(text):
                return [*self.begin(), *self._write("reasoning", text)]
            case ToolCallEvent():
                return [*self.begin(), *self._call(event)]
            case ToolResultEvent():
                return [*self.begin(), *self._result(event)]
            case ApprovalRequest(call):
                return [*self.begin(), *self._ask(call)]
            case StatusEvent(text):
                return [*self.begin(), *self._begin_step(text)]
            case DataEvent():
                return [*self.begin(), _data_event(event)]
            case UsageEvent():
                self._usage = event
            case ErrorEvent(message, code):
                raise ModelFailed(message, code)
            case FinishEvent():
                return [*self.begin(), *self._finish(event)]
        return []

    def begin(self) -> list[WireEvent]:
        """Return the events that begin the run, unless it has begun."""
        if self._begun:
            return []
        self._begun = True
        return [self._started, *(_result_event(str(message.tool_call_id), message.text) for message in self._denied)]

    def fail(self, message: str, code: str | None) -> list[WireEvent]:
        """Return the last events of a run that has failed."""
        error = {"type": "RUN_ERROR", "message": message, "code": code, "usage": self._tokens()}
        return [*self.begin(), {name: value for name, value in error.items() if value}]

    def _finish(self, event: FinishEvent) -> list[WireEvent]:
        finish: WireEvent = {"type": "RUN_FINISHED", **self._ids}
        if self._interrupts:
            finish["outcome"] = {"type": "interrupt", "interrupts": self._interrupts}
        if usage := self._tokens():
            finish["usage"] = usage
        if event.reason in ("length", "content_filter"):
            finish["metadata"] = {"finishReason": event.reason}
        calls = [{"type": "TOOL_CALL_END", "toolCallId": id} for id in self._calls.values()]
        return [*self._close(), *calls, *self._end_step(), finish]

    def _write(self, kind: str, text: str) -> list[WireEvent]:
        events: list[WireEvent] = []
        if self._open is None or self._open[0] != kind:
            events = self._close()
            id = f"msg_{uuid.uuid4().hex}"
            self._open = kind, id
            if kind == "text":
                self._message = id
                events.append({"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"})
            else:
                events.append({"type": "REASONING_START", "messageId": id})
                events.append({"type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning"})
        content = "TEXT_MESSAGE_CONTENT" if kind == "text" else "REASONING_MESSAGE_CONTENT"
        return [*events, {"type": content, "messageId": self._open[1], "delta": text}]

    def _close(self) -> list[WireEvent]:
        """End the message that the model writes."""
        if self._open is None:
            return []
        (kind, id), self._open = self._open, None
        ends = ("TEXT_MESSAGE_END",) if kind == "text" else ("REASONING_MESSAGE_END", "REASONING_END")
        return [{"type": end, "messageId": id} for end in ends]

    def _call(self, event: ToolCallEvent) -> list[WireEvent]:
        events: list[WireEvent] = []
        if event.id:
            if event.id in self._repeated:
                return []
            events = [*self._close(), self._start(event.id, event.name)]
            self._calls[event.index] = event.id
        if event.arguments and event.index in self._calls:
            arguments = {"toolCallId": self._calls[event.index], "delta": event.arguments}
            events.append({"type": "TOOL_CALL_ARGS", **arguments})
        return events

    def _start(self, id: str, name: str) -> WireEvent:
        """Return the event that begins a call. Calls without a text between them belong to one message."""
        self._message = self._message or f"msg_{uuid.uuid4().hex}"
        return {"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": name, "parentMessageId": self._message}

    def _result(self, event: ToolResultEvent) -> list[WireEvent]:
        events = self._close()
        self._message = None
        index = next((index for index, id in self._calls.items() if id == event.id), None)
        if index is not None:
            events.append({"type": "TOOL_CALL_END", "toolCallId": self._calls.pop(index)})
        result = event.result
        text = result if isinstance(result, str) else json.dumps(jsonable_encoder(result), ensure_ascii=False)
        return [*events, _result_event(event.id, text, is_error=event.is_error)]

    def _ask(self, call: ToolCall) -> list[WireEvent]:
        message = f"The model wants to call {call.name}."
        interrupt = {"id": call.id, "reason": "tool_call", "message": message, "toolCallId": call.id}
        self._interrupts.append({**interrupt, "responseSchema": ANSWER})
        return [
            *self._close(),
            self._start(call.id, call.name),
            {"type": "TOOL_CALL_ARGS", "toolCallId": call.id, "delta": call.arguments},
            {"type": "TOOL_CALL_END", "toolCallId": call.id},
        ]

    def _begin_step(self, text: str) -> list[WireEvent]:
        if text == self._step:
            return []
        events = self._end_step()
        if text:
            self._step = text
            events.append({"type": "STEP_STARTED", "stepName": text})
        return events

    def _end_step(self) -> list[WireEvent]:
        name, self._step = self._step, None
        return [] if name is None else [{"type": "STEP_FINISHED", "stepName": name}]

    def _tokens(self) -> list[WireEvent]:
        if self._usage is None:
            return []
        usage = self._usage
        return [
            {
                "model": self._model,
                "inputTokens": usage.input_tokens,
                "outputTokens": usage.output_tokens,
                "totalTokens": usage.input_tokens + usage.output_tokens,
                "reasoningTokens": usage.reasoning_tokens,
                "cachedInputTokens": usage.cached_tokens,
            }
        ]


def _data_event(event: DataEvent) -> WireEvent:
    data = jsonable_encoder(event.data)
    if event.name == STATE:
        return {"type": "STATE_SNAPSHOT", "snapshot": data}
    custom = {"type": "CUSTOM", "name": event.name, "value": data}
    return {**custom, "metadata": {"id": event.id}} if event.id else custom


def _result_event(call: str, text: str, *, is_error: bool = False) -> WireEvent:
    result = {"type": "TOOL_CALL_RESULT", "messageId": f"msg_{uuid.uuid4().hex}", "toolCallId": call, "content": text}
    return {**result, "role": "tool", **({"metadata": {"isError": True}} if is_error else {})}
