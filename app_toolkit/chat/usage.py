"""Counts what responses, titles and embeddings cost, as metrics and for the budget of the API key."""

import functools
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from app_toolkit.chat.budgets import counted
from app_toolkit.chat.protocol import (
    ChatEvent,
    ReasoningEvent,
    TextEvent,
    ToolCallEvent,
    UsageEvent,
)

logger = logging.getLogger("app_toolkit.chat")

NO_KEY = "-"
"""The value of the label `key` if no `api_keys` has checked the request."""

OTHER = "OTHER"
"""The value of the label `key` for further pairs of a model and a key."""

MAX_PAIRS = 500
"""Pairs of a model and a key that a process names in metrics. A replica sends a limited number of series."""

Spend = Callable[[str, UsageEvent], Awaitable[None]]
"""Takes what a response of a model costs from the budget of a key."""

PARTS = (TextEvent, ReasoningEvent, ToolCallEvent)

_PAIRS: set[tuple[str, str]] = set()

SPENDER: ContextVar[tuple[str, Spend] | None] = ContextVar("app_toolkit_api_key", default=None)
"""The name of the API key of the current request, and its budget. Tasks that the request starts inherit it."""


class Meter:
    """What one response of a model costs, by its events.

    It is what the model has reported last. Of a response that was stopped, or has failed, each part after the last
    report counts as one more token, and so does each part of a response without a report.
    """

    def __init__(self, model: str) -> None:
        """`model`: the name of the model."""
        self._model = model
        self._reported: UsageEvent | None = None
        self._parts = 0
        self._is_complete = False
        self._is_counted = False

    @property
    def usage(self) -> UsageEvent | None:
        """What the response costs so far. None: nothing."""
        if self._reported is None:
            return UsageEvent(0, self._parts) if self._parts else None
        if self._is_complete or not self._parts:
            return self._reported
        return replace(self._reported, output_tokens=self._reported.output_tokens + self._parts)

    def take(self, event: ChatEvent) -> None:
        """Note an event of the model."""
        if isinstance(event, PARTS):
            self._parts += 1
        elif isinstance(event, UsageEvent):
            self._reported, self._parts = event, 0

    async def end(self, *, is_complete: bool = False) -> None:
        """Count the response. A failure is logged. A second call changes nothing.

        `is_complete`: whether the model has ended by itself. Default: False.
        """
        if self._is_counted:
            return
        self._is_counted, self._is_complete = True, is_complete
        if self.usage is not None:
            await count_usage(self._model, self.usage)


async def count_usage(model: str, usage: UsageEvent) -> None:
    """Count what a response of a model costs. A failure is logged."""
    name, spend = SPENDER.get() or (NO_KEY, None)
    label = key_label(model, name)
    for kind, tokens in (
        ("input", usage.input_tokens),
        ("output", usage.output_tokens),
        ("cached", usage.cached_tokens),
        ("reasoning", usage.reasoning_tokens),
    ):
        if tokens > 0:
            _tokens().labels(model, label, kind).inc(counted(tokens))
    if spend is not None:
        try:
            await spend(model, usage)
        except Exception as error:  # of the storage
            logger.warning("a response of the model %r is missing in the budget of the key %r: %r", model, name, error)


def key_label(model: str, name: str) -> str:
    """Return the value of the label `key`: the name of the key, or `OTHER` if there are too many pairs."""
    if (model, name) not in _PAIRS:
        if len(_PAIRS) >= MAX_PAIRS:
            return OTHER
        _PAIRS.add((model, name))
    return name


@functools.cache
def _tokens() -> Any:
    """Return the metric. Programs that serve no chat do not import the package."""
    from prometheus_client import Counter

    return Counter(
        "chat_tokens",
        "Tokens of responses: input, output, and the parts of them that were cached and reasoning.",
        ["model", "key", "kind"],
    )


@functools.cache
def cost_counter() -> Any:
    """Return the metric of the money that keys have spent."""
    from prometheus_client import Counter

    return Counter("chat_cost", "What responses cost, in the unit of the costs.", ["model", "key"])
