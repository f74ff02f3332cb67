"""The requests and responses of Anthropic's API, and the translation of requests to the interface of chat models."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app_toolkit.chat.failures import InvalidParameter, missing
from app_toolkit.chat.offered_tools import chosen_tools, named_function, note_ignored
from app_toolkit.chat.protocol import Attachment, ChatMessage, ChatRequest, Role, Tool, ToolCall

MAX_STOPS = 16
"""The strings of `stop_sequences`."""

MAX_MODELS = 1_000
"""The models of one page."""

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
"""`ChatRequest.tool_choice` by the type of a choice that names no tool."""


class AnthropicObject(BaseModel):
    """An object of a request. Unknown fields are ignored, because clients send fields that only some servers have."""

    model_config = ConfigDict(extra="ignore")


class AnthropicSource(AnthropicObject):
    """The content of an image or a document."""

    type: str = Field(description="`base64`, `url`, `file`, `text` or `content`.")
    media_type: str | None = None
    data: str | None = Field(default=None, description="The content in base64, or a text.")
    url: str | None = None
    file_id: str | None = Field(default=None, description="A file of `files_router`.")
    content: "str | list[AnthropicBlock] | None" = None


class AnthropicBlock(BaseModel):
    """A part of the content of a message. Each type has its own fields."""

    # The results of tools that another server has run are kept as they are.
    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None
    source: AnthropicSource | str | None = None
    title: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    is_error: bool | None = None
    content: "str | list[AnthropicBlock] | dict[str, Any] | None" = None


class AnthropicMessage(AnthropicObject):
    role: Literal["user", "assistant", "system"]
    content: str | list[AnthropicBlock]


class AnthropicTool(AnthropicObject):
    type: str | None = Field(default=None, description="`custom`. Tools of other types are ignored.")
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = Field(default=None, description="A JSON schema.")


class AnthropicToolChoice(AnthropicObject):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicMetadata(AnthropicObject):
    user_id: str | None = None


class AnthropicThinking(AnthropicObject):
    type: str = Field(description="`enabled`, `adaptive` or `disabled`. With `disabled`, the reasoning is left out.")
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class AnthropicFormat(AnthropicObject):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class AnthropicOutput(AnthropicObject):
    effort: str | None = None
    format: AnthropicFormat | None = None


class CountTokensRequest(BaseModel):
    """A request of `POST /messages/count_tokens`. Fields that are not listed reach the model as `ChatRequest.extra`."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1)
    messages: list[AnthropicMessage] = Field(min_length=1)
    system: str | list[AnthropicBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: AnthropicThinking | None = None
    output_config: AnthropicOutput | None = None
    mcp_servers: list[Any] | None = Field(default=None, description="Not supported.")
    container: Any = Field(default=None, description="Not supported.")


class MessageRequest(CountTokensRequest):
    """A request of `POST /messages`. Fields that are not listed reach the model as `ChatRequest.extra`."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    metadata: AnthropicMetadata | None = None


class MessageUsage(BaseModel):
    """The tokens of a response. Zeros: the model does not count."""

    input_tokens: int = Field(description="Without those that were read from a cache.")
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: dict[str, int]


class MessageDocument(BaseModel):
    """A response of `POST /messages` without `stream`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    input_tokens: int


class AnthropicModel(BaseModel):
    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"


class AnthropicModels(BaseModel):
    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str
    details: dict[str, str] | None = Field(default=None, description="`error_code` names the cause.")


class AnthropicErrorDocument(BaseModel):
    """The body of every response that is an error."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


def chat_request(body: CountTokensRequest) -> ChatRequest:
    """Return the request as chat models get it. Raises `InvalidParameter`."""
    if body.mcp_servers:
        raise InvalidParameter("mcp_servers is not supported: give the tools to the model itself", "mcp_servers")
    if body.container is not None:
        raise InvalidParameter("container is not supported: this server runs no code", "container")
    tools, tool_choice = _chosen_tools(body.tools or (), body.tool_choice)
    options: dict[str, Any] = {}
    if isinstance(body, MessageRequest):
        options = {
            "max_tokens": body.max_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "stop": _stop(body.stop_sequences or ()),
            "user": body.metadata and body.metadata.user_id,
        }
    return ChatRequest(
        messages=tuple(_messages(body)),
        model=body.model,
        tools=tools,
        tool_choice=tool_choice,
        response_format=_response_format(body.output_config),
        extra=_extra(body) or None,
        **options,
    )


def page_of(names: Sequence[str], limit: int, after: str | None, before: str | None) -> tuple[list[str], bool]:
    """Return the names of one page of models, and whether more follow in its direction.

    Parameters:
        names: All names.
        limit: Names of the page.
        after: The page begins after this name. Default: with the first one.
        before: The page ends before this name. Default: at the limit.
    """
    chosen = list(names)
    if before in chosen:
        chosen = chosen[: chosen.index(before)]
        return chosen[-limit:], len(chosen) > limit
    if after in chosen:
        chosen = chosen[chosen.index(after) + 1 :]
    return chosen[:limit], len(chosen) > limit


def _messages(body: CountTokensRequest) -> Iterator[ChatMessage]:
    if body.system:
        yield from _translated("system", body.system, "system")
    for number, message in enumerate(body.messages):
        yield from _translated(message.role, message.content, f"messages[{number}].content")


def _translated(role: Role, content: str | Sequence[AnthropicBlock], param: str) -> Iterator[ChatMessage]:
    """Yield the messages that one message becomes: results of tools are messages of their own."""
    if isinstance(content, str):
        yield ChatMessage(role, content)
        return
    turn = Turn(role)
    for number, block in enumerate(content):
        place = f"{param}[{number}]"
        if block.type.endswith("tool_result"):
            turn.results.append(_result(block, place))
            continue
        if turn.results:
            yield from turn.messages()
            turn = Turn(role)
        turn.add(block, place)
    yield from turn.messages()


class Turn:
    """The blocks of one message up to the results of its tools."""

    def __init__(self, role: Role) -> None:
        self.results: list[ChatMessage] = []
        self._role = role
        self._texts: list[str] = []
        self._thinking: list[str] = []
        self._attachments: list[Attachment] = []
        self._calls: list[ToolCall] = []

    def add(self, block: AnthropicBlock, param: str) -> None:
        """Add a block that is no result. Raises `InvalidParameter`."""
        match block.type:
            case "thinking":
                self._thinking.append(block.thinking or "")
            case "redacted_thinking":
                pass  # only the server that wrote it can read it
            case "tool_use" | "mcp_tool_use" | "server_tool_use":
                if not block.id or not block.name:
                    raise missing(f"{param}.{'name' if block.id else 'id'}")
                arguments = json.dumps({} if block.input is None else block.input, ensure_ascii=False)
                self._calls.append(ToolCall(block.id, block.name, arguments))
            case _:
                part = _part(block, param)
                (self._texts if isinstance(part, str) else self._attachments).append(part)  # type: ignore[arg-type]

    def messages(self) -> Iterator[ChatMessage]:
        """Yield the message, unless it is empty and has only results, and the results."""
        if self._texts or self._thinking or self._attachments or self._calls or not self.results:
            yield ChatMessage(
                self._role,
                "\n".join(self._texts),
                tool_calls=tuple(self._calls),
                attachments=tuple(self._attachments),
                reasoning="\n".join(self._thinking),
            )
        yield from self.results


def _result(block: AnthropicBlock, param: str) -> ChatMessage:
    if not block.tool_use_id:
        raise missing(f"{param}.tool_use_id")
    texts: list[str] = []
    attachments: list[Attachment] = []
    if isinstance(block.content, str):
        texts.append(block.content)
    elif isinstance(block.content, list) and block.type in ("tool_result", "mcp_tool_result"):
        for number, part in enumerate(block.content):
            content = _part(part, f"{param}.content[{number}]")
            (texts if isinstance(content, str) else attachments).append(content)  # type: ignore[arg-type]
    elif block.content is not None:  # of a tool of another server
        document = block.model_dump(include={"content"}, exclude_none=True)["content"]
        texts.append(json.dumps(document, ensure_ascii=False))
    return ChatMessage(
        "tool",
        "\n".join(texts),
        tool_call_id=block.tool_use_id,
        attachments=tuple(attachments),
        is_error=bool(block.is_error),
    )


def _part(block: AnthropicBlock, param: str) -> str | Attachment:
    """Return a block as a text or an attachment. Raises `InvalidParameter`."""
    match block.type:
        case "text":
            if block.text is None:
                raise missing(f"{param}.text")
            return block.text
        case "image" | "document":
            if not isinstance(block.source, AnthropicSource):
                raise missing(f"{param}.source")
            return _content(block, block.source, f"{param}.source")
        case "search_result":
            source = block.source if isinstance(block.source, str) else ""
            parts = block.content if isinstance(block.content, list) else ()
            return "\n".join(filter(None, [block.title, source, *(part.text for part in parts)]))
    raise InvalidParameter(f"a block of the type {block.type!r} is not supported", f"{param}.type")


def _content(block: AnthropicBlock, source: AnthropicSource, param: str) -> str | Attachment:
    otherwise = "image/*" if block.type == "image" else "application/pdf"
    match source.type:
        case "base64":
            if source.data is None:
                raise missing(f"{param}.data")
            media_type = source.media_type or otherwise
            return Attachment(media_type, f"data:{media_type};base64,{source.data}", block.title)
        case "url":
            if source.url is None:
                raise missing(f"{param}.url")
            return Attachment(source.media_type or otherwise, source.url, block.title)
        case "file":
            if source.file_id is None:
                raise missing(f"{param}.file_id")
            return Attachment(otherwise, "", block.title, source.file_id)
        case "text":
            return "\n".join(filter(None, [block.title, source.data]))
        case "content":
            content = source.content or ""
            return content if isinstance(content, str) else "\n".join(part.text or "" for part in content)
    raise InvalidParameter(f"a source of the type {source.type!r} is not supported", f"{param}.type")


def _chosen_tools(
    offered: Sequence[AnthropicTool], choice: AnthropicToolChoice | None
) -> tuple[tuple[Tool, ...], str | None]:
    """Return the functions that the model may call, and its choice among them. Raises `InvalidParameter`."""
    tools: list[Tool] = []
    for number, tool in enumerate(offered):
        if tool.type not in (None, "custom"):
            note_ignored("tools", str(tool.type))
        elif not tool.name:
            raise missing(f"tools[{number}].name")
        elif tool.input_schema is None:
            raise missing(f"tools[{number}].input_schema")
        else:
            tools.append(Tool(tool.name, tool.description or "", tool.input_schema))
    if choice is None or (offered and not tools):
        return chosen_tools(tools, None)
    if choice.type != "tool":
        return chosen_tools(tools, CHOICES[choice.type])
    if not choice.name:
        raise missing("tool_choice.name")
    return chosen_tools(tools, named_function(choice.name, tools))


def _stop(strings: Sequence[str]) -> tuple[str, ...]:
    if len(strings) > MAX_STOPS or not all(strings):
        raise InvalidParameter(
            f"stop_sequences must have at most {MAX_STOPS} strings, and no empty one", "stop_sequences"
        )
    return tuple(strings)


def _response_format(output: AnthropicOutput | None) -> dict[str, Any] | None:
    """Return `output_config.format` as chat completions write it."""
    if output is None or output.format is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "response", "schema": output.format.schema_}}


def _extra(body: CountTokensRequest) -> dict[str, Any]:
    """Return the other fields. Those that chat completions also have get the names of these."""
    extra = dict(body.model_extra or {})
    if body.thinking is not None:
        extra["thinking"] = body.thinking.model_dump(exclude_none=True)
    if body.output_config is not None and body.output_config.effort:
        extra["reasoning_effort"] = body.output_config.effort
    if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use:
        extra["parallel_tool_calls"] = False
    return extra
