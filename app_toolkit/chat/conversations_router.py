"""Routes that list, read, change and delete the stored conversations of a user."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field

from app_toolkit import ChatError
from app_toolkit.chat.ai_sdk.placement import ui_document
from app_toolkit.chat.conversations import Conversation, ConversationStore, Feedback
from app_toolkit.chat.filed_conversations import FiledConversations
from app_toolkit.chat.files import FileStore
from app_toolkit.chat.requests import CheckedRoute, RequestChecks, checked
from app_toolkit.chat.users import user_parameter
from app_toolkit.streaming import without_permit

MAX_COMMENT = 10_000
"""Characters of a comment in a feedback."""


class ConversationEntry(BaseModel):
    """A conversation in a list."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    title: str
    created: datetime
    updated: datetime


class MessageFeedback(BaseModel):
    """What a user thinks of a message."""

    model_config = ConfigDict(from_attributes=True)

    rating: Literal["good", "bad"]
    comment: str = Field("", max_length=MAX_COMMENT)


class MessageEntry(BaseModel):
    """A message as `useChat({messages})` takes it, and its place in the conversation."""

    model_config = ConfigDict(extra="allow")

    id: str
    role: str
    parts: list[dict[str, Any]]
    parent_id: str | None
    siblings: list[str]
    """The messages with the same parent and role, the oldest first. This message is one of them."""
    created: datetime | None
    model: str | None
    feedback: MessageFeedback | None


class ConversationEntries(ConversationEntry):
    """A conversation with messages."""

    active_id: str | None
    messages: list[MessageEntry]


class MessageRating(BaseModel):
    """The feedback to a message; without one, it is removed."""

    message_id: str
    feedback: MessageFeedback | None


class Change(BaseModel):
    """What a client may change of a conversation. Fields that are not set stay."""

    title: str | None = Field(None, min_length=1, max_length=1_000)
    active_id: str | None = None
    """A message, whose newest branch becomes the active one."""
    rating: MessageRating | None = None


def conversations_router(
    store: ConversationStore,
    *,
    files: FileStore | None = None,
    user: Callable[..., Any] | None = None,
    origins: Sequence[str] = (),
) -> APIRouter:
    """Return a router for stored conversations. Include it with a prefix, such as `/api/conversations`.

    `GET` lists the conversations of the user, the newest first (`limit`, `offset`); with `search`, those that have all
    of its words. `GET /{id}` has the messages of the active branch, as `useChat({messages})` takes them, each with the
    ids of its siblings; with `all=true`, those of all branches. `PATCH /{id}` changes the `title`, makes the newest
    branch of the message `active_id` the active one, or sets the feedback to a message with `rating`. `DELETE /{id}`
    deletes a conversation. 404 if the user has no such conversation, or it has no such message.

    Parameters:
        store: The store that `ai_sdk_router(conversations=...)` writes to.
        files: The files of the other routers. Those to which no other conversation of the user refers are deleted with
            a conversation. Default: none are deleted.
        user: A dependency that returns the id of the user, the same as of `ai_sdk_router`. Default: the name
            of the API key that `api_keys` has checked; without keys, all clients are one user.
        origins: Origins whose pages may change conversations with cookies, as of `ai_sdk_router`. Default: none.
    """
    router = APIRouter(route_class=checked(CheckedRoute, RequestChecks.of("conversations_router", origins)))
    User: Any = user_parameter(user)
    deleting = store if files is None else FiledConversations(store, files)

    @router.get("")
    @without_permit
    async def list_conversations(
        user: User,
        search: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    ) -> list[ConversationEntry]:
        with _error_responses():
            summaries = await store.list(user, search=search, limit=limit, offset=offset)
        return [ConversationEntry.model_validate(summary) for summary in summaries]

    @router.get("/{id:path}", responses={404: {}})
    @without_permit
    async def get_conversation(id: str, user: User, all: bool = False) -> ConversationEntries:
        with _error_responses():
            conversation = await store.get(user, id)
        if conversation is None:
            raise _missing(id)
        return _entries(conversation, all)

    @router.patch("/{id:path}", status_code=204, responses={404: {}})
    @without_permit
    async def change_conversation(id: str, body: Change, user: User) -> None:
        with _error_responses():
            if body.title is not None and not await store.rename(user, id, body.title):
                raise _missing(id)
            if body.active_id is not None:
                await _activate(store, user, id, body.active_id)
            if body.rating is not None:
                sent = body.rating.feedback
                feedback = None if sent is None else Feedback(sent.rating, sent.comment)
                if not await store.rate(user, id, body.rating.message_id, feedback):
                    raise _missing(id, body.rating.message_id)

    @router.delete("/{id:path}", status_code=204, responses={404: {}})
    @without_permit
    async def delete_conversation(id: str, user: User) -> None:
        with _error_responses():
            if not await deleting.delete(user, id):
                raise _missing(id)

    return router


async def _activate(store: ConversationStore, user: str, id: str, message_id: str) -> None:
    """Make the newest branch that has a message the active one. Raises `HTTPException` 404."""
    conversation = await store.get(user, id)
    if conversation is None or conversation.tree.find(message_id) is None:
        raise _missing(id, message_id)
    await store.activate(user, id, conversation.tree.newest_end(message_id))


def _entries(conversation: Conversation, all: bool) -> ConversationEntries:
    tree = conversation.tree
    siblings = tree.siblings()
    messages = [
        MessageEntry(
            **ui_document(message),
            parent_id=message.parent_id,
            siblings=[sibling.id for sibling in siblings[message.id]],
            created=message.created,
            model=message.model,
            feedback=None if message.feedback is None else MessageFeedback.model_validate(message.feedback),
        )
        for message in (tree.messages if all else tree.active_branch)
    ]
    summary = ConversationEntry.model_validate(conversation)
    return ConversationEntries(**summary.model_dump(), active_id=tree.active_id, messages=messages)


def _missing(id: str, message_id: str | None = None) -> HTTPException:
    of_message = "" if message_id is None else f" with a message {message_id!r}"
    return HTTPException(404, f"there is no conversation {id!r}{of_message}")


@contextmanager
def _error_responses() -> Iterator[None]:
    """Raise an error of the store as `HTTPException`, so that it has its status in every app of FastAPI."""
    try:
        yield
    except ChatError as error:
        raise HTTPException(error.status, error.message) from error
