"""The requests of OpenAI's Responses API, and their translation to the interface of chat models."""

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app_toolkit.chat.openai.wire import (
    InvalidParameter,
    OpenAIFile,
    OpenAIObject,
    chosen_tools,
    file_attachment,
    free_text_arguments,
    media_type_of,
    missing,
    named_function,
    note_ignored,
)
from app_toolkit.chat.protocol import Attachment, ChatMessage, ChatRequest, Role, Tool, ToolCall

LISTED_PARTS: dict[str, dict[str, Any]] = {
    "output_text": {"annotations": [], "logprobs": []},
    "input_image": {"detail": "auto"},
}
"""The fields that clients expect in parts, besides those that the request has."""

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""The limits of `metadata`, as with OpenAI: entries, and characters of a key and of a value."""

IGNORED_ITEMS = frozenset({"mcp_list_tools", "mcp_approval_request", "mcp_approval_response"})
"""The types of items that mean nothing to a chat model, besides calls that another server has run itself."""

LOGPROBS = "message.output_text.logprobs"


class ResponsePart(OpenAIObject):
    """A part of the content of an item. Each type has its own fields."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = Field(default=None, description="Not supported.")
    filename: str | None = None


OUTPUT: TypeAdapter[str | list[ResponsePart]] = TypeAdapter(str | list[ResponsePart])
"""The output of a tool."""


class ResponseItem(BaseModel):
    """An item of the input: a message, reasoning, a call of a tool, or its result. Further fields are listed again."""

    model_config = ConfigDict(extra="allow")

    type: str | None = Field(default=None, description="Default: message.")
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[ResponsePart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = Field(default=None, description="Of a `function_call`: a JSON document.")
    output: Any = Field(default=None, description="Of a `function_call_output`: a text, or parts.")
    summary: list[ResponsePart] | None = None


class ResponseTool(BaseModel):
    """A function. Tools of other types are ignored. Fields that are not listed are in the response again."""

    model_config = ConfigDict(extra="allow")

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="A JSON schema.")


