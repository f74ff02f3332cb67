"""The message that a client has after it has read the parts of a UI message stream."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Part = dict[str, Any]


def ends_of_texts(parts: Iterable[Mapping[str, Any]]) -> list[Part]:
    """Return the parts that end the texts and reasonings which these parts leave open."""
    left: dict[tuple[str, str], Part] = {}
    for part in parts:
        kind, _, step = part["type"].partition("-")
        if kind in ("text", "reasoning") and step == "start":
            left[kind, part["id"]] = {"type": f"{kind}-end", "id": part["id"]}
        elif kind in ("text", "reasoning") and step == "end":
            left.pop((kind, part["id"]), None)
    return list(left.values())


class MessageRecord:
    """Collects the parts of one response as the AI SDK does, so that the message can be stored."""

    def __init__(self, earlier: Sequence[Mapping[str, Any]] = ()) -> None:
        """Begin a message.

        Parameters:
            earlier: The parts that the message has already, if the response continues it. Default: none.
        """
        self._id = ""
        self._parts: list[Part] = [copy.deepcopy(dict(part)) for part in earlier]
        self._texts: dict[str, Part] = {}
        """The texts and reasonings that are being written, by their ids in the stream."""
        self._calls = {str(part["toolCallId"]): part for part in self._parts if "toolCallId" in part}
        self._error: str | None = None
        self._finished = False
        self._metadata: Mapping[str, Any] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no part has been added."""
        return not self._id

    @property
    def has_ended(self) -> bool:
        """Whether the last part has been added."""
        return self._finished or self._error is not None

    def add(self, part: Mapping[str, Any]) -> None:
        """Add the next part of the stream."""
        match part["type"]:
            case "start":
                self._id = part["messageId"]
            case "start-step":
                self._parts.append({"type": "step-start"})
            case "text-start" | "reasoning-start" as kind:
                self._texts[part["id"]] = self._new({"type": kind.removesuffix("-start"), "text": ""})
            case "text-delta" | "reasoning-delta":
                self._texts[part["id"]]["text"] += part["delta"]
            case "text-end" | "reasoning-end":
                self._texts.pop(part["id"])["state"] = "done"
            case "tool-input-start":
                call = {"type": f"tool-{part['toolName']}", "toolCallId": part["toolCallId"]}
                if part["toolCallId"] in self._calls:  # of the message that is continued
                    self._calls[part["toolCallId"]] |= call
                else:
                    self._calls[part["toolCallId"]] = self._new(call)
                self._change_call(part, state="input-streaming")
            case "tool-input-available":
                self._change_call(part, state="input-available", input=part["input"])
            case "tool-input-error":
                self._change_call(part, state="output-error", rawInput=part["input"], errorText=part["errorText"])
            case "tool-output-available":
                self._change_call(part, state="output-available", output=part["output"])
            case "tool-output-error":
                self._change_call(part, state="output-error", errorText=part["errorText"])
            case "tool-approval-request":
                self._change_call(part, state="approval-requested", approval={"id": part["approvalId"]})
            case "tool-output-denied":
                self._change_call(part, state="output-denied")
            case "source-url" | "source-document" | "file":
                self._new(dict(part))
            case kind if kind.startswith("data-") and not part.get("transient"):
                self._add_data(part)
            case "finish":
                self._finished = True
                self._metadata = part.get("messageMetadata")
            case "error":
                self._error = part["errorText"]

    def message(self) -> dict[str, Any]:
        """Return the message. Its metadata say whether it is incomplete, and the error that ended it.

        A tool call whose arguments are incomplete is left out.
        """
        parts = [copy.deepcopy(part) for part in self._parts if part.get("state") != "input-streaming"]
        for part in parts:
            if part["type"] in ("text", "reasoning"):
                part["state"] = "done"
        message: dict[str, Any] = {"id": self._id, "role": "assistant", "parts": parts}
        if self._error is not None:
            message["metadata"] = {"incomplete": True, "error": self._error}
        elif not self._finished:
            message["metadata"] = {"incomplete": True}
        elif self._metadata is not None:
            message["metadata"] = dict(self._metadata)
        return message

    def _add_data(self, part: Mapping[str, Any]) -> None:
        """Add data, or replace those of the same type and id."""
        for earlier in self._parts if "id" in part else ():
            if (earlier["type"], earlier.get("id")) == (part["type"], part["id"]):
                earlier["data"] = part["data"]
                return
        self._new(dict(part))

    def _change_call(self, part: Mapping[str, Any], **fields: Any) -> None:
        executed = {"providerExecuted": True} if part.get("providerExecuted") else {}
        self._calls[part["toolCallId"]] |= fields | executed

    def _new(self, part: Part) -> Part:
        self._parts.append(part)
        return part
