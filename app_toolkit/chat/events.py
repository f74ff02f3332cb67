"""What every router can rely on in the events of a model: their types, ids and order, and one end."""

import asyncio
import base64
import inspect
import json
import logging
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, get_args

from app_toolkit.chat.protocol import (
    ApprovalRequest,
    ChatEvent,
    DataEvent,
    DocumentEvent,
    ErrorEvent,
    FileEvent,
    FinishEvent,
    FinishReason,
    OptionalEvent,
    ReasoningEvent,
    SourceEvent,
    StatusEvent,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
    closing,
)
from app_toolkit.chat.stop_strings import StopStrings
from app_toolkit.chat.usage import Meter

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
    FinishEvent: {"reason": (str,), "stop_string": (str, NoneType)},
    SourceEvent: dict.fromkeys(("url", "title", "id"), (str,)),
    DocumentEvent: dict.fromkeys(("title", "media_type", "name", "id"), (str,)),
    FileEvent: {"media_type": (str,), "url": (str,), "data": (bytes,)},
    DataEvent: {"name": (str,), "id": (str,), "transient": (bool,)},
    StatusEvent: {"text": (str,)},
    ApprovalRequest: {"call": (ToolCall,)},
}
"""The types of the fields of each event, except those of any type."""

DATA_NAME = re.compile(r"(?!(?:error|status)\Z)[A-Za-z0-9_-]+")
"""The name of a `DataEvent`. Protocols use the reserved names for errors and for a `StatusEvent`."""

MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+")

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
        half, self._held = self._held, ""
        return whole_characters(half)


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
    - The call of an `ApprovalRequest` has an id as other calls have, and arguments. It needs no result.
    - Sources and documents have an id, which no other one of the response has. Files have a URL. An `OptionalEvent`
      of a type that the protocol does not express is checked and left out.
    - The last event is the only `FinishEvent`, or an `ErrorEvent`. The reason `tool_calls` says that there are calls
      which the client has to run.
    """

    def __init__(
        self,
        model: str,
        used_ids: Iterable[str] = (),
        known_calls: Iterable[str] = (),
        expressed: Collection[type[OptionalEvent]] = (),
    ) -> None:
        """Begin a response.

        Parameters:
            model: The name of the model, for errors.
            used_ids: The ids of earlier calls in the conversation.
            known_calls: The ids of earlier calls without a result. The model may yield it, also after the same call.
            expressed: The types of `OptionalEvent` that the protocol expresses. Default: none.
        """
        self.model = model
        self._expressed = frozenset(expressed)
        self._sources: set[str] = set()
        """The ids of sources and documents."""
        self._known = set(known_calls)
        self._used = {*used_ids, *self._known}
        self._calls: list[CheckedCall] = []
        self._current: dict[int, CheckedCall] = {}
        """The last call of each index of the model."""
        self._text: tuple[type[TextEvent | ReasoningEvent], Characters] | None = None
        """The kind of text that the model writes."""
        self._reason: FinishReason | None = None
        self._stop_string: str | None = None
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
                self._reason, self._stop_string = reason, event.stop_string
            case _:
                yield from self._add_optional(event)

    def end(self) -> Iterator[ChatEvent]:
        """Yield the last events, because the model has ended."""
        if self.has_failed:
            return
        yield from self._end_parts()
        reason = self._reason or "stop"
        if reason in ("stop", "tool_calls"):
            is_asked = any(not call.executed and not call.is_answered for call in self._calls)
            reason = "tool_calls" if is_asked else "stop"
        yield FinishEvent(reason, self._stop_string)

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

    def _add_optional(self, event: OptionalEvent) -> Iterator[ChatEvent]:
        if (problem := _problem(event)) is not None:
            raise ValueError(f"the model {self.model!r} yielded {problem}")
        if not any(isinstance(event, kind) for kind in self._expressed):
            return
        if isinstance(event, StatusEvent):  # the text goes on
            yield replace(event, text=whole_characters(event.text))
            return
        yield from self._end_text()
        match event:
            case SourceEvent() | DocumentEvent():
                id = event.id or f"source_{uuid.uuid4().hex}"
                if id not in self._sources:
                    self._sources.add(id)
                    yield replace(event, id=id, title=whole_characters(event.title))
            case FileEvent(media_type, url, data):
                yield FileEvent(media_type, url or f"data:{media_type};base64,{base64.b64encode(data).decode()}")
            case DataEvent():
                yield event
            case ApprovalRequest(call):
                name, arguments = whole_characters(call.name), whole_characters(call.arguments) or "{}"
                yield ApprovalRequest(ToolCall(self._new_id(call.id), name, arguments))

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
        else:
            id = self._new_id(id)
        call = CheckedCall(len(self._calls), id, event.id, event.executed)
        self._calls.append(call)
        self._current[event.index] = call
        return call

    def _new_id(self, id: str) -> str:
        """Return the id of a new call: `id`, if no other call has it."""
        id = whole_characters(id)
        if not id or id in self._used:
            id = f"call_{uuid.uuid4().hex}"
        self._used.add(id)
        return id

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


async def checked(
    events: AsyncIterator[ChatEvent], checker: EventChecker, *, holds_usage: bool = True, meter: Meter | None = None
) -> AsyncGenerator[ChatEvent, None]:
    """Yield the events of a model as `EventChecker` describes them. The model is closed at the end.

    Parameters:
        events: The events of the model.
        checker: The checker.
        holds_usage: Whether usage is held back until another event, because an error before that can still be the
            status of the response. Default: True.
        meter: Counts what the response costs, when it ends and also if it is stopped or fails. Default: nothing does.

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
    has_begun = not holds_usage
    usage: ChatEvent | None = None
    try:
        async with closing(events):
            async for event in events:
                for checked_event in checker.take(event):
                    if meter is not None:
                        meter.take(checked_event)
                    if isinstance(checked_event, UsageEvent) and not has_begun:
                        usage = checked_event
                        continue
                    if usage is not None:
                        yield usage
                    has_begun, usage = True, None
                    yield checked_event
                if checker.has_failed:
                    return
            if meter is not None:  # before the client learns that the response is complete, and sends the next request
                await meter.end(is_complete=True)
            if usage is not None:
                yield usage
            for checked_event in checker.end():
                yield checked_event
    finally:
        if meter is not None:
            await meter.end()


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
                if not isinstance(event, ReasoningEvent | UsageEvent | StatusEvent) and (held_back := text.end()):
                    yield TextEvent(held_back)
                yield event
                continue
            if part := text.add(event.text):
                yield TextEvent(part)
            if text.stopped:
                if (latest := await _usage_after_stop(events, usage, parts)) not in (None, usage):
                    yield latest
                yield FinishEvent("tool_calls" if asked else "stop", text.match)
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
    held_back: dict[int, list[ToolCallEvent]] = {}
    async with closing(events):
        async for event in events:
            match event:
                case ToolCallEvent(executed=None):
                    held_back.setdefault(event.index, []).append(event)
                    continue
                case ToolResultEvent():
                    index = next((index for index, (first, *_) in held_back.items() if first.id == event.id), None)
                    if index is not None:
                        for part in held_back.pop(index):
                            yield replace(part, executed=True)
                case FinishEvent():
                    for parts in held_back.values():
                        for part in parts:
                            yield replace(part, executed=False)
            yield event


