"""The events of a model as the lines of a stream of Ollama's API."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from app_toolkit.chat.failures import ModelFailed
from app_toolkit.chat.json_objects import json_object
from app_toolkit.chat.protocol import (
    ChatEvent,
    ErrorEvent,
    FinishEvent,
    FinishReason,
    ReasoningEvent,
    TextEvent,
    ToolCallEvent,
    UsageEvent,
)

DONE_REASONS: Mapping[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "content_filter": "stop",
}


def chat_delta(field: str, value: Any) -> dict[str, Any]:
    """Return what a chat has of one event. `field`: `content`, `thinking` or `tool_calls`."""
    return {"message": {"role": "assistant", "content": "", field: value}}


def text_delta(field: str, value: Any) -> dict[str, Any]:
    """Return what a text has of one event."""
    return {"response": "", "response" if field == "content" else field: value}


Delta = Callable[[str, Any], dict[str, Any]]


@dataclass(slots=True)
class Call:
    """A call of a tool that the client runs."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def document(self, place: int, *, is_cut: bool) -> dict[str, Any]:
        """Return the call as clients get it. Raises `ModelFailed` if its arguments are no JSON object.

        `is_cut`: whether they may be incomplete; the call has none then.
        """
        text = "".join(self.arguments)
        arguments = json_object(text or "{}")
        if arguments is None and not is_cut:
            raise ModelFailed(
                f"the model called a tool with arguments that are no JSON object: {text[:100]!r}", "invalid_call"
            )
        return {"id": self.id, "function": {"index": place, "name": self.name, "arguments": arguments or {}}}


class Chunks:
    """Translates the events of a response, of which `executed` is known for each call.

    Calls that the client runs are whole in Ollama's API: their arguments are collected until the end. Those that the
    model runs itself are left out, with their results.
    """

    def __init__(self, model: str, delta: Delta, now_ns: Callable[[], int], *, thinks: bool) -> None:
        """Begin a response.

        Parameters:
            model: The name of the model, as the client wrote it.
            delta: `chat_delta` or `text_delta`.
            now_ns: The clock, in nanoseconds.
            thinks: Whether the client gets the reasoning.
        """
        self._model = model
        self._delta = delta
        self._now_ns = now_ns
        self._thinks = thinks
        self._began = now_ns()
        self._first: int | None = None
        """When the first event came."""
        self._calls: dict[int, Call] = {}
        """The last call with each index."""
        self._order: list[Call] = []
        self._usage: UsageEvent | None = None

    def head(self) -> dict[str, Any]:
        """Return a line without a part of the response, which keeps the connection open."""
        return self._chunk(self._delta("content", ""))

    def translate(self, event: ChatEvent) -> Iterator[dict[str, Any]]:
        """Yield what an event becomes.

        Raises:
            ModelFailed: It is an `ErrorEvent`, or the arguments of a call are no JSON object.
        """
        if self._first is None:
            self._first = self._now_ns()
        match event:
            case TextEvent():
                yield self._chunk(self._delta("content", event.text))
            case ReasoningEvent() if self._thinks:
                yield self._chunk(self._delta("thinking", event.text))
            case ToolCallEvent(executed=False):
                if event.id:
                    self._calls[event.index] = Call(event.id, event.name)
                    self._order.append(self._calls[event.index])
                self._calls[event.index].arguments.append(event.arguments)
            case UsageEvent():
                self._usage = event
            case ErrorEvent():
                raise ModelFailed(event.message, event.code)
            case FinishEvent():
                yield from self._end(event)

    def _end(self, event: FinishEvent) -> Iterator[dict[str, Any]]:
        is_cut = event.reason in ("length", "content_filter")
        calls = [call.document(place, is_cut=is_cut) for place, call in enumerate(self._order)]
        if calls:
            yield self._chunk(self._delta("tool_calls", calls))
        ended = self._now_ns()
        first = ended if self._first is None else self._first
        last = {
            **self._chunk(self._delta("content", "")),
            "done": True,
            "done_reason": DONE_REASONS[event.reason],
            "total_duration": ended - self._began,
            "load_duration": 0,
            "prompt_eval_duration": first - self._began,
            "eval_duration": ended - first,
        }
        if self._usage is not None:
            last |= {"prompt_eval_count": self._usage.input_tokens, "eval_count": self._usage.output_tokens}
        yield last

    def _chunk(self, part: Mapping[str, Any]) -> dict[str, Any]:
        created = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return {"model": self._model, "created_at": created, **part, "done": False}


def whole(chunks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the lines of a stream as one document."""
    texts: dict[str, list[str]] = {}
    calls: list[Any] = []
    for chunk in chunks:
        last = chunk
        for name, value in (chunk.get("message") or {"content": chunk.get("response"), **chunk}).items():
            if name in ("content", "thinking") and value:
                texts.setdefault(name, []).append(value)
            elif name == "tool_calls":
                calls += value
    joined = {name: "".join(parts) for name, parts in texts.items()}
    if "message" not in last:
        return {**last, "response": joined.pop("content", ""), **joined}
    message = {"role": "assistant", "content": "", **joined} | ({"tool_calls": calls} if calls else {})
    return {**last, "message": message}
