"""The requests of the Vercel AI SDK: chats of UI messages, and what a model gets of them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app_toolkit import ChatError
from app_toolkit.chat.protocol import DENIED, Attachment, ChatMessage, ChatRequest, Tool, ToolCall

RESULT_FIELDS = ("state", "output", "errorText", "approval")
"""The fields of a tool call that a client may set, if the model has not asked for an approval of the call."""


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
            messages += chat_messages(message)
        extra = {"id": self.id, "trigger": self.trigger, "messageId": self.message_id, **(self.model_extra or {})}
        return ChatRequest(
            tuple(messages),
            model=model,
            tools=tuple(_tools(self.tools)),
            extra={name: value for name, value in extra.items() if value is not None},
            approved_calls=tuple(answered_calls(self.continued, approved=True)),
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
    if not last.parts or (last.role != "assistant" and not any(chat_messages(last))):
        raise ChatError(
            "the request is not a chat: its last message has no part with a text or a file; send parts, as the AI SDK "
            'does from version 5 on: {"parts": [{"type": "text", "text": "hello"}]}'
        )
    return chat


def with_results(message: UIMessage, sent: UIMessage) -> UIMessage:
    """Return a message of the assistant with what a client adds, which is nothing but results and approvals of tools.

    Raises:
        ChatError: 409, the client answers a request for an approval that has another answer already.
    """
    calls = {part.get("toolCallId"): part for part in sent.parts if _tool_name(part) is not None}
    parts = [
        _with_result(part, calls[part.get("toolCallId")])
        if _tool_name(part) is not None and part.get("toolCallId") in calls
        else part
        for part in message.parts
    ]
    return message.model_copy(update={"parts": parts})


def _with_result(part: dict[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored call of a tool with its result or approval, as a client has sent it."""
    if "approval" not in part:
        if _result(part) is None and _result(sent) is not None:
            return part | {name: sent[name] for name in RESULT_FIELDS if name in sent}
        return part
    approval, answer = _approval(part), _approval(sent)
    if sent.get("state") != "approval-responded" or answer.get("id") != approval.get("id"):
        return part
    if part.get("state") == "approval-requested":
        if not isinstance(answer.get("approved"), bool):
            return part
        fields = {name: answer[name] for name in ("approved", "reason") if answer.get(name) is not None}
        return part | {"state": "approval-responded", "approval": {**approval, **fields}}
    is_repeated = part.get("state") in ("approval-responded", "output-denied")
    if not is_repeated or answer.get("approved") != approval.get("approved"):
        raise ChatError(
            f"the call of the tool {_tool_name(part)!r} has been answered already: load the conversation again",
            status=409,
            code="approval_answered",
        )
    return part


def answers_again(message: UIMessage, sent: UIMessage) -> bool:
    """Return whether a client answers a request for an approval in a stored message that has an answer already."""
    answered = {part.get("toolCallId") for part in message.parts if "approved" in _approval(part)}
    return any(part.get("state") == "approval-responded" and part.get("toolCallId") in answered for part in sent.parts)


def has_answer(message: UIMessage | None) -> bool:
    """Return whether a message has a call that the user has approved or denied, and whose result is not in it."""
    return any(any(answered_calls(message, approved=approved)) for approved in (True, False))


def answered_calls(message: UIMessage | None, *, approved: bool) -> Iterator[ToolCall]:
    """Yield the calls of a message that the user has approved or denied, and whose result is not in it."""
    for part in [] if message is None else message.parts:
        name = _tool_name(part)
        is_answered = part.get("state") == "approval-responded" and _approval(part).get("approved") is approved
        if name is not None and is_answered:
            yield ToolCall(str(part.get("toolCallId")), name, _arguments(part))


def open_calls(message: UIMessage | None) -> Iterator[str]:
    """Yield the ids of the calls of a message that have no result."""
    for part in [] if message is None else message.parts:
        if _tool_name(part) is not None and _result(part) is None:
            yield str(part.get("toolCallId"))


def chat_messages(message: UIMessage) -> Iterator[ChatMessage]:
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
                has_failed = part.get("state") == "output-error"
                results.append(ChatMessage("tool", result, tool_call_id=call.id, is_error=has_failed))
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
    approval = _approval(part)
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


def _approval(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a call of a tool says about its approval."""
    approval = part.get("approval")
    return approval if isinstance(approval, Mapping) else {}


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
