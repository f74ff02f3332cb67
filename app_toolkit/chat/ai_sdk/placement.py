"""Where a request of the AI SDK continues a stored conversation, and what it adds to it."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app_toolkit import ChatError
from app_toolkit.chat.ai_sdk.messages import UIChat, UIMessage, with_results
from app_toolkit.chat.conversations import MessageTree, StoredMessage


@dataclass(frozen=True, slots=True)
class Placement:
    """What a request does to a conversation."""

    before: Sequence[StoredMessage]
    """The messages of the branch before the last one."""
    last: StoredMessage
    """The message that the model answers or continues."""
    is_new: bool
    """Whether the store does not have it as it is."""


def placed(chat: UIChat, tree: MessageTree) -> Placement:
    """Return where a request continues a conversation.

    A client adds one message of the user, which is the last one that it sends, or the results of tools that a stored
    message of the model calls. The messages before are the stored ones.

    - A new message follows the last message before it that is stored; without one, the active message. If `messages`
      has no message before it, it begins a branch. If the client names a stored message as `messageId`, the new one is
      its sibling.
    - A message with the id of a stored one and the same content asks for another response.
    - With another content, it is an edit: a sibling with an id of its own. The client may keep the id of the first one.

    Raises:
        ChatError: 400, the last message is not of the user; 409, it is of the assistant and not stored.
    """
    *earlier, sent = chat.conversation
    stored = {message.id: message for message in tree.messages}
    if sent.role == "assistant":
        continued = stored.get(sent.id)
        if continued is None or continued.role != "assistant":
            raise ChatError(
                f"the conversation has no message {sent.id!r} of the assistant that can be continued",
                status=409,
                code="message_unknown",
            )
        parts = with_results(UIMessage(**ui_document(continued)), sent).parts
        return Placement(tree.branch(continued.parent_id), replace(continued, parts=parts), True)
    if sent.role != "user":
        raise ChatError(f"a client cannot store a message of the role {sent.role}")
    siblings = tree.siblings()
    repeated = _with_content(sent, siblings.get(sent.id, ()))
    if repeated is not None:
        return Placement(tree.branch(repeated.parent_id), repeated, False)
    replaced = stored.get(sent.id) or stored.get(chat.message_id or "")
    if replaced is not None:
        parent_id = replaced.parent_id
    else:
        stored_messages = [message for message in earlier if message.id in stored]
        parent = None
        if stored_messages:
            parent = (
                _with_content(stored_messages[-1], siblings[stored_messages[-1].id]) or stored[stored_messages[-1].id]
            )
        default_id = None if chat.messages is not None and not earlier else tree.active_id
        parent_id = default_id if parent is None else parent.id
    id = sent.id if sent.id and sent.id not in stored else f"msg_{secrets.token_urlsafe(12)}"
    metadata = (sent.model_extra or {}).get("metadata")
    last = StoredMessage(
        id, "user", sent.parts, parent_id=parent_id, metadata=metadata if isinstance(metadata, Mapping) else {}
    )
    return Placement(tree.branch(parent_id), last, True)


def ui_document(message: StoredMessage) -> dict[str, Any]:
    """Return a message as the AI SDK has it."""
    metadata = dict(message.metadata)
    if message.usage is not None:
        metadata["usage"] = message.usage
    document = {"id": message.id, "role": message.role, "parts": list(message.parts)}
    return document | ({"metadata": metadata} if metadata else {})


def _with_content(sent: UIMessage, siblings: Sequence[StoredMessage]) -> StoredMessage | None:
    """Return the newest of several messages that has the role and the parts of a message; None: there is none.

    A message with the same id is preferred.
    """
    same = [message for message in siblings if message.role == sent.role and list(message.parts) == sent.parts]
    return next((message for message in same if message.id == sent.id), same[-1] if same else None)