def _without_none(event: ToolCallEvent) -> ToolCallEvent:
    """Return a part of a call whose texts are not None, as they are in the later deltas of OpenAI's servers."""
    empty: dict[str, Any] = {name: "" for name in ("id", "name", "arguments") if getattr(event, name) is None}
    return replace(event, **empty) if empty else event


def _problem(event: OptionalEvent) -> str | None:
    """Return what is wrong with the values of an event; None: nothing."""
    kind = type(event).__name__
    match event:
        case SourceEvent(url="") | DocumentEvent(title=""):
            name = "url" if isinstance(event, SourceEvent) else "title"
            return f"a {kind} whose {name} is empty"
        case DocumentEvent() | FileEvent() if not MEDIA_TYPE.fullmatch(event.media_type):
            return f"a {kind} whose media_type is {_shown(event.media_type)}: write it as image/png"
        case FileEvent() if bool(event.url) == bool(event.data):
            return f"a {kind} with {'both url and' if event.url else 'neither url nor'} data: it must have one of them"
        case DataEvent() if not DATA_NAME.fullmatch(event.name):
            return (
                f"a {kind} whose name is {_shown(event.name)}: it must have ASCII letters, digits, - and _ only, and "
                "error and status are reserved"
            )
        case ApprovalRequest(ToolCall(id, name, arguments)):
            if not all(isinstance(value, str) for value in (id, name, arguments)):
                return f"an {kind} whose call is {_shown(event.call)}: its fields must be str"
            if not name:
                return f"an {kind} whose call has no name"
            if arguments and not _is_json(arguments):
                return f"an {kind} whose arguments are {_shown(arguments)}: they must be a JSON document"
    return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"
