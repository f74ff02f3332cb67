"""The events of OpenAI's Responses API: those that a model causes, and the response that they make up."""

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from app_toolkit.chat.protocol import (
    INTERRUPTED,
    ChatEvent,
    FinishEvent,
    FinishReason,
    ReasoningEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from app_toolkit.core.stream_log import Outcome

WireEvent = dict[str, Any]
"""An event as a client receives it, with its `type` and its `sequence_number`, from 0 on."""

Document = dict[str, Any]
"""A response, or an item of its output."""

FINAL = frozenset({"completed", "incomplete", "cancelled", "failed"})
"""The statuses of a response that has ended."""

INCOMPLETE: dict[FinishReason, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete."""

LOST = {"code": "server_error", "message": INTERRUPTED}
"""The error of a response whose stream has ended without its last event."""

DELTAS = {
    "message": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "function_call": "response.function_call_arguments.delta",
    "mcp_call": "response.mcp_call_arguments.delta",
}
"""The events that add to an item, by the type of the item."""

CALLS = ("function_call", "mcp_call")
"""The types of the items that are calls of tools: those of the client, and those that the model runs itself."""

SERVER_LABEL = "app_toolkit"
"""The MCP server that clients see as the owner of the tools which the model runs itself."""


@dataclass(slots=True)
class OutputItem:
    """An item of the output, and what has been added to it."""

    index: int
    document: Document
    """The item as the last event about it has it. It is not changed, but replaced."""
    pieces: list[str] = field(default_factory=list)
    """The parts of its text, or of the arguments of a call."""
    done: bool = False

    @property
    def type(self) -> str:
        """The type of the item, for example `message`."""
        return str(self.document["type"])

    @property
    def text(self) -> str:
        """The text, or the arguments of a call."""
        return "".join(self.pieces)

    def finished(self, status: str) -> Document:
        """Return the item with everything that was added to it."""
        if self.done:
            return self.document
        if self.type in CALLS:
            return {**self.document, "arguments": self.text, "status": status}
        return {**self.document, "content": [content_part(self.type, self.text)], "status": status}


class ResponseEvents:
    """Translates the events of a chat model to those of one response.

    A call of a tool that the model runs itself is an `mcp_call` with its result. Clients run each `function_call`.
    """

    def __init__(self, head: Document) -> None:
        """`head`: the response before anything is generated."""
        self._head = head
        self._items: list[OutputItem] = []
        self._calls: dict[int, OutputItem] = {}
        """The calls of tools, by the `index` of their events."""
        self._own_calls: dict[str, OutputItem] = {}
        """The calls that the model runs itself, by their ids in the events."""
        self._usage = UsageEvent(0, 0)
        self._reason: FinishReason = "stop"
        self._number = 0

    def created(self) -> list[WireEvent]:
        """Return the first events of a response."""
        events = [self._event("response.created", response=self._head)]
        if self._head["status"] == "queued":
            events.append(self._event("response.queued", response=self._head))
        return events

    def started(self) -> list[WireEvent]:
        """Return the event that says that the model works."""
        self._head = {**self._head, "status": "in_progress"}
        return [self._event("response.in_progress", response=self._head)]

    def translate(self, event: ChatEvent) -> list[WireEvent]:
        """Return the events that an event of the model causes. It is from `with_known_runners`."""
        match event:
            case UsageEvent():
                self._usage = event
            case TextEvent():
                return self._add_text("message", event.text)
            case ReasoningEvent():
                return self._add_text("reasoning", event.text)
            case ToolCallEvent():
                return self._add_call(event)
            case ToolResultEvent():
                return self._add_result(event)
            case FinishEvent():
                return self._finish(event.reason)
        return []

    def completed(self, now: int) -> list[WireEvent]:
        """Return the last events of a response whose model has ended.

        Parameters:
            now: Seconds since 1970.
        """
        usage, why = self._usage, INCOMPLETE.get(self._reason)
        response = {
            **self._head,
            "status": "incomplete" if why else "completed",
            "completed_at": None if why else now,
            "incomplete_details": {"reason": why} if why else None,
            "output": [item.document for item in self._items],
            "usage": {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
                "total_tokens": usage.input_tokens + usage.output_tokens,
            },
        }
        return [self._event(f"response.{response['status']}", response=response)]

    def failed(self, code: str, message: str) -> list[WireEvent]:
        """Return the last event of a response whose model has failed."""
        output = [item.finished("incomplete") for item in self._items]
        error = {"code": code, "message": message}
        response = {**self._head, "status": "failed", "error": error, "output": output}
        return [self._event("response.failed", response=response)]

    def _event(self, kind: str, **fields: Any) -> WireEvent:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _open(self, document: Document) -> tuple[OutputItem, WireEvent]:
        item = OutputItem(len(self._items), document)
        self._items.append(item)
        return item, self._event("response.output_item.added", output_index=item.index, item=document)

    def _add_text(self, kind: str, text: str) -> list[WireEvent]:
        events: list[WireEvent] = []
        item = self._items[-1] if self._items else None
        if item is None or item.done or item.type != kind:
            events += self._close_text()
            item, added = self._open(new_message() if kind == "message" else new_reasoning())
            part = self._event(
                "response.content_part.added", **_where(item), content_index=0, part=content_part(kind, "")
            )
            events += [added, part]
        item.pieces.append(text)
        delta = self._event(DELTAS[kind], **_where(item), content_index=0, delta=text, **_logprobs(kind))
        return [*events, delta]

    def _add_call(self, event: ToolCallEvent) -> list[WireEvent]:
        events: list[WireEvent] = []
        item = self._calls.get(event.index)
        if item is None:
            events += self._close_text()
            item, added = self._open(new_own_call(event) if event.executed else new_call(event))
            self._calls[event.index] = item
            events.append(added)
            if event.executed:
                self._own_calls[event.id] = item
                events.append(self._event("response.mcp_call.in_progress", **_where(item)))
        return [*events, *self._add_arguments(item, event.arguments)]

    def _add_arguments(self, item: OutputItem, arguments: str) -> list[WireEvent]:
        if not arguments:
            return []
        item.pieces.append(arguments)
        return [self._event(DELTAS[item.type], **_where(item), delta=arguments)]

    def _add_result(self, event: ToolResultEvent) -> list[WireEvent]:
        item = self._own_calls[event.id]
        result = event.result if isinstance(event.result, str) else json.dumps(event.result, default=str)
        # Clients read the arguments as JSON.
        events = [*self._close_text(), *([] if item.pieces else self._add_arguments(item, "{}"))]
        if event.is_error:
            content = [{"type": "text", "text": result}]
            item.document = {**item.document, "error": {"type": "mcp_tool_execution_error", "content": content}}
        else:
            item.document = {**item.document, "output": result}
        return [*events, *self._close(item, "failed" if event.is_error else "completed")]

    def _finish(self, reason: FinishReason) -> list[WireEvent]:
        """Close all items. If the response is incomplete, so is its last item."""
        self._reason = reason
        events: list[WireEvent] = []
        for item in self._items:
            is_cut = reason in INCOMPLETE and item is self._items[-1]
            has_no_result = item.type == "mcp_call"
            events += self._close(item, "incomplete" if is_cut or has_no_result else "completed")
        return events

    def _close_text(self) -> list[WireEvent]:
        """Close the last item if it has text. Calls stay open, because models write several at a time."""
        last = self._items[-1] if self._items else None
        return [] if last is None or last.type in CALLS else self._close(last, "completed")

    def _close(self, item: OutputItem, status: str) -> list[WireEvent]:
        if item.done:
            return []
        events: list[WireEvent] = []
        kind, text, where = item.type, item.text, _where(item)
        item.document, item.done = item.finished(status), True
        name = DELTAS[kind].replace(".delta", ".done")
        if kind == "function_call":
            events.append(self._event(name, **where, name=item.document["name"], arguments=text))
        elif kind == "mcp_call":
            events.append(self._event(name, **where, arguments=text))
            if status in ("completed", "failed"):
                events.append(self._event(f"response.mcp_call.{status}", **where))
        else:
            part = content_part(kind, text)
            events += [
                self._event(name, **where, content_index=0, text=text, **_logprobs(kind)),
                self._event("response.content_part.done", **where, content_index=0, part=part),
            ]
        return [*events, self._event("response.output_item.done", output_index=item.index, item=item.document)]


class ResponseReader:
    """Puts the events of a response together, also if the last ones are missing."""

    def __init__(self) -> None:
        self.last = -1
        """The number of the last event; -1: there was none."""
        self._document: Document | None = None
        self._items: dict[int, OutputItem] = {}

    @property
    def status(self) -> str | None:
        """The status of the response; None: there was no event."""
        return None if self._document is None else str(self._document["status"])

    def add(self, event: WireEvent) -> None:
        """Add the next event."""
        self.last = event["sequence_number"]
        kind = event["type"]
        if "response" in event:
            self._document = event["response"]
        elif kind == "response.output_item.added":
            self._items[event["output_index"]] = OutputItem(event["output_index"], event["item"])
        elif kind == "response.output_item.done":
            self._items[event["output_index"]] = OutputItem(event["output_index"], event["item"], done=True)
        elif kind in DELTAS.values() and (item := self._items.get(event["output_index"])) is not None:
            item.pieces.append(event["delta"])

    def document(self, outcome: Outcome | None) -> Document | None:
        """Return the response. None: there was no event.

        Parameters:
            outcome: How the stream of the response ended; None: it has not ended.
        """
        document = self._document
        if document is None or outcome is None or document["status"] in FINAL:
            return document
        output = [item.finished("incomplete") for _, item in sorted(self._items.items())]
        if outcome == "stopped":
            return {**document, "status": "cancelled", "output": output}
        return {**document, "status": "failed", "error": LOST, "output": output}

    def missing(self, outcome: Outcome) -> WireEvent | None:
        """Return the last event of a response whose stream has ended without one. None: it has one.

        The API has no event for a cancelled response: it is `response.incomplete`, and its status is `cancelled`.
        """
        document = self.document(outcome)
        if document is None or self.status in FINAL:
            return None
        kind = "response.failed" if document["status"] == "failed" else "response.incomplete"
        return {"type": kind, "sequence_number": self.last + 1, "response": document}


def content_part(kind: str, text: str) -> Document:
    """Return the content of an item of this type."""
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def new_message() -> Document:
    """Return an empty message."""
    return {"id": _id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}


def new_reasoning() -> Document:
    """Return empty reasoning."""
    return {"id": _id("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": []}


def new_call(event: ToolCallEvent) -> Document:
    """Return a call of a tool of the client, without its arguments."""
    return {
        "id": _id("fc"),
        "type": "function_call",
        "status": "in_progress",
        "call_id": event.id,
        "name": event.name,
        "arguments": "",
    }


def new_own_call(event: ToolCallEvent) -> Document:
    """Return a call of a tool that the model runs itself, without its arguments and its result."""
    return {
        "id": _id("mcp"),
        "type": "mcp_call",
        "status": "in_progress",
        "server_label": SERVER_LABEL,
        "name": event.name,
        "arguments": "",
        "output": None,
        "error": None,
        "approval_request_id": None,
    }


def _where(item: OutputItem) -> dict[str, Any]:
    """Return the fields that say which item an event is about."""
    return {"item_id": item.document["id"], "output_index": item.index}


def _logprobs(kind: str) -> dict[str, Any]:
    return {"logprobs": []} if kind == "message" else {}


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
