"""How a router stores the chats that it serves."""

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, TypeVar, overload

from fastapi import Depends, HTTPException

from app_toolkit.chat.ai_sdk.messages import UIChat, UIMessage, accepted
from app_toolkit.chat.ai_sdk.record import MessageRecord, Part
from app_toolkit.chat.conversations import ConversationStore
from app_toolkit.errors import ChatError, ConfigError

logger = logging.getLogger("app_toolkit.chat")

Result = TypeVar("Result")

DEFAULT_USER = "default"
"""The user of all chats if a router has no dependency that returns one."""


def user_parameter(user: Callable[..., Any] | None) -> Any:
    """Return the annotation of a route's parameter that is the id of the user. A request with an empty id gets 403."""
    if user is None:
        return Annotated[str, Depends(default_user)]

    async def checked(found: Annotated[Any, Depends(user)]) -> str:
        if not isinstance(found, str):
            raise ConfigError(f"the dependency `user` has returned {found!r}: it must return a string")
        if not found:  # for example an empty header: the client is at fault, and must not get the chats of others
            raise HTTPException(403, "the request names no user")
        return found

    return Annotated[str, Depends(checked)]


async def default_user() -> str:
    """Return the user of an application without users."""
    return DEFAULT_USER


class UserChats:
    """The chats of one user."""

    def __init__(self, store: ConversationStore | None, user: str | None) -> None:
        """Name the user. None: all clients are one user."""
        self._store = store
        self._user = user

    def find(self, id: str | None) -> "StoredChat | None":
        """Return a chat; None: chats are not stored, or this one has no id."""
        return None if self._store is None or not id else StoredChat(self._store, self._user or DEFAULT_USER, id)

    @overload
    def key(self, id: str) -> str: ...
    @overload
    def key(self, id: None) -> None: ...
    def key(self, id: str | None) -> str | None:
        """Return the key that the streams of a chat have in the stream log, which all users and routers share."""
        return None if id is None else f"chat:{json.dumps([self._user, id])}"


def stored_parameter(store: ConversationStore | None, user: Callable[..., Any] | None) -> Any:
    """Return the annotation of a route's parameter that is the chats of the user."""
    if user is None:

        async def shared_chats() -> UserChats:
            return UserChats(store, None)

        return Annotated[UserChats, Depends(shared_chats)]

    async def own_chats(user: user_parameter(user)) -> UserChats:  # type: ignore[valid-type]
        return UserChats(store, user)

    return Annotated[UserChats, Depends(own_chats)]


class StoredChat:
    """One chat of one user in a store, while a response is generated."""

    def __init__(self, store: ConversationStore, user: str, id: str) -> None:
        self._store = store
        self._user = user
        self._id = id

    async def begin(self, chat: UIChat) -> UIChat:
        """Store what a request adds to the chat. Return the chat with all of its messages.

        Raises:
            ChatError: The request has no message that a client may store, or the store refuses it, or fails.
        """
        last = chat.conversation[-1]
        last.id = last.id or f"msg_{secrets.token_urlsafe(12)}"
        conversation = await self._store.get(self._user, self._id)
        stored = () if conversation is None else conversation.messages
        messages = accepted(chat, [UIMessage.model_validate(each) for each in stored])
        kept, added = len(messages) - 1, _document(messages[-1])
        if kept < len(stored) and stored[kept]["id"] != added["id"]:
            await self._store.replace(self._user, self._id, [*stored[:kept], added])
        else:
            await self._store.append(self._user, self._id, added, create=True)
        return chat.model_copy(update={"messages": messages, "message": None})

    async def end(self, record: MessageRecord) -> None:
        """Store a response, also if the caller is cancelled meanwhile. A failure is logged."""
        if not record.is_empty:
            await to_its_end(self._append(record))

    async def recover(self, parts: Sequence[Part]) -> None:
        """Store a response whose process has died, as far as its parts are known. A failure is logged.

        Nothing is stored if the first part is missing, because the log has evicted it, or if its process has stored the
        response before: its log had failed, or had taken it for dead.
        """
        if not parts or parts[0]["type"] != "start":
            return
        try:
            conversation = await self._store.get(self._user, self._id)
        except Exception:  # of a store of the user's own
            logger.exception("a response of the chat %r was not stored", self._id)
            return
        messages = () if conversation is None else conversation.messages
        stored: Mapping[str, Any] = next((each for each in messages if each["id"] == parts[0]["messageId"]), {})
        if (stored.get("metadata") or {}).get("error"):
            return
        earlier = stored.get("parts", [])
        record = MessageRecord(earlier)
        for part in parts:
            record.add(part)
        added = record.message()["parts"][len(earlier) :]
        if not added or earlier[-len(added) :] != added:
            await self.end(record)

    async def _append(self, record: MessageRecord) -> None:
        try:
            await self._store.append(self._user, self._id, record.message())
        except ChatError as error:
            logger.warning("a response of the chat %r was not stored: %s", self._id, error)
        except Exception:  # of a store of the user's own
            logger.exception("a response of the chat %r was not stored", self._id)


def _document(message: UIMessage) -> dict[str, Any]:
    return message.model_dump(exclude_unset=True) | {"id": message.id}


async def to_its_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`, and wait for its end although the caller is cancelled, also several times."""
    task = asyncio.create_task(work, name="app-toolkit chat storage")
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
