"""A strict checker of UI message streams: the frames, the keys of each part, and the order of the parts."""

import json
from typing import Any

KEYS: dict[str, tuple[str, str]] = {
    "start": ("messageId", ""),
    "start-step": ("", ""),
    "text-start": ("id", ""),
    "text-delta": ("id delta", ""),
    "text-end": ("id", ""),
    "reasoning-start": ("id", ""),
    "reasoning-delta": ("id delta", ""),
    "reasoning-end": ("id", ""),
    "tool-input-start": ("toolCallId toolName", "providerExecuted"),
    "tool-input-delta": ("toolCallId inputTextDelta", ""),
    "tool-input-available": ("toolCallId toolName input", "providerExecuted"),
    "tool-input-error": ("toolCallId toolName input errorText", "providerExecuted"),
    "tool-output-available": ("toolCallId output", "providerExecuted"),
    "tool-output-error": ("toolCallId errorText", "providerExecuted"),
    "tool-approval-request": ("approvalId toolCallId", ""),
    "tool-output-denied": ("toolCallId", ""),
    "source-url": ("sourceId url", "title"),
    "source-document": ("sourceId mediaType title", "filename"),
    "file": ("url mediaType", ""),
    "error": ("errorText", ""),
    "abort": ("", ""),
    "data-error": ("data transient", ""),
    "finish-step": ("", ""),
    "finish": ("", "finishReason messageMetadata"),
}
"""The keys that a part must have and may have, besides its type."""


def is_data(kind: str) -> bool:
    """Whether a part has data of the application."""
    return kind.startswith("data-") and kind not in KEYS


class Checker:
    """The state that a client keeps of one message. It refuses more than the clients do."""

    def __init__(self, known_calls: set[str]) -> None:
        self.calls = dict.fromkeys(known_calls, "available")
        self.repeatable = set(known_calls)
        self.open: set[str] = set()
        self.used: set[str] = set()
        self.place = "before"

    def take(self, part: dict[str, Any]) -> None:
        kind = part["type"]
        keys = ("data", "id transient") if is_data(kind) else KEYS[kind]
        required, optional = (set(names.split()) for names in keys)
        assert required <= part.keys() - {"type"} <= required | optional, part
        match kind:
            case "start":
                self.move("before", "between")
            case "start-step":
                self.move("between", "step")
            case "finish-step":
                assert not self.open
                assert "input" not in self.calls.values()
                self.move("step", "between")
            case "finish":
                self.move("between", "end")
            case "error" | "abort":
                assert not self.open
                self.move(self.place, "end")
            case "text-start" | "reasoning-start":
                assert part["id"] not in self.used
                self.used.add(part["id"])
                self.open.add(part["id"])
            case "text-delta" | "reasoning-delta":
                assert part["delta"]
                assert part["id"] in self.open
            case "text-end" | "reasoning-end":
                self.open.remove(part["id"])
            case "data-error":
                assert not self.open
            case "source-url" | "source-document" | "file":
                assert self.place == "step"
            case _ if is_data(kind):
                assert self.place == "step"
            case _:
                self.take_tool(kind, part["toolCallId"])
        if kind.partition("-")[0] in ("text", "reasoning", "tool"):
            assert self.place == "step"

    def take_tool(self, kind: str, id: str) -> None:
        before, after = {
            "tool-input-start": (None, "input"),
            "tool-input-delta": ("input", "input"),
            "tool-input-available": ("input", "available"),
            "tool-input-error": ("input", "failed"),
            "tool-output-available": ("available", "answered"),
            "tool-output-error": ("available", "answered"),
            "tool-output-denied": ("available", "answered"),
            "tool-approval-request": ("available", "asked"),
        }[kind]
        if kind == "tool-input-start" and id in self.repeatable:
            self.repeatable.remove(id)
            before = "available"  # clients change the call that they have
        assert self.calls.get(id) == before, (kind, id)
        self.calls[id] = after

    def move(self, before: str, after: str) -> None:
        assert self.place == before != "end", (self.place, after)
        self.place = after


def checked(body: str, *, known_calls: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """The parts of a whole stream. Raises `AssertionError` if it is not valid."""
    *frames, rest = body.split("\n\n")
    assert not rest
    assert frames.pop() == "data: [DONE]"
    checker, parts = Checker(set(known_calls)), []
    for frame in frames:
        if not frame.startswith(":"):
            assert frame.startswith("data: ")
            assert "\n" not in frame
            parts.append(json.loads(frame.removeprefix("data: ")))
            checker.take(parts[-1])
    assert checker.place == "end"
    return parts
