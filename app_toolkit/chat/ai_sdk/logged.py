"""What a stream log has of a response: enough to store or to continue it in another process."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from app_toolkit.chat.ai_sdk.messages import UIChat
from app_toolkit.chat.ai_sdk.stream import MessageParts, Part, encode
from app_toolkit.chat.protocol import (
    ChatEvent,
    DataEvent,
    DocumentEvent,
    FileEvent,
    ReasoningEvent,
    SourceEvent,
    StatusEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
)

REQUEST = "request"
"""The type of the first event of a response that is stored. Clients do not get this event."""


def request_event(model: str, question_id: str, continued: int = 0, chat: UIChat | None = None) -> bytes:
    """Return the event that has what a response needs besides the stored messages.

    Parameters:
        model: The name of the model.
        question_id: The stored message that the response answers, or continues.
        continued: How many parts the stored message has that the response continues. Default: 0, it is a new one.
        chat: What the client has sent, if another process can continue the response. Its messages are left out.
            Default: None, no process can.
    """
    event: dict[str, Any] = {"type": REQUEST, "model": model, "question": question_id, "continued": continued}
    if chat is not None:
        named = chat.model_copy(update={"model": model})
        document = named.model_dump(by_alias=True, exclude={"messages", "message"}, exclude_none=True)
        with suppress(ValueError):  # a number that JSON does not have, in a field of the client's own
            return REQUEST.encode() + encode({**event, "chat": document})
    return REQUEST.encode() + encode(event)


@dataclass(frozen=True, slots=True)
class LoggedResponse:
    """A response, as the log has it."""

    parts: Sequence[Part]
    chat: UIChat | None = None
    """The request without its messages; None: the response cannot be continued."""
    model: str | None = None
    """The name of the model; None: the log does not have what the response answers."""
    question_id: str = ""
    """The stored message that the response answers, or continues."""
    continued: int = 0
    """How many parts the stored message had that the response continues."""

    @classmethod
    def of(cls, events: Sequence[bytes]) -> "LoggedResponse":
        """Return the response whose events have these data."""
        first, *parts = [json.loads(event) for event in events] or [{"type": ""}]
        if first["type"] == REQUEST:
            chat = UIChat(**first["chat"]) if "chat" in first else None
            return cls(parts, chat, first["model"], first["question"], first["continued"])
        return cls([first, *parts] if events else [])

    def replayed(self, version: int) -> tuple[MessageParts, Sequence[ChatEvent]] | None:
        """Return the translator as it was after the last part, and the events that it had translated.

        None: they are not certain, because the log ends within the parts of one event, or the client must act: it has
        a call of its own, or a request for an approval.

        `version`: the version of the AI SDK of the client.
        """
        if not self.parts or self.parts[0]["type"] != "start":
            return None
        translator = MessageParts(self.parts[0]["messageId"], version=version)
        events = list(_events(self.parts))
        if [part for event in events for part in translator.translate(event)] != self.parts:
            return None
        calls = {event.id for event in events if isinstance(event, ToolCallEvent) and event.id and not event.executed}
        if calls - {event.id for event in events if isinstance(event, ToolResultEvent)}:
            return None
        return translator, events


def _events(parts: Sequence[Part]) -> Iterator[ChatEvent]:
    """Yield the events of a model that have become these parts. Parts of the end of a response are left out."""
    indexes: dict[str, int] = {}
    for part in parts:
        match part["type"]:
            case "text-delta":
                yield TextEvent(part["delta"])
            case "reasoning-delta":
                yield ReasoningEvent(part["delta"])
            case "tool-input-start":
                id = part["toolCallId"]
                indexes[id] = len(indexes)
                yield ToolCallEvent(indexes[id], id, part["toolName"], executed=part.get("providerExecuted", False))
            case "tool-input-delta":
                yield ToolCallEvent(indexes[part["toolCallId"]], arguments=part["inputTextDelta"])
            case "tool-output-available":
                yield ToolResultEvent(part["toolCallId"], part["output"])
            case "tool-output-error":
                yield ToolResultEvent(part["toolCallId"], part["errorText"], True)
            case "source-url":
                yield SourceEvent(part["url"], part.get("title", ""), part["sourceId"])
            case "source-document":
                yield DocumentEvent(part["title"], part["mediaType"], part.get("filename", ""), part["sourceId"])
            case "file":
                yield FileEvent(part["mediaType"], part["url"])
            case "data-status":
                yield StatusEvent(part["data"]["text"])
            case kind if kind.startswith("data-"):
                yield DataEvent(
                    kind.removeprefix("data-"), part["data"], part.get("id", ""), part.get("transient", False)
                )
