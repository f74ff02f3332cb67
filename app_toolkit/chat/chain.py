"""Models that are made of other models."""

import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import Any, cast

from app_toolkit import Bound, is_multiplexed, options
from app_toolkit.chat.protocol import (
    ChatEvent,
    ChatFunction,
    ChatMessage,
    ChatModel,
    ChatRequest,
    ToolResultEvent,
    UsageEvent,
)

Source = ChatModel | ChatFunction | Bound[Any]
"""A model: a bound deployment, an object with a method `chat`, or an async generator function."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A model that calls other models. Routers and other chains take it as any model."""

    models: tuple[Source, ...]
    """The models that it calls. A router makes their deployments a part of the application."""
    chat: Callable[[ChatRequest], AsyncGenerator[ChatEvent, None]]


def function_of(source: Any, affinity: str) -> ChatFunction:
    """Return the function of a model or of a handle.

    `affinity`: the name for which a multiplexed deployment has loaded a model, or loads one.
    """
    if isinstance(source, Bound):
        source = source.handle
    if is_multiplexed(source):
        source = options(source, affinity=affinity)
    # A handle has no attribute that its class does not have, so this works for handles, too.
    return cast(ChatFunction, source if inspect.isroutine(source) else source.chat)


def ask(model: Source, request: ChatRequest) -> AsyncIterator[ChatEvent]:
    """Call one of the models of a chain."""
    return function_of(model, request.model)(request)


def counter_of(source: Any) -> Callable[[ChatRequest], Awaitable[int]] | None:
    """Return the function that counts the tokens of a prompt: for a chain, that of its first model. None: none."""
    if isinstance(source, Chain):
        return counter_of(source.models[0])
    # A handle has no attribute that its class does not have.
    return getattr(source.handle if isinstance(source, Bound) else source, "count_tokens", None)


def deployments_in(sources: Iterable[Any]) -> Iterator[Bound[Any]]:
    """Yield the bound deployments among the sources, and those that chains among them call."""
    for source in sources:
        if isinstance(source, Bound):
            yield source
        elif isinstance(source, Chain):
            yield from deployments_in(source.models)


def usage_sum(earlier: UsageEvent | None, latest: UsageEvent) -> UsageEvent:
    """Return what a call and the earlier ones have cost together. None: the earlier ones have reported no usage."""
    if earlier is None:
        return latest
    return UsageEvent(*(first + second for first, second in zip(astuple(earlier), astuple(latest), strict=True)))


def result_message(event: ToolResultEvent) -> ChatMessage:
    """Return the result of a tool as a message."""
    result = event.result
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    return ChatMessage("tool", text, tool_call_id=event.id, is_error=event.is_error)
