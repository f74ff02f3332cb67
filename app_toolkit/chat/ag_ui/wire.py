"""The requests of AG-UI, and what a model gets of them. It needs the extra `ag-ui`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app_toolkit import ConfigError
from app_toolkit.chat.failures import InvalidParameter
from app_toolkit.chat.protocol import DENIED, Attachment, ChatMessage, ChatRequest, Role, Tool, ToolCall

try:
    from ag_ui.core import (
        PROTOCOL_VERSION,
        AssistantMessage,
        DataSource,
        DeveloperMessage,
        FileSource,
        ReasoningMessage,
        ResumeEntry,
        SystemMessage,
        TextPart,
        ToolMessage,
        UserMessage,
    )
    from ag_ui.core import RunAgentInput as RunAgentInput
except ImportError as error:
    raise ConfigError("ag_ui_router needs the types of AG-UI: pip install 'app-toolkit[ag-ui]'") from error


@dataclass(frozen=True, slots=True)
class Run:
    """A request for a response."""

    started: dict[str, Any]
    """The event that begins the run."""
    request: ChatRequest
    denied: tuple[ChatMessage, ...]
    """The results of the calls that the user has denied. The client does not have them yet."""


def read_run(body: RunAgentInput, model: str) -> Run:
    """Return the run of a request. `model`: the name of the model.

    Raises:
        InvalidParameter: It answers an interrupt twice, or one that its messages do not have, or with another document
            than the interrupt asks for.
    """
    results = {message.tool_call_id: _result(message) for message in body.messages if isinstance(message, ToolMessage)}
    calls = {
        call.id: ToolCall(call.id, call.function.name, call.function.arguments)
        for message in body.messages
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls or ()
    }
    approved, denied = [], []
    answered: set[str] = set()
    for number, entry in enumerate(body.resume or ()):
        id = entry.interrupt_id
        if id in answered:
            raise InvalidParameter(f"the interrupt {id!r} has two answers", f"resume[{number}].interruptId")
        answered.add(id)
        if id not in calls:
            raise InvalidParameter(
                f"the interrupt {id!r} is not in messages: send the call of the tool that it concerns",
                f"resume[{number}].interruptId",
            )
        if id in results and not _is_record(results[id].text, entry):
            continue  # the client repeats its answer
        if _is_approved(entry, f"resume[{number}].payload.approved"):
            approved.append(calls[id])
        else:
            denied.append(ChatMessage("tool", _reason(entry), tool_call_id=id))
    for call in approved:
        results.pop(call.id, None)
    results |= {str(message.tool_call_id): message for message in denied}
    request = ChatRequest(
        tuple(_messages(body, results)),
        model=model,
        tools=tuple(
            Tool(tool.name, tool.description, tool.parameters if isinstance(tool.parameters, Mapping) else None)
            for tool in body.tools or ()
        ),
        extra=_extra(body),
        approved_calls=tuple(approved),
    )
    return Run(_started(body), request, tuple(denied))


def _messages(body: RunAgentInput, results: Mapping[str, ChatMessage]) -> Iterator[ChatMessage]:
    """Yield the messages of a run. The results of tools follow their calls, wherever the client has added them."""
    reasoning: list[str] = []
    for message in body.messages:
        match message:
            case ReasoningMessage():
                reasoning.append(message.content)
            case AssistantMessage():
                calls = [call for call in message.tool_calls or () if call.id in results]
                if message.content or calls:  # a call without a result is refused by most models
                    yield ChatMessage(
                        "assistant",
                        message.content or "",
                        tool_calls=tuple(
                            ToolCall(call.id, call.function.name, call.function.arguments) for call in calls
                        ),
                        reasoning="\n".join(reasoning),
                    )
                    reasoning.clear()
                yield from (results[call.id] for call in calls)
            case UserMessage():
                reasoning.clear()
                yield _content("user", message.content)
            case SystemMessage() | DeveloperMessage():
                yield ChatMessage("system", message.content)
            # A ToolMessage follows its call. An ActivityMessage is only shown to the user.


def _result(message: Any) -> ChatMessage:
    result = _content("tool", message.content, message.tool_call_id)
    return replace(result, text=result.text or message.error or "", is_error=bool(message.error))


def _content(role: Role, content: str | Sequence[Any], tool_call_id: str | None = None) -> ChatMessage:
    if isinstance(content, str):
        return ChatMessage(role, content, tool_call_id=tool_call_id)
    texts = [part.text for part in content if isinstance(part, TextPart)]
    attachments = [_attachment(part) for part in content if not isinstance(part, TextPart)]
    return ChatMessage(role, "\n".join(texts), tool_call_id=tool_call_id, attachments=tuple(attachments))


def _attachment(part: Any) -> Attachment:
    source = part.source
    media_type = source.mime_type or ("application/octet-stream" if part.type == "document" else f"{part.type}/*")
    if isinstance(source, DataSource):
        return Attachment(media_type, f"data:{media_type};base64,{source.value}")
    if isinstance(source, FileSource):
        return Attachment(media_type, "", file_id=source.value)
    return Attachment(media_type, source.value)


def _is_approved(entry: ResumeEntry, param: str) -> bool:
    """Return whether the user has approved a call. Raises `InvalidParameter`."""
    if entry.status == "cancelled":
        return False
    approved = entry.payload.get("approved") if isinstance(entry.payload, Mapping) else entry.payload
    if not isinstance(approved, bool):
        raise InvalidParameter(f"the field {param} must be true or false, not {json.dumps(approved)[:100]}", param)
    return approved


def _is_record(result: str, entry: ResumeEntry) -> bool:
    """Return whether the result of a call is the answer of its user, which CopilotKit adds to the messages."""
    answer = {"status": "cancelled"} if entry.status == "cancelled" else entry.payload
    try:
        return bool(json.loads(result) == answer)
    except (ValueError, RecursionError):
        return False


def _reason(entry: ResumeEntry) -> str:
    reason = entry.payload.get("reason") if isinstance(entry.payload, Mapping) else None
    return reason if isinstance(reason, str) and reason else DENIED


def _started(body: RunAgentInput) -> dict[str, Any]:
    started = {"type": "RUN_STARTED", "threadId": body.thread_id, "runId": body.run_id}
    parent = {} if body.parent_run_id is None else {"parentRunId": body.parent_run_id}
    return {**started, "protocolVersion": PROTOCOL_VERSION, **parent}


def _extra(body: RunAgentInput) -> dict[str, Any]:
    """Return the other fields of a run, with the names of the protocol."""
    fields = {"thread_id", "run_id", "parent_run_id", "state", "context", "forwarded_props"}
    extra: dict[str, Any] = body.model_dump(by_alias=True, include=fields, exclude_none=True)
    return extra | (body.model_extra or {})
