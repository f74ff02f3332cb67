"""The messages of a chat over a WebSocket: those of the client, and the events of a response."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from app_toolkit.chat.ai_sdk.stream import encode
from app_toolkit.chat.catalog import Catalog
from app_toolkit.chat.failures import InvalidParameter, failure_of, missing
from app_toolkit.chat.openai.errors import error_document as openai_document
from app_toolkit.chat.openai.wire import ChatCompletionRequest, OpenAIMessage, chat_request
from app_toolkit.chat.protocol import (
    ApprovalRequest,
    ChatEvent,
    ChatRequest,
    DataEvent,
    DocumentEvent,
    ErrorEvent,
    FileEvent,
    FinishEvent,
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

ResponseId = Annotated[str, Field(min_length=1, max_length=128)]

MAX_NUMBER = 2**53 - 1
"""The highest number of an event: the highest whole number of JavaScript."""

EXPRESSED: frozenset[type[OptionalEvent]] = frozenset(
    {SourceEvent, DocumentEvent, FileEvent, DataEvent, StatusEvent, ApprovalRequest}
)
"""The types of events that clients get, besides those of every protocol."""

TYPES = "chat, stop, resume and ping"


LAST = b'\n{"type":"finish"', b'\n{"type":"error"'
"""What the last event of a response begins with in a stream log."""

Document = dict[str, Any]


class ApprovedCall(BaseModel):
    """A call of an `approval_request` that the user has approved."""

    call_id: str = Field(min_length=1)
    name: str = ""
    arguments: str = ""


class DeniedCall(BaseModel):
    """A call of an `approval_request` that the user has denied."""

    call_id: str = Field(min_length=1)
    reason: str = ""


class ChatCommand(ChatCompletionRequest):
    """Begin a response. The fields are those of a chat completion of OpenAI."""

    type: Literal["chat"]
    id: ResponseId
    model: str = ""
    messages: list[OpenAIMessage] = Field(default=[])
    approved_calls: list[ApprovedCall] = Field(default=[])
    denied_calls: list[DeniedCall] = Field(default=[], description="Of a stored conversation.")
    conversation: str | None = Field(default=None, description="The stored conversation that the message belongs to.")
    parent_id: str | None = Field(default=None, description="The message before it. Default: the active one.")

    @property
    def answers_only(self) -> bool:
        """Whether it answers a request for an approval in a stored conversation, and needs no message."""
        return self.conversation is not None and bool(self.approved_calls or self.denied_calls)


class StopCommand(BaseModel):
    """Stop a response."""

    type: Literal["stop"]
    id: ResponseId


class ResumeCommand(BaseModel):
    """Send the events of a response after a number, and those that follow."""

    type: Literal["resume"]
    id: ResponseId
    after: int = Field(default=0, ge=0, le=MAX_NUMBER, strict=True)


class PingCommand(BaseModel):
    """Send a pong."""

    type: Literal["ping"]


Command = ChatCommand | StopCommand | ResumeCommand | PingCommand

COMMAND: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="type")])


class InvalidCommand(Exception):
    """A message that is no command. `document` is the reply."""

    def __init__(self, message: str, param: str | None = None, id: str | None = None) -> None:
        super().__init__(message)
        self.document = _without_none(
            type="error", id=id, status=400, code="invalid_message", message=message, param=param
        )


def read_command(text: str) -> Command:
    """Return the command of a message. Raises `InvalidCommand`."""
    try:
        document = from_json(text)
    except ValueError as error:
        raise InvalidCommand(f"the message is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidCommand("the message must be a JSON object")
    command_id = document.get("id")
    id = command_id if isinstance(command_id, str) and 0 < len(command_id) <= 128 else None
    try:
        command = COMMAND.validate_python(document)
    except ValidationError as error:
        problems = error.errors()
    else:
        if isinstance(command, ChatCommand) and not command.messages and not command.answers_only:
            raise InvalidCommand("the field messages is missing", "messages", id)
        return command
    if problems[0]["type"].startswith("union_tag"):
        raise InvalidCommand(f"the field type must be one of {TYPES}", "type", id)
    problem = failure_of(RequestValidationError(problems))
    raise InvalidCommand(problem.message, problem.param, id)


def request_of(command: ChatCommand, catalog: Catalog) -> ChatRequest:
    """Return the request as chat models get it. Raises `InvalidParameter`."""
    if command.n is not None and command.n != 1:
        raise InvalidParameter(f"n is {command.n}: a response over a WebSocket has one choice", "n")
    if command.conversation is None:
        if command.denied_calls:
            raise InvalidParameter("a denied call without a conversation belongs into messages", "denied_calls")
        for number, call in enumerate(command.approved_calls):
            for name in ("name", "arguments"):
                if not getattr(call, name):
                    raise missing(f"approved_calls[{number}].{name}")
    approved = tuple(ToolCall(call.call_id, call.name, call.arguments) for call in command.approved_calls)
    return replace(chat_request(command), model=command.model or catalog.names[0], approved_calls=approved)


def error_document(error: Exception) -> Document:
    """Return the event of an exception. The text of an unexpected one is logged, and not sent."""
    failure = failure_of(error)
    detail = openai_document(failure)["error"]
    headers = {name.lower(): value for name, value in failure.all_headers.items()}
    after = headers.get("retry-after")
    return _without_none(
        type="error",
        status=failure.status,
        code=detail["code"] or detail["type"],
        message=failure.message,
        param=failure.param,
        retry_after_s=int(after) if after is not None and after.isdecimal() else None,  # it may be a date
    )


def event_document(event: ChatEvent) -> Document:
    """Return an event of a model, which `EventChecker` has checked, as a client receives it."""
    match event:
        case TextEvent(text):
            return {"type": "text", "text": text}
        case ReasoningEvent(text):
            return {"type": "reasoning", "text": text}
        case ToolCallEvent():
            begun = {"call_id": event.id, "name": event.name, "executed": event.executed} if event.id else {}
            return _without_none(type="tool_call", index=event.index, **begun, arguments=event.arguments)
        case ToolResultEvent():
            return {"type": "tool_result", "call_id": event.id, "result": event.result, "is_error": event.is_error}
        case UsageEvent():
            return {
                "type": "usage",
                "input_tokens": event.input_tokens,
                "output_tokens": event.output_tokens,
                "reasoning_tokens": event.reasoning_tokens,
                "cached_tokens": event.cached_tokens,
            }
        case ErrorEvent():
            return {"type": "error", "status": 500, "code": event.code, "message": event.message}
        case FinishEvent(reason):
            return {"type": "finish", "reason": reason}
        case SourceEvent():
            return {"type": "source", "source_id": event.id, "url": event.url, "title": event.title}
        case DocumentEvent(title, media_type, name, id):
            return {"type": "document", "source_id": id, "title": title, "media_type": media_type, "name": name}
        case FileEvent():
            return {"type": "file", "media_type": event.media_type, "url": event.url}
        case DataEvent(name, data, id, transient):
            return {"type": "data", "name": name, "data": data, "data_id": id, "transient": transient}
        case StatusEvent(text):
            return {"type": "status", "text": text}
        case ApprovalRequest(ToolCall(id, name, arguments)):
            return {"type": "approval_request", "call_id": id, "name": name, "arguments": arguments}


async def encoded(call: Callable[[], AsyncIterator[ChatEvent]]) -> AsyncGenerator[bytes, None]:
    """Call a model and yield its events as a stream log keeps them. An exception of the model is the last event."""
    try:
        async with closing(call()) as events:
            async for event in events:
                yield encode(event_document(event))
    except Exception as error:  # of the model
        yield encode(error_document(error))


def is_last(event: bytes) -> bool:
    """Return whether an event of a stream log is the last one of its response."""
    return event.startswith(LAST)


def frame(id: str, number: int, event: bytes) -> str:
    """Return an event of a stream log as a client gets it."""
    fields = event.partition(b"\n{")[2].decode()
    return f'{{"id":{json.dumps(id)},"number":{number},{fields}'


def _without_none(**fields: Any) -> Document:
    return {name: value for name, value in fields.items() if value is not None}
