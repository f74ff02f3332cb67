"""What every router can rely on in the events of a model: their types, ids and order, and one end."""

import asyncio
import inspect
import json
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, get_args

from app_toolkit.chat.protocol import (
    ChatEvent,
    ErrorEvent,
    FinishEvent,
    FinishReason,
    ReasoningEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
    closing,
)
from app_toolkit.core.stop_strings import StopStrings

logger = logging.getLogger("app_toolkit.chat")

FIELDS: Mapping[type[Any], Mapping[str, tuple[type, ...]]] = {
    TextEvent: {"text": (str,)},
    ReasoningEvent: {"text": (str,)},
    ToolCallEvent: {
        "index": (int,),
        **dict.fromkeys(("id", "name", "arguments"), (str,)),
        "executed": (bool, NoneType),
    },
    ToolResultEvent: {"id": (str,), "is_error": (bool,)},
    UsageEvent: dict.fromkeys(("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens"), (int,)),
    ErrorEvent: {"message": (str,), "code": (str,)},
    FinishEvent: {"reason": (str,)},
}
"""The types of the fields of each event, except those of any type."""

USAGE_S = 0.1
USAGE_EVENTS = 3
"""Seconds and events for which a model whose text has ended at a stop string may go on, to report its usage."""


class Characters:
    """Joins the halves of surrogate pairs over the parts of a text. Half of a pair that is alone becomes U+FFFD.

    Tokenizers split characters such as emoji, and models that decode JSON yield the halves.
    """

    def __init__(self) -> None:
        self._held = ""

    def add(self, part: str) -> str:
        """Return what is final of the text now."""
        text, self._held = self._held + part, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        return whole_characters(text)

    def end(self) -> str:
        """Return what was held back, because no further part follows."""
        held, self._held = self._held, ""
        return whole_characters(held)