class ResponseToolChoice(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = None


class ResponseTextFormat(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["text", "json_object", "json_schema"]


class ResponseText(OpenAIObject):
    format: ResponseTextFormat | None = None
    verbosity: str | None = None


class ResponseReasoning(BaseModel):
    model_config = ConfigDict(extra="allow")

    effort: str | None = None


class ResponseRequest(BaseModel):
    """A request of `POST /responses`. Fields that are not listed reach the model as `ChatRequest.extra`."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1)
    input: str | list[ResponseItem]
    instructions: str | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = Field(default=None, description="Default: true.")
    previous_response_id: str | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: ResponseText | None = None
    reasoning: ResponseReasoning | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    conversation: Any = Field(default=None, description="Not supported.")
    prompt: Any = Field(default=None, description="Not supported.")
    include: list[str] | None = Field(default=None, description="Ignored.")
    stream_options: dict[str, Any] | None = Field(default=None, description="Ignored.")
    truncation: str | None = Field(default=None, description="Ignored.")

    @property
    def stored(self) -> bool:
        """Whether the response is kept and outlives its client."""
        return self.store is not False

    def check(self) -> None:
        """Raise `InvalidParameter` for fields that exclude each other or have no meaning here."""
        if self.background and not self.stored:
            raise InvalidParameter("a response in the background must be stored: set store to true", "background")
        for name in ("conversation", "prompt"):
            if getattr(self, name) is not None:
                raise InvalidParameter(f"{name} is not supported; send the messages as input", name)
        for name in ("stop", "logprobs", "top_logprobs"):
            if (self.model_extra or {}).get(name):
                raise InvalidParameter(f"{name} is not supported by this route", name)
        if LOGPROBS in (self.include or ()):
            raise InvalidParameter(
                f"{LOGPROBS} is not supported: chat models do not tell the probabilities of tokens", "include"
            )
        metadata = self.metadata or {}
        if len(metadata) > MAX_METADATA:
            raise InvalidParameter(
                f"metadata has {len(metadata)} entries: it must have at most {MAX_METADATA}", "metadata"
            )
        for key, value in metadata.items():
            if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
                raise InvalidParameter(
                    f"metadata has a key of {len(key)} characters with a value of {len(value)}: they must have at most "
                    f"{MAX_METADATA_KEY} and {MAX_METADATA_VALUE}",
                    "metadata",
                )


class InputTokensRequest(ResponseRequest):
    """A request of `POST /responses/input_tokens`: a request of `POST /responses` that is not sent."""

    model: str = ""
    input: str | list[ResponseItem] = []


def input_items(body: ResponseRequest) -> list[ResponseItem]:
    """Return the input of a request as a list of items."""
    return [ResponseItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input


def identified(item: ResponseItem) -> ResponseItem:
    """Return an item with an id."""
    if item.id:
        return item
    prefix = {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}.get(item.type or "", "msg")
    return item.model_copy(update={"id": f"{prefix}_{uuid.uuid4().hex}"})


def listed(item: ResponseItem) -> dict[str, Any]:
    """Return an item of the input as clients list it."""
    found = item.model_dump(exclude_none=True)
    if item.type in (None, "message"):
        kind = "output_text" if item.role == "assistant" else "input_text"
        parts = [{"type": kind, "text": item.content}] if isinstance(item.content, str) else found.get("content", [])
        content = [{**LISTED_PARTS.get(part["type"], {}), **part} for part in parts]
        return {**found, "type": "message", "status": "completed", "content": content}
    if item.type == "reasoning":
        return {"summary": [], **found}
    return {"status": "completed", **found}


def page_of(items: Sequence[ResponseItem], limit: int, order: Literal["asc", "desc"], after: str | None) -> "ItemPage":
    """Return a part of a list.

    Parameters:
        items: The items, the oldest first. They have ids.
        limit: The maximum number of items.
        order: `desc`: the newest first.
        after: The id of the item before the first one. None: from the begin.

    Raises:
        InvalidParameter: There is no item `after`.
    """
    ordered = list(items) if order == "asc" else list(reversed(items))
    first = 0
    if after is not None:
        first = next((number for number, item in enumerate(ordered, 1) if item.id == after), -1)
        if first < 0:
            raise InvalidParameter(f"the response has no input item {after!r}", "after")
    found = ordered[first : first + limit]
    return ItemPage(
        data=[listed(item) for item in found],
        first_id=found[0].id if found else None,
        last_id=found[-1].id if found else None,
        has_more=first + limit < len(ordered),
    )


def response_chat_request(body: ResponseRequest, earlier: Sequence[ResponseItem] = ()) -> ChatRequest:
    """Return the request as chat models get it.

    Parameters:
        body: The request of the client.
        earlier: The items of the conversation that the request continues. Default: none.

    Raises:
        InvalidParameter: An item or a tool cannot be used.
    """
    tools, tool_choice = _tools(body)
    instructions = [ChatMessage("system", body.instructions)] if body.instructions else []
    messages = chat_messages([*earlier, *input_items(body)], first=-len(earlier))
    if not messages:
        raise InvalidParameter("input has no message", "input")
    return ChatRequest(
        messages=(*instructions, *messages),
        model=body.model,
        tools=tools,
        tool_choice=tool_choice,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        response_format=_response_format(body.text),
        user=body.user,
        extra=_extra(body) or None,
    )


def chat_messages(items: Iterable[ResponseItem], first: int = 0) -> list[ChatMessage]:
    """Return items as messages of a conversation. Calls of tools belong to the message of the assistant before them.

    Calls that another server has run itself, such as `web_search_call`, are left out.

    Parameters:
        items: The items.
        first: The number of the first item in the `input` of the request, for errors. Default: 0.

    Raises:
        InvalidParameter: An item has a type or a part that cannot be used.
    """
    messages: list[ChatMessage] = []
    reasoning: list[str] = []
    for number, item in enumerate(items, first):
        param = f"input[{number}]"
        match item.type or "message":
            case "message":
                messages.append(_message(item, param))
            case "function_call":
                _add_call(messages, item, param)
            case "function_call_output":
                messages.append(_result(item, param))
            case "mcp_call" if not item.name:
                note_ignored("items", "mcp_call")
                continue
            case "mcp_call" if (result := _own_result(item)) is not None:
                own = item.model_copy(update={"call_id": item.call_id or item.id or f"call_{uuid.uuid4().hex}"})
                _add_call(messages, own, param)
                messages.append(ChatMessage("tool", result, tool_call_id=own.call_id))
            case "reasoning":
                reasoning += [part.text for part in _reasoning(item) if part.text]
                continue
            case other if other.endswith("_call") and item.call_id:  # the client has run the tool
                _add_call(messages, _as_function_call(item), param)
            case other if other.endswith("_output") and item.call_id:
                messages.append(_result(item, param))
            case other if other.endswith("_call") or other in IGNORED_ITEMS:
                note_ignored("items", other)
                continue
            case other:
                raise InvalidParameter(f"{param} has the type {other!r}, which is not supported", f"{param}.type")
        # Reasoning belongs to the message or the call that follows it.
        if reasoning and messages[-1].role == "assistant":
            messages[-1] = replace(
                messages[-1], reasoning="\n".join([*filter(None, [messages[-1].reasoning]), *reasoning])
            )
        reasoning = []
    return messages


def _reasoning(item: ResponseItem) -> list[ResponsePart]:
    """Return the text of reasoning, or else its summary."""
    return (item.content if isinstance(item.content, list) else None) or item.summary or []


def _message(item: ResponseItem, param: str) -> ChatMessage:
    if item.role is None:
        raise InvalidParameter("a message needs a role", f"{param}.role")
    if item.content is None:
        raise InvalidParameter(f"a message of the role {item.role} needs content", f"{param}.content")
    role: Role = "system" if item.role == "developer" else item.role
    text, attachments = _content(item.content, f"{param}.content")
    return ChatMessage(role, text, attachments=attachments)


def _add_call(messages: list[ChatMessage], item: ResponseItem, param: str) -> None:
    if not item.call_id:
        raise InvalidParameter("a function_call needs call_id", f"{param}.call_id")
    if not item.name:
        raise InvalidParameter("a function_call needs name", f"{param}.name")
    call = ToolCall(item.call_id, item.name, "" if item.arguments is None else _text_of(item.arguments))
    before = messages.pop() if messages and messages[-1].role == "assistant" else ChatMessage("assistant")
    messages.append(replace(before, tool_calls=(*before.tool_calls, call)))


def _as_function_call(item: ResponseItem) -> ResponseItem:
    """Return a call of a tool of another type as the call of a function."""
    fields = item.model_extra or {}
    arguments = item.arguments or fields.get("action") or fields.get("operation") or {}
    if isinstance(fields.get("input"), str):
        arguments = free_text_arguments(fields["input"])
    name = item.name or str(item.type).removesuffix("_call")
    return item.model_copy(update={"name": name, "arguments": arguments})


def _own_result(item: ResponseItem) -> str | None:
    """Return the result of a tool that the model has run itself. None: it has none."""
    result = item.output if item.output is not None else (item.model_extra or {}).get("error")
    return None if result is None else _text_of(result)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _result(item: ResponseItem, param: str) -> ChatMessage:
    if not item.call_id:
        raise InvalidParameter("a function_call_output needs call_id", f"{param}.call_id")
    is_of_function = item.type == "function_call_output"
    if item.output is None and is_of_function:
        raise InvalidParameter("a function_call_output needs output", f"{param}.output")
    try:
        text, attachments = _content(
            OUTPUT.validate_python("" if item.output is None else item.output), f"{param}.output"
        )
    except ValidationError:
        if is_of_function:
            raise InvalidParameter("output must be a text or a list of parts", f"{param}.output") from None
        text, attachments = _text_of(item.output), ()
    return ChatMessage("tool", text, tool_call_id=item.call_id, attachments=attachments)


def _content(content: str | list[ResponsePart], param: str) -> tuple[str, tuple[Attachment, ...]]:
    if isinstance(content, str):
        return content, ()
    found = [_part(part, f"{param}[{number}]") for number, part in enumerate(content)]
    texts = [each for each in found if isinstance(each, str)]
    return "\n".join(texts), tuple(each for each in found if isinstance(each, Attachment))


def _part(part: ResponsePart, param: str) -> str | Attachment:
    match part.type:
        case "input_text" | "output_text" | "text" if part.text is not None:
            return part.text
        case "refusal" if part.refusal is not None:
            return part.refusal
        case "input_image" | "input_file" if part.file_id is not None:
            raise InvalidParameter("file_id is not supported: this server keeps no files", f"{param}.file_id")
        case "input_image" if part.image_url is not None:
            return Attachment(media_type_of(part.image_url, "image/*"), part.image_url)
        case "input_file":
            data = part.file_data if part.file_url is None else part.file_url
            return file_attachment(OpenAIFile(file_data=data, filename=part.filename), param)
    raise InvalidParameter(f"a part of the type {part.type!r} is not supported, or has no content", f"{param}.type")


def _tools(body: ResponseRequest) -> tuple[tuple[Tool, ...], str | None]:
    """Return the tools that the model may call, and its choice among them."""
    tools: list[Tool] = []
    for number, tool in enumerate(body.tools or ()):
        if tool.type != "function":
            note_ignored("tools", tool.type)
        elif not tool.name:
            raise InvalidParameter("a function needs a name", f"tools[{number}].name")
        else:
            tools.append(Tool(tool.name, tool.description or "", tool.parameters))
    choice = body.tool_choice
    if not isinstance(choice, ResponseToolChoice):
        return chosen_tools(tools, choice if tools or not body.tools else None)
    match choice.type:
        case "function":
            if not choice.name:
                raise missing("tool_choice.name")
            return chosen_tools(tools, named_function(choice.name, tools))
        case "allowed_tools":
            allowed = {name for each in choice.tools or () if isinstance(name := each.get("name"), str)}
            return chosen_tools(tools, choice.mode, allowed)
    note_ignored("choices of tools", choice.type)
    return chosen_tools(tools, "auto" if tools else None)


def _response_format(text: ResponseText | None) -> dict[str, Any] | None:
    """Return `text.format` as chat completions write it."""
    if text is None or text.format is None or text.format.type == "text":
        return None
    if text.format.type == "json_object":
        return {"type": "json_object"}
    schema = dict(text.format.model_extra or {})
    for name in ("name", "schema"):
        if name not in schema:
            raise InvalidParameter(f"a format of the type json_schema needs {name}", f"text.format.{name}")
    return {"type": "json_schema", "json_schema": schema}


def _extra(body: ResponseRequest) -> dict[str, Any]:
    """Return the other fields, with the names that they have in chat completions."""
    extra = dict(body.model_extra or {})
    named = {
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        "verbosity": body.text and body.text.verbosity,
    }
    return {**extra, **{name: value for name, value in named.items() if value is not None}}


def response_head(body: ResponseRequest, id: str, created_at: int) -> dict[str, Any]:
    """Return the response document of a request before anything is generated."""
    chosen = body.tool_choice
    text = body.text.model_dump(exclude_none=True) if body.text is not None else {}
    return {
        "id": id,
        "object": "response",
        "created_at": created_at,
        "status": "queued" if body.background else "in_progress",
        "background": bool(body.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None, "summary": None, **(body.reasoning.model_dump() if body.reasoning else {})},
        "store": body.stored,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": chosen.model_dump(exclude_none=True)
        if isinstance(chosen, ResponseToolChoice)
        else chosen or "auto",
        "tools": [tool.model_dump(exclude_unset=True) for tool in body.tools or ()],
        "top_p": body.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
    }


class ResponseDocument(BaseModel):
    """A response of the Responses API."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]
    model: str
    output: list[dict[str, Any]] = Field(description="Messages, reasoning, calls of tools and their results.")
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    usage: dict[str, Any] | None = Field(description="Zeros: the model does not count.")
    metadata: dict[str, str]


class ItemPage(BaseModel):
    """A part of the input of a response."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(BaseModel):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
