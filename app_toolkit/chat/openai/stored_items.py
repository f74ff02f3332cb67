"""Items of OpenAI's Responses API as stored messages, and stored messages as items.

A message that has only text is stored as its text, so that the clients of other protocols show it. Every other item is
stored as it is, in a part of the type `data-openai-item`, beside the text and the citations that it has. A call of a
function is also a part as the AI SDK has it, which gets the result of the call when the item with the result is stored.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app_toolkit.chat.conversations import MessageRole, MessageTree, StoredMessage
from app_toolkit.chat.files import file_id_of
from app_toolkit.chat.openai.response_items import ResponseItem, ResponsePart, identified
from app_toolkit.chat.openai.response_stream import citation
from app_toolkit.chat.protocol import DocumentEvent, SourceEvent

ITEM = "data-openai-item"
"""The type of the part that has an item as it is."""

TEXTS = ("input_text", "output_text", "text")
"""The types of parts that are texts."""

ROLES: Mapping[str | None, MessageRole] = {"user": "user", "system": "system", "developer": "system"}
"""The roles of messages, other than those of the assistant."""


def stored_messages(items: Sequence[ResponseItem], tree: MessageTree, model: str | None = None) -> list[StoredMessage]:
    """Return items as messages that follow the active one. An item whose id is stored already gets another one.

    Parameters:
        items: The items.
        tree: The messages of the conversation.
        model: The name of the model that has written the items of the assistant. Default: unknown.
    """
    used = {message.id for message in tree.messages}
    messages: list[StoredMessage] = []
    parent_id = tree.active_id
    for item in items:
        named = identified(item)
        if named.id in used:
            named = identified(item.model_copy(update={"id": None}))
        id = str(named.id)
        used.add(id)
        role: MessageRole = ROLES.get(item.role, "assistant") if _is_message(item) else "assistant"
        written_by = model if role == "assistant" else None
        messages.append(StoredMessage(id, role, list(_parts(named)), parent_id=parent_id, model=written_by))
        parent_id = id
    answered = {message.id: message for message in answered_calls(items, messages)}
    return [answered.get(message.id, message) for message in messages]


def answered_calls(items: Sequence[ResponseItem], messages: Sequence[StoredMessage]) -> list[StoredMessage]:
    """Return the messages with calls that have a result among the items, with these results."""
    results = {item.call_id: _result(item) for item in items if item.type == "function_call_output"}
    answered = []
    for message in messages:
        parts = [
            {**part, **results[part["toolCallId"]]}
            if part.get("state") == "input-available" and part.get("toolCallId") in results
            else part
            for part in message.parts
        ]
        if parts != message.parts:
            answered.append(replace(message, parts=parts))
    return answered


def _result(item: ResponseItem) -> dict[str, Any]:
    """Return the result of a call as the AI SDK has it."""
    if not item.is_error:
        return {"state": "output-available", "output": item.output}
    text = item.output if isinstance(item.output, str) else json.dumps(item.output, ensure_ascii=False)
    return {"state": "output-error", "errorText": text}


def items_of(messages: Sequence[StoredMessage]) -> list[ResponseItem]:
    """Return stored messages as items. A message of another protocol is a message, and the calls of tools in it."""
    return [item for message in messages for item in _items(message)]


def _is_message(item: ResponseItem) -> bool:
    return item.type in (None, "message")


def _parts(item: ResponseItem) -> Iterator[dict[str, Any]]:
    content = [ResponsePart(type="text", text=item.content)] if isinstance(item.content, str) else item.content or []
    texts = [part for part in content if part.type in TEXTS]
    citations = [annotation for part in texts for annotation in part.annotations or ()]
    if _is_message(item):
        for part in texts:
            yield {"type": "text", "text": part.text or ""}
        for number, annotation in enumerate(citations):
            yield from _source(annotation, f"source-{number}")
    if item.type == "function_call":
        yield {
            "type": f"tool-{item.name}",
            "toolCallId": item.call_id,
            "state": "input-available",
            "input": _input(item.arguments),
        }
    if not _is_message(item) or item.role == "developer" or len(texts) != len(content) or citations:
        yield {"type": ITEM, "data": item.model_dump(exclude_none=True)}


def _source(annotation: Mapping[str, Any], id: str) -> Iterator[dict[str, Any]]:
    """Yield a citation in a text as a part of the AI SDK. `id`: of a page. Other annotations are no citations."""
    match annotation:
        case {"type": "url_citation", "url": str(url)}:
            yield {"type": "source-url", "sourceId": id, "url": url, "title": str(annotation.get("title") or url)}
        case {"type": "file_citation", "file_id": str(file_id)}:
            name = str(annotation.get("filename") or file_id)
            yield {
                "type": "source-document",
                "sourceId": file_id,
                "mediaType": "application/octet-stream",
                "title": name,
                "filename": name,
            }


def _input(arguments: Any) -> Any:
    """Return the arguments of a call as data, or as they are if they are no JSON document."""
    try:
        return json.loads(arguments)
    except (TypeError, ValueError):
        return arguments


def _items(message: StoredMessage) -> Iterator[ResponseItem]:
    for part in message.parts:
        if part.get("type") == ITEM:
            yield ResponseItem.model_validate({**part["data"], "id": message.id})
            return
    kind = "output_text" if message.role == "assistant" else "input_text"
    content: list[dict[str, Any]] = []
    calls: list[ResponseItem] = []
    for part in message.parts:
        match part.get("type"):
            case "text":
                content.append({"type": kind, "text": str(part.get("text"))})
            case "file" if message.role == "user":
                content.append(_file(part))
            case "source-url" | "source-document" if message.role == "assistant":
                if not content:
                    content.append({"type": kind, "text": ""})
                content[-1].setdefault("annotations", []).append(citation(_cited(part), len(content[-1]["text"])))
            case str() as type if "toolCallId" in part:
                calls += _calls(part, str(part.get("toolName") or type.removeprefix("tool-")))
    yield from calls
    if content or not calls:
        fields = {"type": "message", "id": message.id, "role": message.role, "content": content}
        yield ResponseItem.model_validate(fields)


def _cited(part: Mapping[str, Any]) -> SourceEvent | DocumentEvent:
    title, id = str(part.get("title") or ""), str(part.get("sourceId"))
    if part["type"] == "source-url":
        return SourceEvent(str(part.get("url")), title, id)
    return DocumentEvent(title, name=str(part.get("filename") or ""), id=id)


def _file(part: Mapping[str, Any]) -> dict[str, Any]:
    url = str(part.get("url"))
    kind = "image" if str(part.get("mediaType")).startswith("image/") else "file"
    id = file_id_of(url)
    return {"type": f"input_{kind}"} | ({f"{kind}_url": url} if id is None else {"file_id": id})


def _calls(part: Mapping[str, Any], name: str) -> Iterator[ResponseItem]:
    """Yield a call of a tool and its result, if it has one. Models refuse a call without one."""
    output = part.get("output", part.get("errorText"))
    if output is None:
        return
    call_id = str(part["toolCallId"])
    arguments = json.dumps(part.get("input") or {}, ensure_ascii=False)
    result = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    yield ResponseItem(type="function_call", id=f"fc_{call_id}", call_id=call_id, name=name, arguments=arguments)
    has_failed = True if part.get("state") == "output-error" else None
    yield ResponseItem(
        type="function_call_output", id=f"fco_{call_id}", call_id=call_id, output=result, is_error=has_failed
    )
