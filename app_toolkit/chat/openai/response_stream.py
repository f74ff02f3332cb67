"""The events of OpenAI's Responses API: those that a model causes, and the response that they make up."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from app_toolkit.chat.protocol import (
    INTERRUPTED,
    ApprovalRequest,
    ChatEvent,
    DocumentEvent,
    FinishEvent,
    FinishReason,
    OptionalEvent,
    ReasoningEvent,
    SourceEvent,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from app_toolkit.streaming import Outcome

WireEvent = dict[str, Any]
"""An event as a client receives it, with its `type` and its `sequence_number`, from 0 on."""

Document = dict[str, Any]
"""A response, or an item of its output."""

EXPRESSED: frozenset[type[OptionalEvent]] = frozenset({SourceEvent, DocumentEvent, ApprovalRequest})
"""The types of optional events that are expressed: as annotations of a message, and as an item."""

FINAL = frozenset({"completed", "incomplete", "cancelled", "failed"})
"""The statuses of a response that has ended."""

INCOMPLETE: dict[FinishReason, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete."""

LOST = {"code": "server_error", "message": INTERRUPTED}
"""The error of a response whose stream has ended without its last event."""

DELTAS = {
    "message": "response.output_text.delta",
    "reasoning": "response.reasoning_summary_text.delta",
    "function_call": "response.function_call_arguments.delta",
    "mcp_call": "response.mcp_call_arguments.delta",
}
"""The events that add to an item, by the type of the item.

Reasoning is a summary, as OpenAI's models send it: most clients read no other reasoning.
"""

PARTS = {"message": ("content", "response.content_part"), "reasoning": ("summary", "response.reasoning_summary_part")}
"""The field of an item that has its text, and the beginning of the events about it, by the type of the item."""

ANNOTATION = "response.output_text.annotation.added"

CALLS = ("function_call", "mcp_call")
"""The types of the items that are calls of tools: those of the client, and those that the model runs itself."""

SERVER_LABEL = "app_toolkit"
"""The MCP server that clients see as the owner of the tools which the model runs itself."""

APPROVAL = "mcpr_"
"""The beginning of the id of a request for an approval. The id of the call follows."""


@dataclass(slots=True)
class OutputItem:
    """An item of the output, and what has been added to it."""

    index: int
    document: Document
    """The item as the last event about it has it. It is not changed, but replaced."""
    pieces: list[str] = field(default_factory=list)
    """The parts of its text, or of the arguments of a call."""
    annotations: list[Document] = field(default_factory=list)
    """Of a message: the citations in its text."""
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
        if self.done or self.type == "mcp_approval_request":  # An approval is whole when it is added.
            return self.document
        if self.type in CALLS:
            return {**self.document, "arguments": self.text, "status": status}
        name, _ = PARTS[self.type]
        return {**self.document, name: [text_part(self.type, self.text, self.annotations)], "status": status}


ITEM_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "mcp_call": "mcp"}
"""The beginning of the id of an item, by its type."""

ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_[0-9]+")
"""The id of an item of a response, which has that of the response."""


