"""The requests of OpenAI's Responses API, and their translation to the interface of chat models."""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app_toolkit.chat.failures import InvalidParameter, missing
from app_toolkit.chat.offered_tools import chosen_tools, named_function, note_ignored
from app_toolkit.chat.openai.response_stream import APPROVAL, SERVER_LABEL
from app_toolkit.chat.openai.wire import (
    OpenAIFile,
    OpenAIObject,
    file_attachment,
    free_text_arguments,
    media_type_of,
)
from app_toolkit.chat.protocol import DENIED, Attachment, ChatMessage, ChatRequest, Role, Tool, ToolCall

LISTED_PARTS: dict[str, dict[str, Any]] = {
    "output_text": {"annotations": [], "logprobs": []},
    "input_image": {"detail": "auto"},
}
"""The fields that clients expect in parts, besides those that the request has."""

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""The limits of `metadata`, as with OpenAI: entries, and characters of a key and of a value."""

IGNORED_ITEMS = frozenset({"mcp_list_tools"})
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
    file_id: str | None = Field(default=None, description="A file of `/files`.")
    filename: str | None = None
    annotations: list[dict[str, Any]] | None = Field(default=None, description="The citations in an `output_text`.")


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
    is_error: bool | None = Field(default=None, description="Of a `function_call_output`: whether the call has failed.")
    summary: list[ResponsePart] | None = None
    server_label: str | None = Field(default=None, description="Of an `mcp_approval_request`.")
    approval_request_id: str | None = Field(default=None, description="Of an `mcp_approval_response`, or `mcp_call`.")
    approve: bool | None = Field(default=None, description="Of an `mcp_approval_response`.")
    reason: str | None = Field(default=None, description="Of an `mcp_approval_response`.")


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


class ResponseConversation(OpenAIObject):
    """The conversation whose items come before the input, and to which the input and the output are added."""

    id: str


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
    conversation: str | ResponseConversation | None = None
    prompt: Any = Field(default=None, description="Not supported.")
    include: list[str] | None = Field(default=None, description="Ignored.")
    stream_options: dict[str, Any] | None = Field(default=None, description="Ignored.")
    truncation: str | None = Field(default=None, description="Ignored.")

    @property
    def stored(self) -> bool:
        """Whether the response is kept and outlives its client."""
        return self.store is not False

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the response belongs to; None: there is none."""
        return self.conversation.id if isinstance(self.conversation, ResponseConversation) else self.conversation

    def check(self) -> None:
        """Raise `InvalidParameter` for fields that exclude each other or have no meaning here."""
        if self.background and not self.stored:
            raise InvalidParameter("a response in the background must be stored: set store to true", "background")
        if self.prompt is not None:
            raise InvalidParameter("prompt is not supported; send the messages as input", "prompt")
        if self.conversation is not None and self.previous_response_id is not None:
            raise InvalidParameter("a response continues a conversation or another response, not both", "conversation")
        for name in ("stop", "logprobs", "top_logprobs"):
            if (self.model_extra or {}).get(name):
                raise InvalidParameter(f"{name} is not supported by this route", name)
        if LOGPROBS in (self.include or ()):
            raise InvalidParameter(
                f"{LOGPROBS} is not supported: chat models do not tell the probabilities of tokens", "include"
            )
        check_metadata(self.metadata or {})


