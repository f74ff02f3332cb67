"""The routes of OpenAI's Conversations API, whose items are the active branch of a stored conversation."""

import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from app_toolkit import ChatError
from app_toolkit.chat.conversations import Conversation, ConversationStore, MessageTree
from app_toolkit.chat.failures import InvalidParameter
from app_toolkit.chat.openai.response_items import (
    ItemPage,
    ResponseItem,
    chat_messages,
    check_metadata,
    listed,
    page_of,
)
from app_toolkit.chat.openai.stored_items import answered_calls, items_of, stored_messages
from app_toolkit.chat.users import user_parameter
from app_toolkit.streaming import without_permit

MAX_ITEMS = 20
"""Items that a request may add, as with OpenAI."""


class ConversationDocument(BaseModel):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int = Field(description="Seconds since 1970.")
    metadata: dict[str, str]


class DeletedConversation(BaseModel):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class ConversationUpdate(BaseModel):
    metadata: dict[str, str] | None = None


class AddedItems(BaseModel):
    items: list[ResponseItem] = Field(max_length=MAX_ITEMS)


class ConversationRequest(ConversationUpdate):
    """A request of `POST /conversations`."""

    items: list[ResponseItem] | None = Field(None, max_length=MAX_ITEMS)


class ItemConversations:
    """The conversations of one user, as items."""

    def __init__(self, store: ConversationStore | None, user: str) -> None:
        """Name the user. `store` None: no conversations are stored."""
        self._store = store
        self._user = user

    async def find(self, id: str) -> Conversation:
        """Return a conversation. Raises `ChatError` 404, or `InvalidParameter` if none are stored."""
        conversation = await self.store.get(self._user, id)
        if conversation is None:
            raise self._missing(id)
        return conversation

    async def items(self, id: str) -> list[ResponseItem]:
        """Return the items of the active branch of a conversation. Raises `ChatError` 404."""
        return items_of((await self.find(id)).tree.active_branch)

    async def create(self, body: ConversationRequest) -> Conversation:
        """Create a conversation."""
        check_metadata(body.metadata or {})
        chat_messages(body.items or ())
        id = f"conv_{uuid.uuid4().hex}"
        messages = stored_messages(body.items or (), MessageTree())
        await self.store.write(self._user, id, *messages, create=True)
        if body.metadata:
            await self.store.annotate(self._user, id, body.metadata)
        return await self.find(id)

    async def add(self, id: str, items: list[ResponseItem], model: str | None = None) -> list[ResponseItem]:
        """Add items at the end of the active branch, and return them with their ids.

        `model`: the name of the model that has written those of the assistant.

        Raises:
            ChatError: 404, there is no such conversation; 413, it is too long.
            InvalidParameter: An item has a type or a part that cannot be used.
        """
        tree = (await self.find(id)).tree
        before = items_of(tree.active_branch)
        chat_messages([*before, *items], first=-len(before))
        messages = stored_messages(items, tree, model)
        if not await self.store.write(self._user, id, *answered_calls(items, tree.active_branch), *messages):
            raise self._missing(id)
        return items_of(messages)

    async def update(self, id: str, metadata: dict[str, str]) -> Conversation:
        """Set the metadata of a conversation. Raises `ChatError` 404."""
        check_metadata(metadata)
        if not await self.store.annotate(self._user, id, metadata):
            raise self._missing(id)
        return await self.find(id)

    async def remove(self, id: str, item_id: str) -> Conversation:
        """Remove an item. Raises `ChatError` 404."""
        if not await self.store.remove(self._user, id, item_id):
            raise _no_item(id, item_id)
        return await self.find(id)

    async def delete(self, id: str) -> None:
        """Delete a conversation. Raises `ChatError` 404."""
        if not await self.store.delete(self._user, id):
            raise self._missing(id)

    @property
    def store(self) -> ConversationStore:
        """The store. Raises `InvalidParameter` if there is none."""
        if self._store is None:
            raise InvalidParameter("this server stores no conversations; send the messages as input", "conversation")
        return self._store

    def _missing(self, id: str) -> ChatError:
        return ChatError(f"the conversation {id!r} does not exist", status=404, code="not_found")


def _no_item(id: str, item_id: str) -> ChatError:
    return ChatError(f"the conversation {id!r} has no item {item_id!r}", status=404, code="not_found")


def conversations_parameter(store: ConversationStore | None, user: Callable[..., Any] | None) -> Any:
    """Return the annotation of a route's parameter that is the conversations of the user."""

    async def of_user(user: user_parameter(user)) -> ItemConversations:  # type: ignore[valid-type]
        return ItemConversations(store, user)

    return Annotated[ItemConversations, Depends(of_user)]


def add_conversations(router: APIRouter, conversations_of: Any) -> None:
    """Add the routes of the Conversations API to a router.

    Parameters:
        router: The router.
        conversations_of: Annotation of a parameter that is the conversations of the user.
    """
    _add_conversation(router, conversations_of)
    _add_items(router, conversations_of)


def _add_conversation(router: APIRouter, conversations_of: Any) -> None:
    @router.post("/conversations")
    @without_permit
    async def create_conversation(body: ConversationRequest, conversations: conversations_of) -> ConversationDocument:
        return _document(await conversations.create(body))

    @router.get("/conversations/{conversation_id}")
    @without_permit
    async def get_conversation(conversation_id: str, conversations: conversations_of) -> ConversationDocument:
        return _document(await conversations.find(conversation_id))

    @router.post("/conversations/{conversation_id}")
    @without_permit
    async def update_conversation(
        conversation_id: str, body: ConversationUpdate, conversations: conversations_of
    ) -> ConversationDocument:
        return _document(await conversations.update(conversation_id, body.metadata or {}))

    @router.delete("/conversations/{conversation_id}")
    @without_permit
    async def delete_conversation(conversation_id: str, conversations: conversations_of) -> DeletedConversation:
        await conversations.delete(conversation_id)
        return DeletedConversation(id=conversation_id)


def _add_items(router: APIRouter, conversations_of: Any) -> None:
    path = "/conversations/{conversation_id}/items"

    @router.post(path)
    @without_permit
    async def create_items(conversation_id: str, body: AddedItems, conversations: conversations_of) -> ItemPage:
        items = await cast(ItemConversations, conversations).add(conversation_id, body.items)
        return page_of(items, len(items), "asc", None)

    @router.get(path)
    @without_permit
    async def list_items(
        conversation_id: str,
        conversations: conversations_of,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> ItemPage:
        return page_of(await conversations.items(conversation_id), limit, order, after)

    @router.get(path + "/{item_id}")
    @without_permit
    async def get_item(conversation_id: str, item_id: str, conversations: conversations_of) -> dict[str, Any]:
        for item in await cast(ItemConversations, conversations).items(conversation_id):
            if item.id == item_id:
                return listed(item)
        raise _no_item(conversation_id, item_id)

    @router.delete(path + "/{item_id}")
    @without_permit
    async def delete_item(conversation_id: str, item_id: str, conversations: conversations_of) -> ConversationDocument:
        return _document(await conversations.remove(conversation_id, item_id))


def _document(conversation: Conversation) -> ConversationDocument:
    created_at = int(conversation.created.timestamp())
    return ConversationDocument(id=conversation.id, created_at=created_at, metadata=dict(conversation.metadata))
