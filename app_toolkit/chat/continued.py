"""A chain whose response goes on after the process of its model has died."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import get_args

from app_toolkit import ConfigError
from app_toolkit.chat.attempts import may_pass
from app_toolkit.chat.chain import Chain, Source, ask, result_message, usage_sum
from app_toolkit.chat.events import EventChecker, checked, with_known_runners
from app_toolkit.chat.protocol import (
    INTERRUPTED,
    ApprovalRequest,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    ErrorEvent,
    FinishEvent,
    OptionalEvent,
    ReasoningEvent,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
    closing,
)

logger = logging.getLogger("app_toolkit.chat")


class ContinuedChain(Chain):
    """What `continued` returns. Routers know by it that the model can continue a response."""


def continued(model: Source, *, attempts: int = 3, wait_s: float = 0.1) -> Chain:
    """Return a model that is called again where its response was interrupted, so that the client sees no gap.

    These are `ReplicaLost`, other errors of the toolkit and `ChatError` with the status 408, 409, 429, or 500 and
    above, and an `ErrorEvent`. The model gets the beginning of its response in `ChatRequest.continue_from` and must
    yield what follows it. Tools with a result are not run again: the model gets the results in `messages`. A call that
    the model runs itself and that has no result gets an error as its result. A call for the client is held back until
    the response ends, and begun anew.

    If no further attempt is left, or the model refuses to continue, the response ends with the error that has
    interrupted it.

    Parameters:
        model: The model. It must be able to continue a response.
        attempts: Maximum number of calls for one response. Default: 3.
        wait_s: Seconds before each further call, in which a handle learns that a replica has died. Default: 0.1.

    Raises:
        ConfigError: `attempts` is below 1, or `wait_s` is negative.
    """
    if attempts < 1 or not 0 <= wait_s < math.inf:
        raise ConfigError(f"continued: attempts = {attempts!r} must be 1 or above, wait_s = {wait_s!r} 0 or above")

    async def chat(request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        response = PartialResponse(request)
        failure: Exception | ErrorEvent | None = None
        for attempts_left in reversed(range(attempts)):
            has_begun = False
            interruption: Exception | ErrorEvent
            try:
                async with aclosing(response.events(model)) as events:
                    async for event in events:
                        if isinstance(event, ErrorEvent):
                            interruption = event
                            break
                        has_begun = True
                        yield event
                    else:
                        return
            except Exception as error:
                interruption = error
            # The error of a call that has added nothing is not the cause: perhaps the model cannot continue.
            failure = interruption if failure is None or has_begun else failure
            logger.warning("a response was interrupted, with %d attempts left: %r", attempts_left, interruption)
            if not attempts_left or not (isinstance(interruption, ErrorEvent) or may_pass(interruption)):
                break
            for event in response.interrupted():
                yield event
            if response.end is not None:
                yield response.end
                return
            await asyncio.sleep(wait_s)
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            yield failure

    return ContinuedChain((model,), chat)


@dataclass(slots=True)
class Step:
    """A message of the model, and the results of the tools that it has called in it."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[str, list[str]] = field(default_factory=dict)
    """The parts of the arguments of each call, by its id. Joining them for each part would take quadratic time."""
    names: dict[str, str] = field(default_factory=dict)
    results: dict[str, ToolResultEvent] = field(default_factory=dict)

    @property
    def message(self) -> ChatMessage:
        """The message, as it has arrived so far."""
        calls = tuple(ToolCall(id, self.names[id], "".join(parts)) for id, parts in self.calls.items())
        return ChatMessage("assistant", "".join(self.text), calls, reasoning="".join(self.reasoning))

    def messages(self) -> Iterator[ChatMessage]:
        """The message and the results. Each call has one."""
        yield self.message
        for id in self.calls:
            yield result_message(self.results[id])