class InputTokensRequest(ResponseRequest):
    """A request of `POST /responses/input_tokens`: a request of `POST /responses` that is not sent."""

    model: str = ""
    input: str | list[ResponseItem] = []


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise `InvalidParameter` if metadata are over a limit."""
    if len(metadata) > MAX_METADATA:
        raise InvalidParameter(f"metadata has {len(metadata)} entries: it must have at most {MAX_METADATA}", "metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise InvalidParameter(
                f"metadata has a key of {len(key)} characters with a value of {len(value)}: they must have at most "
                f"{MAX_METADATA_KEY} and {MAX_METADATA_VALUE}",
                "metadata",
            )


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
    document = item.model_dump(exclude_none=True)
    if item.type in (None, "message"):
        kind = "output_text" if item.role == "assistant" else "input_text"
        parts = [{"type": kind, "text": item.content}] if isinstance(item.content, str) else document.get("content", [])
        content = [{**LISTED_PARTS.get(part["type"], {}), **part} for part in parts]
        return {**document, "type": "message", "status": "completed", "content": content}
    if item.type == "reasoning":
        return {"summary": [], **document}
    return {"status": "completed", **document}


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
            raise InvalidParameter(f"the list has no item {after!r}", "after")
    page = ordered[first : first + limit]
    return ItemPage(
        data=[listed(item) for item in page],
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
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
    items = [*earlier, *input_items(body)]
    messages = chat_messages(items, first=-len(earlier))
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
        approved_calls=approved_calls(items),
    )


def approved_calls(items: Sequence[ResponseItem]) -> tuple[ToolCall, ...]:
    """Return the calls of requests for an approval that the user has approved, and that have no result."""
    asked = _approval_requests(items)
    answered = {item.approval_request_id for item in items if item.type == "mcp_call" and _own_result(item) is not None}
    approved = {
        item.approval_request_id
        for item in items
        if item.type == "mcp_approval_response" and item.approve and item.approval_request_id not in answered
    }
    return tuple(call for id, call in asked.items() if id in approved and call is not None)


def asked_calls(items: Iterable[ResponseItem]) -> set[str]:
    """Return the ids of the calls that need an approval."""
    return {call.id for call in _approval_requests(items).values() if call is not None}


def _approval_requests(items: Iterable[ResponseItem]) -> dict[str | None, ToolCall | None]:
    """Return the calls that need an approval, by the ids of their requests. None: it is of another server."""
    return {
        item.id: ToolCall(item.id.removeprefix(APPROVAL), item.name, _text_of(item.arguments or "{}"))
        if item.id and item.name and item.server_label == SERVER_LABEL
        else None
        for item in items
        if item.type == "mcp_approval_request"
    }


def chat_messages(items: Sequence[ResponseItem], first: int = 0) -> list[ChatMessage]:
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
    asked = _approval_requests(items)
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
                approved_id = (item.approval_request_id or "").removeprefix(APPROVAL)
                id = item.call_id or approved_id or item.id or f"call_{uuid.uuid4().hex}"
                renamed = item.model_copy(update={"call_id": id})
                _add_call(messages, renamed, param)
                has_failed = item.output is None
                messages.append(ChatMessage("tool", result, tool_call_id=renamed.call_id, is_error=has_failed))
            case "mcp_approval_request":
                if asked[item.id] is None:
                    note_ignored("items", "mcp_approval_request")
                continue
            case "mcp_approval_response":
                if item.approval_request_id not in asked:
                    raise InvalidParameter(
                        f"{param} answers {item.approval_request_id!r}, which is no mcp_approval_request before it",
                        f"{param}.approval_request_id",
                    )
                call = asked[item.approval_request_id]
                if call is None or item.approve:
                    continue  # the model gets the approved calls by themselves
                denied = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
                _add_call(messages, item.model_copy(update=denied), param)
                messages.append(ChatMessage("tool", item.reason or DENIED, tool_call_id=call.id))
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
    return ChatMessage("tool", text, tool_call_id=item.call_id, attachments=attachments, is_error=bool(item.is_error))


def _content(content: str | list[ResponsePart], param: str) -> tuple[str, tuple[Attachment, ...]]:
    if isinstance(content, str):
        return content, ()
    parts = [_part(part, f"{param}[{number}]") for number, part in enumerate(content)]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts), tuple(part for part in parts if isinstance(part, Attachment))


def _part(part: ResponsePart, param: str) -> str | Attachment:
    match part.type:
        case "input_text" | "output_text" | "text" if part.text is not None:
            return part.text
        case "refusal" if part.refusal is not None:
            return part.refusal
        case "input_image" | "input_file" if part.file_id is not None:
            return file_attachment(OpenAIFile(file_id=part.file_id, filename=part.filename), param)
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
            allowed = {name for tool in choice.tools or () if isinstance(name := tool.get("name"), str)}
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
        "conversation": None if body.conversation is None else {"id": body.conversation_id},
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
