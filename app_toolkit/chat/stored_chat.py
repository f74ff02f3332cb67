"""How a router stores the chats that it serves."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, overload

from fastapi import Depends

from app_toolkit import ChatError
from app_toolkit.chat.ai_sdk.logged import LoggedResponse
from app_toolkit.chat.ai_sdk.messages import UIChat, UIMessage, answers_again
from app_toolkit.chat.ai_sdk.placement import placed, ui_document
from app_toolkit.chat.ai_sdk.record import MessageRecord, Part
from app_toolkit.chat.catalog import sources_parameter
from app_toolkit.chat.conversations import ConversationStore, MessageTree, StoredMessage
from app_toolkit.chat.filed_conversations import FiledConversations, filed
from app_toolkit.chat.files import FileStore
from app_toolkit.chat.titles import TitledStore
from app_toolkit.chat.to_the_end import to_its_end
from app_toolkit.chat.users import user_parameter

logger = logging.getLogger("app_toolkit.chat")


class UserChats:
    """The chats of one user."""

    def __init__(self, store: ConversationStore | None, user: str) -> None:
        self._store = store
        self._user = user

    def find(self, id: str | None, model: str | None = None) -> "StoredChat | None":
        """Return a chat; None: chats are not stored, or this one has no id.

        `model`: the name of the model that responds now.
        """
        if self._store is None or not id:
            return None
        return StoredChat(self._store, self._user, id, model)

    @overload
    def key(self, id: str) -> str: ...
    @overload
    def key(self, id: None) -> None: ...
    def key(self, id: str | None) -> str | None:
        """Return the key that the streams of a chat have in the stream log, which all users and routers share."""
        return None if id is None else f"chat:{json.dumps([self._user, id])}"


def stored_parameter(
    conversations: ConversationStore | None, files: FileStore | None, user: Callable[..., Any] | None
) -> Any:
    """Return the annotation of a route's parameter that is the chats of the user.

    The model that writes the titles becomes a dependency of the route, so that the planner finds its deployment.
    """
    store = filed(conversations, files)
    sources = {"title": conversations.model} if isinstance(conversations, TitledStore) else {}
    models: Any = sources_parameter(sources, dict)

    async def own_chats(user: user_parameter(user), _: models) -> UserChats:  # type: ignore[valid-type]
        return UserChats(store, user)

    return Annotated[UserChats, Depends(own_chats)]


class StoredChat:
    """One chat of one user in a store, while a response is generated."""

    def __init__(self, store: ConversationStore, user: str, id: str, model: str | None = None) -> None:
        self._store = store
        self._user = user
        self._id = id
        self._model = model
        self.question_id: str | None = None
        """The message that the response answers, or continues."""

    async def begin(self, chat: UIChat) -> UIChat:
        """Store what a request adds to the chat. Return the chat with the messages of its branch.

        Raises:
            ChatError: The request has no message that a client may store, or the store refuses it, or fails.
        """
        placement = placed(await self._filed(chat), await self._tree())
        last = placement.last
        if placement.is_new:
            await self._store.write(self._user, self._id, last, create=True)
        else:
            await self._store.activate(self._user, self._id, last.id)
        self.question_id = last.id
        messages = [UIMessage(**ui_document(message)) for message in (*placement.before, last)]
        return chat.model_copy(update={"messages": messages, "message": None})

    async def begin_again(self, chat: UIChat, question_id: str, response_id: str) -> UIChat | None:
        """Return the chat of a response whose process has died, with the messages of its branch.

        None: the response is stored already, or the chat does not have its question any more.
        """
        tree = await self._tree()
        if tree.find(question_id) is None or tree.find(response_id) is not None:
            return None
        self.question_id, self._model = question_id, chat.model
        messages = [UIMessage(**ui_document(message)) for message in tree.branch(question_id)]
        return chat.model_copy(update={"messages": messages})

    async def repeats_answer(self, chat: UIChat) -> bool:
        """Return whether a request answers a request for an approval that has an answer in the store."""
        sent = chat.continued
        stored = None if sent is None else (await self._tree()).find(sent.id)
        return sent is not None and stored is not None and answers_again(UIMessage(**ui_document(stored)), sent)

    async def end(self, record: MessageRecord, *, is_lost: bool = False) -> None:
        """Store a response, also if the caller is cancelled meanwhile. A failure is logged.

        `is_lost`: the log accepts nothing more. Another process may have continued the response: what it has stored
        stays. Default: False.
        """
        if not record.is_empty:
            await to_its_end(self._write(record, is_lost))

    async def recover(self, logged: LoggedResponse, last: Sequence[Part]) -> None:
        """Store a response whose process has died, as far as the log has it. A failure is logged.

        Nothing is stored if the log has evicted its first events, or if its process has stored the response before: its
        log had failed, or had taken it for dead.

        Parameters:
            logged: What the log has of the response.
            last: The parts with which it ends now.
        """
        if logged.model is None or not logged.parts or logged.parts[0]["type"] != "start":
            return
        try:
            stored = (await self._tree()).find(logged.parts[0]["messageId"])
        except Exception:  # of a store of the user's own
            logger.exception("a response of the chat %r was not stored", self._id)
            return
        earlier = () if stored is None else stored.parts
        if len(earlier) > logged.continued or (stored is not None and stored.metadata.get("error")):
            return
        record = MessageRecord(earlier)
        for part in (*logged.parts, *last):
            record.add(part)
        # A chat of its own, because this one may store another response next.
        lost = StoredChat(self._store, self._user, self._id, logged.model)
        lost.question_id = logged.question_id
        await lost.end(record)

    async def _filed(self, chat: UIChat) -> UIChat:
        """Return a chat whose messages refer to their files, as the stored ones do. Raises `ChatError`."""
        store = self._store
        if not isinstance(store, FiledConversations):
            return chat
        # In a thread, because it decodes and hashes the content of each file.
        parts = [await asyncio.to_thread(store.as_stored, self._user, message.parts) for message in chat.conversation]
        last = chat.conversation[-1]
        if last.role == "user":
            parts[-1] = [await store.moved(self._user, part) for part in last.parts]
        messages = [
            message.model_copy(update={"parts": filed}) for message, filed in zip(chat.conversation, parts, strict=True)
        ]
        return chat.model_copy(update={"messages": messages} if chat.messages else {"message": messages[0]})

    async def _tree(self) -> MessageTree:
        conversation = await self._store.get(self._user, self._id)
        return MessageTree() if conversation is None else conversation.tree

    async def _write(self, record: MessageRecord, is_lost: bool) -> None:
        try:
            message = replace(response_of(record), parent_id=self.question_id, model=self._model)
            if is_lost and message.id != self.question_id and (await self._tree()).find(message.id) is not None:
                return
            await self._store.write(self._user, self._id, message, activate=False)
        except ChatError as error:
            logger.warning("a response of the chat %r was not stored: %s", self._id, error)
        except Exception:  # of a store of the user's own
            logger.exception("a response of the chat %r was not stored", self._id)


def response_of(record: MessageRecord) -> StoredMessage:
    """Return a response as the store keeps it."""
    document = record.message()
    metadata = document.get("metadata", {})
    usage = metadata.pop("usage", None)
    return StoredMessage(document["id"], "assistant", document["parts"], metadata=metadata, usage=usage)
