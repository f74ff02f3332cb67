"""The requests of Ollama's API, and what a model gets of them."""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app_toolkit.chat.failures import InvalidParameter
from app_toolkit.chat.file_types import HEAD_BYTES, detected_type
from app_toolkit.chat.offered_tools import note_ignored
from app_toolkit.chat.protocol import Attachment, ChatMessage, ChatRequest, Role, Tool, ToolCall

LATEST = ":latest"
"""The tag that Ollama's clients add to a name without one."""

ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

Format = Literal["", "json"] | dict[str, Any]


class OllamaOptions(BaseModel):
    """The options of a model. The others, such as `num_ctx`, reach the model in `ChatRequest.extra`."""

    model_config = ConfigDict(extra="allow")

    num_predict: int | None = None
    """The maximum number of tokens. A negative number is no limit."""
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class OllamaRequest(BaseModel):
    """What requests for a chat and for a text have in common."""

    model_config = ConfigDict(extra="allow")

    model: str
    stream: bool | None = None
    """Default: true."""
    format: Format | None = None
    """`json`, or a JSON schema."""
    options: OllamaOptions | None = None
    think: bool | str | None = None
    """False: the client gets no reasoning. A text is the effort of the model: `low`, `medium` or `high`."""
    keep_alive: float | str | None = None
    """It has no effect: models stay loaded."""


class OllamaFunction(BaseModel):
    name: str
    arguments: dict[str, Any] = {}


class OllamaCall(BaseModel):
    id: str | None = None
    function: OllamaFunction


class OllamaMessage(BaseModel):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    """In base64."""
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    """Of the role `tool`: the function whose result the content is."""
    tool_call_id: str | None = None


class OllamaToolFunction(BaseModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(BaseModel):
    type: str = "function"
    function: OllamaToolFunction | None = None


class OllamaChatRequest(OllamaRequest):
    messages: list[OllamaMessage] = []
    tools: list[OllamaTool] | None = None


class GenerateRequest(OllamaRequest):
    prompt: str | None = None
    system: str | None = None
    suffix: str | None = None
    images: list[str] | None = None


class ShowRequest(BaseModel):
    model: str = ""
    name: str = ""
    """What older clients call the model."""


class EmbedRequest(BaseModel):
    model: str
    input: str | list[str]
    dimensions: int | None = None


class EmbeddingsRequest(BaseModel):
    """The older request for the vector of one text."""

    model: str
    prompt: str


class OllamaError(BaseModel):
    """The body of a response that is an error, and the last line of a stream that has failed."""

    error: str


class OllamaChunk(BaseModel):
    """A line of a stream, or the whole response."""

    model: str
    created_at: str
    message: dict[str, Any] | None = Field(None, description="Of a chat: `content`, `thinking` and `tool_calls`.")
    response: str | None = Field(None, description="Of a text.")
    done: bool
    done_reason: str | None = None


def chat_request(body: OllamaChatRequest) -> ChatRequest:
    """Return a chat as models get it. Raises `InvalidParameter`."""
    return _request(body, tuple(_messages(body.messages)), tuple(_tools(body.tools or ())))


def text_request(body: GenerateRequest) -> ChatRequest:
    """Return a prompt as models get it: as the message of a user. Raises `InvalidParameter`."""
    if body.suffix:
        raise InvalidParameter("suffix is not supported: chat models do not fill in the middle of a text", "suffix")
    system = [ChatMessage("system", body.system)] if body.system else []
    user = ChatMessage("user", body.prompt or "", attachments=_images(body.images, "images"))
    return _request(body, (*system, user), ())


def _request(body: OllamaRequest, messages: tuple[ChatMessage, ...], tools: tuple[Tool, ...]) -> ChatRequest:
    options = body.options or OllamaOptions()
    limit = options.num_predict
    stop = (options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ())
    extra = {**(body.model_extra or {}), **(options.model_extra or {})}
    if body.think is not None:
        extra["think"] = body.think
        if isinstance(body.think, str):
            extra["reasoning_effort"] = body.think
    return ChatRequest(
        messages,
        model=body.model,
        tools=tools,
        max_tokens=None if limit is None or limit < 0 else limit,
        temperature=options.temperature,
        top_p=options.top_p,
        stop=tuple(filter(None, stop)),
        seed=options.seed,
        response_format=_response_format(body.format),
        extra=extra or None,
    )


def _messages(messages: Sequence[OllamaMessage]) -> Iterator[ChatMessage]:
    """Yield the messages. Results name a function; they belong to its calls in their order."""
    waiting: list[ToolCall] = []
    for number, message in enumerate(messages):
        param = f"messages[{number}]"
        if message.role not in ROLES:
            raise InvalidParameter(f"the role {message.role!r} is not supported", f"{param}.role")
        calls = tuple(
            ToolCall(
                call.id or f"call_{number}_{place}",
                call.function.name,
                json.dumps(call.function.arguments, ensure_ascii=False),
            )
            for place, call in enumerate(message.tool_calls or ())
        )
        waiting += calls
        yield ChatMessage(
            ROLES[message.role],
            message.content or "",
            tool_calls=calls,
            tool_call_id=_answered(waiting, message, param) if message.role == "tool" else None,
            attachments=_images(message.images, f"{param}.images"),
            reasoning=message.thinking or "",
        )


def _answered(waiting: list[ToolCall], message: OllamaMessage, param: str) -> str:
    """Return the id of the call that a result belongs to, which waits no more. Raises `InvalidParameter`."""
    for call in waiting:
        named = message.tool_call_id == call.id if message.tool_call_id else message.tool_name in (None, "", call.name)
        if named:
            waiting.remove(call)
            return call.id
    if message.tool_call_id:
        return message.tool_call_id
    name = f" of {message.tool_name!r}" if message.tool_name else ""
    raise InvalidParameter(f"the result{name} follows no call without a result", f"{param}.tool_name")


def _tools(tools: Sequence[OllamaTool]) -> Iterator[Tool]:
    for tool in tools:
        if tool.type != "function" or tool.function is None:
            note_ignored("tools", tool.type)
        else:
            yield Tool(tool.function.name, tool.function.description or "", tool.function.parameters)


def _images(images: Sequence[str] | None, param: str) -> tuple[Attachment, ...]:
    attachments = []
    for number, image in enumerate(images or ()):
        try:
            # The first bytes tell the type, and the model decodes the rest.
            head = base64.b64decode(image[: HEAD_BYTES * 4 // 3 // 4 * 4], validate=True)
        except (binascii.Error, ValueError):
            raise InvalidParameter("an image must be in base64", f"{param}[{number}]") from None
        media_type = detected_type(head) or "image/*"
        attachments.append(Attachment(media_type, f"data:{media_type};base64,{image}"))
    return tuple(attachments)


def _response_format(format: Format | None) -> dict[str, Any] | None:
    """Return `format` as chat completions write it."""
    if not format:
        return None
    if isinstance(format, str):
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "response", "schema": format}}