def whole_characters(text: str) -> str:
    """Return a text whose surrogate pairs are characters. Half of a pair becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


@dataclass(slots=True)
class CheckedCall:
    """A call of a tool that a model has begun."""

    index: int
    """Its index for clients: no other call of the response has it."""
    id: str
    """Its id for clients: no other call of the response has it."""
    own_id: str
    """The id that the model has given it; empty: none."""
    executed: bool | None
    arguments: list[str] = field(default_factory=list)
    """In the parts of the model: joining them for each part would take quadratic time."""
    characters: Characters = field(default_factory=Characters)
    is_complete: bool = False
    """Whether no arguments may follow."""
    is_answered: bool = False


class EventChecker:
    """Checks the events of one response, and changes them to the form that the routers translate.

    - Each event is one of `ChatEvent`, with fields of the right types. Texts are not empty. Texts and arguments have no
      half of a surrogate pair.
    - The first event of a call has its id, its name, and an index, from 0 on. The others have the index and more
      arguments. No other call of the response has the id or the index. All events of a call have the same `executed`.
    - A result has the id of a call. No arguments of this call follow, and no other result.
    - The last event is the only `FinishEvent`, or an `ErrorEvent`. The reason `tool_calls` says that there are calls
      which the client has to run.
    """

    def __init__(self, model: str, used_ids: Iterable[str] = (), known_calls: Iterable[str] = ()) -> None:
        """Begin a response.

        Parameters:
            model: The name of the model, for errors.
            used_ids: The ids of earlier calls in the conversation.
            known_calls: The ids of earlier calls without a result. The model may yield it, also after the same call.
        """
        self.model = model
        self._known = set(known_calls)
        self._used = {*used_ids, *self._known}
        self._calls: list[CheckedCall] = []
        self._current: dict[int, CheckedCall] = {}
        """The last call of each index of the model."""
        self._text: tuple[type[TextEvent | ReasoningEvent], Characters] | None = None
        """The kind of text that the model writes."""
        self._reason: FinishReason | None = None
        self.has_failed = False
        """Whether the last event was an `ErrorEvent`. Nothing follows."""

    def take(self, event: ChatEvent) -> Iterator[ChatEvent]:
        """Yield what an event of the model becomes.

        Raises:
            TypeError: It is no event, or a field has another type.
            ValueError: It cannot come here.
        """
        if isinstance(event, ToolCallEvent):
            event = _without_none(event)
        self._check(event)
        match event:
            case UsageEvent():
                yield event
            case ErrorEvent():
                yield from self._end_parts()
                self.has_failed = True
                yield replace(event, message=whole_characters(event.message))
            case _ if self._reason is not None:
                return
            case TextEvent() | ReasoningEvent():
                yield from self._add_text(event)
            case ToolCallEvent():
                yield from self._end_text()
                yield from self._add_call(event)
            case ToolResultEvent():
                yield from self._end_text()
                yield from self._add_result(event)
            case FinishEvent(reason):
                self._reason = reason

    def end(self) -> Iterator[ChatEvent]:
        """Yield the last events, because the model has ended."""
        if self.has_failed:
            return
        yield from self._end_parts()
        reason = self._reason or "stop"
        if reason in ("stop", "tool_calls"):
            is_asked = any(not call.executed and not call.is_answered for call in self._calls)
            reason = "tool_calls" if is_asked else "stop"
        yield FinishEvent(reason)

    def _check(self, event: Any) -> None:
        fields = FIELDS.get(type(event)) or next(
            (fields for kind, fields in FIELDS.items() if isinstance(event, kind)), None
        )
        if fields is None:
            raise TypeError(
                f"the model {self.model!r} yielded {_shown(event)} of the type {type(event).__name__}, which is no "
                "event of app_toolkit.chat: yield for example TextEvent"
            )
        for name, kinds in fields.items():
            value = getattr(event, name)
            if not isinstance(value, kinds):
                raise TypeError(
                    f"the model {self.model!r} yielded a {type(event).__name__} whose {name} is {_shown(value)}: it "
                    f"must be {' or '.join('None' if kind is NoneType else kind.__name__ for kind in kinds)}"
                )
        if isinstance(event, FinishEvent) and event.reason not in get_args(FinishReason):
            raise ValueError(
                f"the model {self.model!r} yielded a FinishEvent whose reason is {_shown(event.reason)}: it must be "
                f"one of {', '.join(get_args(FinishReason))}"
            )

    def _add_text(self, event: TextEvent | ReasoningEvent) -> Iterator[ChatEvent]:
        if not event.text:
            return
        kind = TextEvent if isinstance(event, TextEvent) else ReasoningEvent
        if self._text is None or self._text[0] is not kind:
            yield from self._end_text()
            self._text = kind, Characters()
            self._complete_calls()
        if text := self._text[1].add(event.text):
            yield kind(text)

    def _end_text(self) -> Iterator[ChatEvent]:
        if self._text is None:
            return
        (kind, characters), self._text = self._text, None
        if text := characters.end():
            yield kind(text)

    def _complete_calls(self) -> None:
        """A call whose arguments are a JSON document is complete when text follows: the client may run it now."""
        for call in self._calls:
            call.is_complete = call.is_complete or _is_json("".join(call.arguments))

    def _add_call(self, event: ToolCallEvent) -> Iterator[ChatEvent]:
        call = self._continued_call(event)
        if call is None:
            call = self._begin_call(event)
            arguments = call.characters.add(event.arguments)
            call.arguments.append(arguments)
            yield ToolCallEvent(call.index, call.id, whole_characters(event.name), arguments, call.executed)
            return
        self._current[event.index] = call
        call.own_id = call.own_id or event.id
        if event.arguments and not (call.is_complete and event.arguments.isspace()):
            if call.is_complete:
                raise ValueError(
                    f"the model {self.model!r} yielded more arguments of the tool call {call.id!r}, which was "
                    "complete: yield all arguments before the result, and before text that follows the call"
                )
            yield from self._add_arguments(call, call.characters.add(event.arguments))

    def _continued_call(self, event: ToolCallEvent) -> CheckedCall | None:
        """Return the call that an event continues. None: it has to begin one.

        Some servers give several calls one index and mix their parts, or send the id of a call after its name.
        """
        current = self._current.get(event.index)
        if current is not None and event.id in ("", current.own_id):
            return None if current.is_answered and event.name else current
        if event.name or not event.id:
            return None
        named = [call for call in reversed(self._calls) if call.own_id == event.id]
        unanswered = next((call for call in named if not call.is_answered), None)
        if unanswered is None and current is not None and not current.own_id and not current.is_answered:
            return current
        return unanswered or next(iter(named), None)

    def _begin_call(self, event: ToolCallEvent) -> CheckedCall:
        if not event.name:
            raise ValueError(
                f"the model {self.model!r} yielded a part of a tool call with the index {event.index}, which has not "
                "begun: the first part needs a name"
            )
        id = whole_characters(event.id)
        if id in self._known:
            self._known.remove(id)  # the client has this call, which the model repeats with its result
        elif not id or id in self._used:
            id = f"call_{uuid.uuid4().hex}"
        self._used.add(id)
        call = CheckedCall(len(self._calls), id, event.id, event.executed)
        self._calls.append(call)
        self._current[event.index] = call
        return call

    def _add_arguments(self, call: CheckedCall, arguments: str) -> Iterator[ChatEvent]:
        if arguments:
            call.arguments.append(arguments)
            yield ToolCallEvent(call.index, arguments=arguments, executed=call.executed)

    def _add_result(self, event: ToolResultEvent) -> Iterator[ChatEvent]:
        calls = [call for call in self._calls if event.id in (call.id, call.own_id)]
        call = next((call for call in calls if not call.is_answered), None)
        if call is None:
            if calls or event.id not in self._known:
                state = "has a result already" if calls else "it has not yielded"
                raise ValueError(
                    f"the model {self.model!r} yielded a result of the tool call {_shown(event.id)}, which {state}: "
                    "yield one ToolCallEvent and then one result"
                )
            self._known.discard(event.id)
            yield event
            return
        if call.executed is False:
            raise ValueError(
                f"the model {self.model!r} yielded a result of the tool call {call.id!r}, which it left to the client "
                "with executed=False: yield the call with executed=True"
            )
        yield from self._add_arguments(call, call.characters.end())
        call.is_complete = call.is_answered = True
        yield replace(event, id=call.id)

    def _end_parts(self) -> Iterator[ChatEvent]:
        """Yield what was held back of the text and of all calls."""
        yield from self._end_text()
        for call in self._calls:
            yield from self._add_arguments(call, call.characters.end())


async def checked(events: AsyncIterator[ChatEvent], checker: EventChecker) -> AsyncGenerator[ChatEvent, None]:
    """Yield the events of a model as `EventChecker` describes them. The model is closed at the end.

    Raises:
        TypeError, ValueError: The model has broken the protocol of `ChatModel`.
    """
    if not hasattr(events, "__aiter__"):
        if inspect.iscoroutine(events):
            events.close()
        raise TypeError(
            f"the model {checker.model!r} returned a {type(events).__name__}: its function must be an async generator, "
            "which yields events"
        )
    async with closing(events):
        async for event in events:
            for each in checker.take(event):
                yield each
            if checker.has_failed:
                return
        for each in checker.end():
            yield each


async def until_stop(events: AsyncIterator[ChatEvent], strings: Sequence[str]) -> AsyncGenerator[ChatEvent, None]:
    """Yield the checked events of a model until its text has one of the strings. The model is closed then.

    The string itself, and what follows it, is left out. A model that ends there by itself is not changed.
    """
    text = StopStrings(strings)
    usage: UsageEvent | None = None
    parts = 0
    asked: set[str] = set()  # the ids of the calls that the client has to run
    async with closing(events):
        async for event in events:
            match event:
                case TextEvent() | ReasoningEvent():
                    parts += 1
                case UsageEvent():
                    usage = event
                case ToolCallEvent() if event.id and not event.executed:
                    asked.add(event.id)
                case ToolResultEvent():
                    asked.discard(event.id)
            if not isinstance(event, TextEvent):
                if not isinstance(event, ReasoningEvent | UsageEvent) and (held := text.end()):
                    yield TextEvent(held)
                yield event
                continue
            if part := text.add(event.text):
                yield TextEvent(part)
            if text.stopped:
                if (latest := await _usage_after_stop(events, usage, parts)) not in (None, usage):
                    yield latest
                yield FinishEvent("tool_calls" if asked else "stop")
                return


async def _usage_after_stop(
    events: AsyncIterator[ChatEvent], usage: UsageEvent | None, parts: int
) -> UsageEvent | None:
    """Let a model go on until it reports its usage, and return it. None: the model has ended and does not count tokens.

    If the model goes on for more than `USAGE_S` or `USAGE_EVENTS`, or fails, the usage is what it has reported before.
    If it has reported none, each of the `parts` of the text up to the stop string counts as one token.
    """
    others = 0
    try:
        async with asyncio.timeout(USAGE_S):
            async for event in events:
                if isinstance(event, UsageEvent):
                    return event
                others += not isinstance(event, FinishEvent)
                if others == USAGE_EVENTS:
                    break
            else:
                return usage
    except Exception as error:  # of the model, whose response is complete, or because the time is over
        if not isinstance(error, TimeoutError):
            logger.warning("a model failed after its text had ended at a stop string: %r", error)
    return usage or UsageEvent(0, parts)


async def with_known_runners(events: AsyncIterator[ChatEvent]) -> AsyncGenerator[ChatEvent, None]:
    """Yield the checked events of a model, in which `executed` of each call is True or False.

    A call without this mark is held back until its result, or the end of the response. OpenAI's clients run each call
    that they get.
    """
    held: dict[int, list[ToolCallEvent]] = {}
    async with closing(events):
        async for event in events:
            match event:
                case ToolCallEvent(executed=None):
                    held.setdefault(event.index, []).append(event)
                    continue
                case ToolResultEvent():
                    index = next((index for index, (first, *_) in held.items() if first.id == event.id), None)
                    if index is not None:
                        for part in held.pop(index):
                            yield replace(part, executed=True)
                case FinishEvent():
                    for parts in held.values():
                        for part in parts:
                            yield replace(part, executed=False)
            yield event


def _without_none(event: ToolCallEvent) -> ToolCallEvent:
    """Return a part of a call whose texts are not None, as they are in the later deltas of OpenAI's servers."""
    empty: dict[str, Any] = {name: "" for name in ("id", "name", "arguments") if getattr(event, name) is None}
    return replace(event, **empty) if empty else event


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"
