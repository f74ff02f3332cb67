"""Routes that list, read, rename and delete the stored conversations of a user."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field

from app_toolkit.chat.conversations import ConversationStore
from app_toolkit.chat.requests import CheckedRoute, RequestChecks, checked
from app_toolkit.chat.stored_chat import user_parameter
from app_toolkit.core.rate_limits import without_permit
from app_toolkit.errors import ChatError


class ConversationEntry(BaseModel):
    """A conversation in a list."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    title: str
    created: datetime
    updated: datetime


class StoredConversation(ConversationEntry):
    """A conversation with its messages."""

    messages: list[dict[str, Any]]
    """The messages as `useChat({messages})` takes them."""


class Rename(BaseModel):
    """The fields of a conversation that a client may change."""

    title: str = Field(min_length=1, max_length=1_000)


def conversations_router(
    store: ConversationStore, *, user: Callable[..., Any] | None = None, origins: Sequence[str] = ()
) -> APIRouter:
    """Return a router for stored conversations. Include it with a prefix, such as `/api/conversations`.

    `GET` lists the conversations of the user, the newest first (`limit`, `offset`). `GET /{id}` has the messages, as
    `useChat({messages})` takes them. `PATCH /{id}` with `{"title": ...}` renames a conversation, and `DELETE /{id}`
    deletes it. 404 if the user has no such conversation.

    Parameters:
        store: The store that `ai_sdk_router(conversations=...)` writes to.
        user: A dependency that returns the id of the user, the same as of `ai_sdk_router`. Default: all clients are one
            user.
        origins: Origins whose pages may change conversations with cookies, as of `ai_sdk_router`. Default: none.
    """
    router = APIRouter(route_class=checked(CheckedRoute, RequestChecks.of("conversations_router", origins)))
    User: Any = user_parameter(user)

    @router.get("")
    @without_permit
    async def list_conversations(
        user: User, limit: Annotated[int, Query(ge=1, le=500)] = 100, offset: Annotated[int, Query(ge=0, le=2**31)] = 0
    ) -> list[ConversationEntry]:
        with _error_responses():
            found = await store.list(user, limit=limit, offset=offset)
        return [ConversationEntry.model_validate(each) for each in found]

    @router.get("/{id:path}", responses={404: {}})
    @without_permit
    async def get_conversation(id: str, user: User) -> StoredConversation:
        with _error_responses():
            found = await store.get(user, id)
        return StoredConversation.model_validate(_known(found, id))

    @router.patch("/{id:path}", status_code=204, responses={404: {}})
    @without_permit
    async def rename_conversation(id: str, body: Rename, user: User) -> None:
        with _error_responses():
            _known(await store.rename(user, id, body.title), id)

    @router.delete("/{id:path}", status_code=204, responses={404: {}})
    @without_permit
    async def delete_conversation(id: str, user: User) -> None:
        with _error_responses():
            _known(await store.delete(user, id), id)

    return router


def _known(found: Any, id: str) -> Any:
    """Return what was found. Raises `HTTPException` 404 if it is nothing."""
    if not found:
        raise HTTPException(404, f"there is no conversation {id!r}")
    return found


@contextmanager
def _error_responses() -> Iterator[None]:
    """Raise an error of the store as `HTTPException`, so that it has its status in every app of FastAPI."""
    try:
        yield
    except ChatError as error:
        raise HTTPException(error.status, error.message) from error