class PartialResponse:
    """What one or more calls of a model have yielded of one response."""

    def __init__(self, request: ChatRequest) -> None:
        self.end: FinishEvent | None = None
        """The last event, if nothing else is missing after an interruption."""
        self._request = request
        begun = request.continue_from
        self._steps = [
            Step()
            if begun is None
            else Step([begun.text] if begun.text else [], [begun.reasoning] if begun.reasoning else [])
        ]
        self._ids: dict[int, str] = {}
        """The ids of the calls that the client has got, by the indexes that they have for it."""
        self._approved = {call.id: call for call in request.approved_calls}
        """The approved calls that have no result yet."""
        self._parts = 0
        """The number of parts of the text and the reasoning."""
        self._usage: UsageEvent | None = None

    async def events(self, model: Source) -> AsyncGenerator[ChatEvent, None]:
        """Call the model for the rest of the response, and yield its events."""
        request, earlier = self.request, self._usage
        first_index = max(self._ids, default=-1) + 1
        used = [call.id for message in request.messages for call in message.tool_calls]
        checker = EventChecker(request.model, used, self._approved, get_args(OptionalEvent))
        events = checked(_unmarked(ask(model, request)), checker, holds_usage=False)
        async with aclosing(with_known_runners(events)) as known_events:
            async for event in known_events:
                if isinstance(event, UsageEvent):
                    event = self._usage = usage_sum(earlier, event)
                elif isinstance(event, ToolCallEvent):
                    event = replace(event, index=first_index + event.index)
                self.add(event)
                yield event

    def add(self, event: ChatEvent) -> None:
        """Add an event that the client has."""
        match event:
            case TextEvent(text):
                self._add_text(self._open_step().text, text)
            case ReasoningEvent(text):
                self._add_text(self._open_step().reasoning, text)
            case ToolCallEvent():
                self._add_call(event)
            case ToolResultEvent():
                self._add_result(event)
            case ApprovalRequest():
                self.end = FinishEvent()

    @property
    def request(self) -> ChatRequest:
        """What the model gets: the request, with what has arrived of the response."""
        request = self._request
        *complete, last = [*self._steps, Step()] if self._steps[-1].calls else self._steps
        limit = request.max_tokens
        return replace(
            request,
            messages=(*request.messages, *(message for step in complete for message in step.messages())),
            continue_from=last.message if last.text or last.reasoning else None,
            approved_calls=tuple(self._approved.values()),
            # The model has called the tool that it had to call.
            tool_choice=None if complete and request.tool_choice != "none" else request.tool_choice,
            max_tokens=None if limit is None else limit - self._parts,
        )

    def interrupted(self) -> Iterator[ToolResultEvent]:
        """Yield an error as the result of each call that has none, because the process that has run it has died."""
        for step in self._steps:
            for id in step.calls:
                if id not in step.results:
                    step.results[id] = ToolResultEvent(id, INTERRUPTED, True)
                    yield step.results[id]

    def _open_step(self) -> Step:
        """Return the step that text and calls belong to. After the result of a tool, another one begins."""
        if self._steps[-1].results:
            self._steps.append(Step())
        return self._steps[-1]

    def _add_text(self, texts: list[str], text: str) -> None:
        texts.append(text)
        self._parts += 1
        if self._parts == self._request.max_tokens:
            self.end = FinishEvent("length")

    def _add_call(self, event: ToolCallEvent) -> None:
        if event.id:
            self._ids[event.index] = event.id
            step = self._open_step()
            step.calls[event.id], step.names[event.id] = [], event.name
            self._approved.pop(event.id, None)
        id = self._ids[event.index]
        next(step for step in self._steps if id in step.calls).calls[id].append(event.arguments)

    def _add_result(self, event: ToolResultEvent) -> None:
        step = next((step for step in self._steps if event.id in step.calls), None)
        if step is None:  # an approved call, which the model need not repeat
            call = self._approved.pop(event.id)
            step = self._open_step()
            step.calls[call.id], step.names[call.id] = [call.arguments], call.name
        step.results[event.id] = event


async def _unmarked(events: AsyncIterator[ChatEvent]) -> AsyncGenerator[ChatEvent, None]:
    """Yield the events of a model without `executed=False`, so that the calls of the client are held back."""
    async with closing(events):
        async for event in events:
            if isinstance(event, ToolCallEvent) and event.executed is False:
                event = replace(event, executed=None)
            yield event
