"""The requests of the Vercel AI SDK: chats of UI messages, and what a model gets of them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app_toolkit.chat.protocol import Attachment, ChatMessage, ChatRequest, Tool, ToolCall
from app_toolkit.errors import ChatError

RESULT_FIELDS = ("state", "output", "errorText", "approval")
"""The fields of a tool call that a client may set."""

DENIED = "The call of the tool was denied."


class UIMessage(BaseModel):
    """A message as the AI SDK keeps it: a list of parts. The parts of an unknown type are ignored."""

    model_config = ConfigDict(extra="allow")

    id: str = ""
    role: Literal["system", "user", "assistant"]
    parts: list[dict[str, Any]] = []


class UIChat(BaseModel):
    """The body of a request for a response. Other fields are passed on to the model in `ChatRequest.extra`."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    """The id of the chat."""
    messages: list[UIMessage] | None = None
    message: UIMessage | None = None
    """The last message, if the client does not send all of them."""
    trigger: str = "submit-message"
    message_id: str | None = Field(None, alias="messageId")
    model: str | None = None
    system: str | None = None
    """A system prompt, as assistant-ui sends it."""
    tools: Any = None
    """Tools that the client runs, as assistant-ui sends them: a name, and its description and parameters."""

    @property
    def conversation(self) -> Sequence[UIMessage]:
        """The messages that the client has sent."""
        if self.messages:
            return self.messages
        return [] if self.message is None else [self.message]

    @property
    def continued(self) -> UIMessage | None:
        """The message of the assistant that the response continues, which is the last one; None: there is none."""
        messages = self.conversation
        return messages[-1] if messages and messages[-1].role == "assistant" else None

    def request(self, model: str) -> ChatRequest:
        """Return what a model gets."""
        messages = [] if self.system is None else [ChatMessage("system", self.system)]
        for message in self.conversation:
            messages += _messages(message)
        extra = {"id": self.id, "trigger": self.trigger, "messageId": self.message_id, **(self.model_extra or {})}
        return ChatRequest(
            tuple(messages),
            model=model,
            tools=tuple(_tools(self.tools)),
            extra={name: value for name, value in extra.items() if value is not None},
        )


def read_chat(body: bytes) -> UIChat:
    """Return the chat of a request. Raises `ChatError` 400 if the body has none."""
    try:
        chat = UIChat.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ChatError(f"the request is not a chat: {where + ': ' if where else ''}{first['msg']}") from None
    if not chat.conversation:
        raise ChatError("the request is not a chat: it has no messages")
    last = chat.conversation[-1]
    if not last.parts or (last.role != "assistant" and not any(_messages(last))):
        raise ChatError(
            "the request is not a chat: its last message has no part with a text or a file; send parts, as the AI SDK "
            'does from version 5 on: {"parts": [{"type": "text", "text": "hello"}]}'
        )
    return chat


def accepted(chat: UIChat, stored: Sequence[UIMessage]) -> list[UIMessage]:
    """Return the messages of a stored chat after a request.

    A client adds one message of the user, which is the last one that it sends, or the results of tools that the last
    message of the model calls. The messages before are the stored ones. A message with the id of a stored one takes its
    place, and those after it are removed. If the client sends several messages, so are those after the last one that
    it knows.

    Raises:
        ChatError: The last message is neither of the user, nor a stored one of the assistant.
    """
    *before, last = chat.conversation
    numbers = {message.id: number for number, message in enumerate(stored)}
    number = numbers.get(last.id)
    if last.role == "assistant":
        if number is None or stored[number].role != "assistant":
            raise ChatError(
                f"the conversation has no message {last.id!r} of the assistant that can be continued",
                status=409,
                code="message_unknown",
            )
        return [*stored[:number], with_results(stored[number], last)]
    if last.role != "user":
        raise ChatError(f"a client cannot store a message of the role {last.role}")
    known = [numbers[message.id] for message in before if message.id in numbers]
    if number is None:
        number = max(known) + 1 if known else len(stored)
    return [*stored[:number], last]


def with_results(message: UIMessage, sent: UIMessage) -> UIMessage:
    """Return a message of the assistant with the results of tools that a client has run, and nothing else of it."""
    results = {part.get("toolCallId"): part for part in sent.parts if _result(part) is not None}
    parts = []
    for part in message.parts:
        result = results.get(part.get("toolCallId"))
        if result is not None and _tool_name(part) is not None and _result(part) is None:
            part = part | {name: result[name] for name in RESULT_FIELDS if name in result}
        parts.append(part)
    return message.model_copy(update={"parts": parts})


def open_calls(message: UIMessage | None) -> Iterator[str]:
    """Yield the ids of the calls of a message that have no result."""
    for part in [] if message is None else message.parts:
        if _tool_name(part) is not None and _result(part) is None:
            yield str(part.get("toolCallId"))


def _messages(message: UIMessage) -> Iterator[ChatMessage]:
    """Yield the messages of a model that a UI message stands for: for each step, one and the results of its tools."""
    steps: list[list[dict[str, Any]]] = [[]]
    for part in message.parts:
        if part.get("type") == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    for step in steps:
        calls, results = [], []
        for part in step:
            result = _result(part)
            # A call without a result is refused by most models.
            if result is not None and message.role == "assistant":
                call = ToolCall(str(part.get("toolCallId")), _tool_name(part) or "", _arguments(part))
                calls.append(call)
                results.append(ChatMessage("tool", result, tool_call_id=call.id))
        text, reasoning = (
            "\n".join(str(part["text"]) for part in step if part.get("type") == kind and part.get("text"))
            for kind in ("text", "reasoning")
        )
        attachments = tuple(_attachment(part) for part in step if part.get("type") == "file" and part.get("url"))
        if text or calls or attachments:
            yield ChatMessage(
                message.role,
                text,
                tool_calls=tuple(calls),
                attachments=attachments,
                reasoning=reasoning if message.role == "assistant" else "",
            )
        yield from results


def _tool_name(part: Mapping[str, Any]) -> str | None:
    """Return the name of the tool that a part is a call of; None: it is another part."""
    kind = str(part.get("type"))
    if kind == "dynamic-tool":
        return str(part.get("toolName"))
    return kind.removeprefix("tool-") if kind.startswith("tool-") else None


def _result(part: Mapping[str, Any]) -> str | None:
    """Return the result of a tool call as text; None: the part is another one, or the call has no result."""
    if _tool_name(part) is None:
        return None
    approval = part.get("approval")
    approval = approval if isinstance(approval, Mapping) else {}
    match part.get("state"):
        case "output-available":
            output = part.get("output")
            return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        case "output-error":
            return str(part.get("errorText"))
        case "output-denied":
            return str(approval.get("reason") or DENIED)
        case "approval-responded" if approval.get("approved") is False:
            return str(approval.get("reason") or DENIED)
    return None


def _arguments(part: Mapping[str, Any]) -> str:
    value = part.get("input")
    if value is None:
        value = part.get("rawInput")
    return value if isinstance(value, str) else json.dumps({} if value is None else value, ensure_ascii=False)


def _attachment(part: Mapping[str, Any]) -> Attachment:
    name = part.get("filename")
    media_type = str(part.get("mediaType") or "application/octet-stream")
    return Attachment(media_type, str(part["url"]), None if name is None else str(name))


def _tools(tools: Any) -> Iterator[Tool]:
    for name, tool in tools.items() if isinstance(tools, Mapping) else ():
        described = tool if isinstance(tool, Mapping) else {}
        parameters = described.get("parameters")
        yield Tool(
            str(name),
            str(described.get("description") or ""),
            parameters if isinstance(parameters, Mapping) else None,
        )