class ResponseEvents:
    """Translates the events of a chat model to those of one response.

    A call of a tool that the model runs itself is an `mcp_call` with its result, and one that needs an approval is an
    `mcp_approval_request` first. Clients run each `function_call`.
    """

    def __init__(self, head: Document, approved: Iterable[ToolCall] = ()) -> None:
        """Begin a response.

        Parameters:
            head: The response before anything is generated.
            approved: The calls that the user has approved. Default: none.
        """
        self._head = head
        self._approved = {call.id: call for call in approved}
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
            case SourceEvent() | DocumentEvent():
                return self._add_citation(event)
            case ApprovalRequest(call):
                return self._add_approval(call)
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
        """Begin an item. Its id names the response, so that a later request can refer to it, unless it has one."""
        index = len(self._items)
        prefix = ITEM_PREFIXES.get(document["type"], "item")
        document = {"id": f"{prefix}_{self._head['id'].removeprefix('resp_')}_{index}", **document}
        item = OutputItem(index, document)
        self._items.append(item)
        return item, self._event("response.output_item.added", output_index=item.index, item=document)

    def _add_text(self, kind: str, text: str) -> list[WireEvent]:
        item, events = self._open_text(kind)
        item.pieces.append(text)
        delta = self._event(DELTAS[kind], **_where_text(item), delta=text, **_logprobs(kind))
        return [*events, delta]

    def _add_citation(self, event: SourceEvent | DocumentEvent) -> list[WireEvent]:
        item, events = self._open_text("message")
        number, annotation = len(item.annotations), citation(event, sum(map(len, item.pieces)))
        item.annotations.append(annotation)
        added = {"annotation_index": number, "annotation": annotation}
        return [*events, self._event(ANNOTATION, **_where_text(item), **added)]

    def _open_text(self, kind: str) -> tuple[OutputItem, list[WireEvent]]:
        """Return the last item if it is open and of this type, or else a new one, with the events that begin it."""
        events: list[WireEvent] = []
        item = self._items[-1] if self._items else None
        if item is None or item.done or item.type != kind:
            events += self._close_text()
            item, added = self._open(new_message() if kind == "message" else new_reasoning())
            _, part = PARTS[kind]
            events += [added, self._event(f"{part}.added", **_where_text(item), part=text_part(kind, ""))]
        return item, events

    def _add_call(self, event: ToolCallEvent) -> list[WireEvent]:
        events: list[WireEvent] = []
        item = self._calls.get(event.index)
        if item is None:
            events += self._close_text()
            approval = f"{APPROVAL}{event.id}" if event.id in self._approved else None
            item, added = self._open(new_own_call(event, approval) if event.executed else new_call(event))
            self._calls[event.index] = item
            events.append(added)
            if event.executed:
                self._own_calls[event.id] = item
                events.append(self._event("response.mcp_call.in_progress", **_where(item)))
        return [*events, *self._add_arguments(item, event.arguments)]

    def _add_approval(self, call: ToolCall) -> list[WireEvent]:
        events = self._close_text()
        item, added = self._open(
            {
                "id": f"{APPROVAL}{call.id}",
                "type": "mcp_approval_request",
                "server_label": SERVER_LABEL,
                "name": call.name,
                "arguments": call.arguments,
            }
        )
        item.done = True
        done = self._event("response.output_item.done", output_index=item.index, item=item.document)
        return [*events, added, done]

    def _add_arguments(self, item: OutputItem, arguments: str) -> list[WireEvent]:
        if not arguments:
            return []
        item.pieces.append(arguments)
        return [self._event(DELTAS[item.type], **_where(item), delta=arguments)]

    def _add_result(self, event: ToolResultEvent) -> list[WireEvent]:
        events: list[WireEvent] = []
        if event.id not in self._own_calls:
            call = self._approved[event.id]
            index = -1 - len(self._items)  # no event of the model has it
            events += self._add_call(ToolCallEvent(index, call.id, call.name, call.arguments, executed=True))
        item = self._own_calls[event.id]
        result = event.result if isinstance(event.result, str) else json.dumps(event.result, default=str)
        # Clients read the arguments as JSON.
        events += [*self._close_text(), *([] if item.pieces else self._add_arguments(item, "{}"))]
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
            _, part = PARTS[kind]
            document = text_part(kind, text, item.annotations)
            events += [
                self._event(name, **_where_text(item), text=text, **_logprobs(kind)),
                self._event(f"{part}.done", **_where_text(item), part=document),
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
        elif kind == ANNOTATION and (item := self._items.get(event["output_index"])) is not None:
            item.annotations.append(event["annotation"])
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


def text_part(kind: str, text: str, annotations: Sequence[Document] = ()) -> Document:
    """Return the text of an item of this type."""
    if kind == "reasoning":
        return {"type": "summary_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def citation(event: SourceEvent | DocumentEvent, at: int) -> Document:
    """Return a source or a document as a citation in a text. `at`: the number of characters before it."""
    if isinstance(event, SourceEvent):
        place = {"start_index": at, "end_index": at}
        return {"type": "url_citation", **place, "url": event.url, "title": event.title or event.url}
    return {"type": "file_citation", "file_id": event.id, "filename": event.name or event.title, "index": at}


def new_message() -> Document:
    """Return an empty message."""
    return {"type": "message", "status": "in_progress", "role": "assistant", "content": []}


def new_reasoning() -> Document:
    """Return empty reasoning."""
    return {"type": "reasoning", "status": "in_progress", "summary": []}


def new_call(event: ToolCallEvent) -> Document:
    """Return a call of a tool of the client, without its arguments."""
    return {
        "type": "function_call",
        "status": "in_progress",
        "call_id": event.id,
        "name": event.name,
        "arguments": "",
    }


def new_own_call(event: ToolCallEvent, approval: str | None = None) -> Document:
    """Return a call of a tool that the model runs itself, without its arguments and its result.

    `approval`: the id of the item that has asked the user for an approval; None: none has.
    """
    return {
        "type": "mcp_call",
        "status": "in_progress",
        "server_label": SERVER_LABEL,
        "name": event.name,
        "arguments": "",
        "output": None,
        "error": None,
        "approval_request_id": approval,
    }


def _where(item: OutputItem) -> dict[str, Any]:
    """Return the fields that say which item an event is about."""
    return {"item_id": item.document["id"], "output_index": item.index}


def _where_text(item: OutputItem) -> dict[str, Any]:
    """Return the fields that say which text an event is about. An item has one."""
    name, _ = PARTS[item.type]
    return {**_where(item), f"{name}_index": 0}


def _logprobs(kind: str) -> dict[str, Any]:
    return {"logprobs": []} if kind == "message" else {}
