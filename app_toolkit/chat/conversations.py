"""Conversations: trees of messages, which a store keeps for each user.

A message has a parent, and its siblings are the other messages with the same parent. An edited question is a sibling of
the first one, and a repeated response is a sibling of the earlier one, so nothing is deleted. The active message is the
end of the branch that clients show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from app_toolkit import ChatError, ConfigError

UNTITLED = "New conversation"
TITLE_LENGTH = 80
"""Characters of a title."""

MAX_ID_LENGTH = 200
"""Characters of the id of a conversation, a message or a user."""

MessageRole = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a user thinks of a message."""

    rating: Literal["good", "bad"]
    comment: str = ""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a conversation."""

    id: str
    role: MessageRole
    parts: Sequence[Mapping[str, Any]]
    """The content as JSON objects with a `type`, as in a UI message of the AI SDK."""
    parent_id: str | None = None
    """The message before this one; None: it begins a branch."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Further facts as JSON: `incomplete` and `error` of a response that did not end by itself."""
    model: str | None = None
    """The name of the model that wrote the message; None: a user wrote it."""
    usage: Mapping[str, int] | None = None
    """The tokens of the response, with the names of the AI SDK."""
    created: datetime | None = None
    """When the message was added. The store sets it."""
    feedback: Feedback | None = None


@dataclass(frozen=True, slots=True)
class MessageTree:
    """The messages of a conversation."""

    messages: tuple[StoredMessage, ...] = ()
    """The messages of all branches, in the order in which they were added. A parent is before its children."""
    active_id: str | None = None
    """The last message of the active branch; None: there are no messages."""

    @property
    def active_branch(self) -> tuple[StoredMessage, ...]:
        """The messages that clients show, the first one first."""
        return self.branch(self.active_id)

    def find(self, id: str | None) -> StoredMessage | None:
        """Return a message; None: there is no message with this id."""
        return next((message for message in self.messages if message.id == id), None)

    def branch(self, last_id: str | None) -> tuple[StoredMessage, ...]:
        """Return the messages from the first one to one of them. None: no messages."""
        messages = {message.id: message for message in self.messages}
        branch: list[StoredMessage] = []
        while last_id is not None:
            branch.append(messages[last_id])
            last_id = branch[-1].parent_id
        return tuple(reversed(branch))

    def siblings(self) -> Mapping[str, Sequence[StoredMessage]]:
        """Return the messages with the same parent and role by the id of each of them, the oldest first."""
        families: dict[tuple[str | None, str], list[StoredMessage]] = {}
        for message in self.messages:
            families.setdefault((message.parent_id, message.role), []).append(message)
        return {message.id: family for family in families.values() for message in family}

    def newest_end(self, id: str) -> str:
        """Return the last message of the newest branch that has a message."""
        below, end = {id}, id
        for message in self.messages:
            if message.parent_id in below:
                below.add(message.id)
                end = message.id
        return end


@dataclass(frozen=True, slots=True)
class Summary:
    """A conversation without its messages."""

    id: str
    title: str
    created: datetime
    updated: datetime
    """When a message was added, or the title was changed."""


@dataclass(frozen=True, slots=True)
class Conversation(Summary):
    """A conversation."""

    tree: MessageTree
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What clients of OpenAI's API have attached to the conversation."""


@dataclass(frozen=True, slots=True)
class ConversationLimits:
    """The limits of a conversation store."""

    max_conversations: int = 1_000
    """Conversations of one user."""
    max_messages: int = 2_000
    """Messages of one conversation, in all branches."""
    max_bytes: int = 8 * 2**20
    """Bytes of all messages of one conversation, as JSON in UTF-8."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigError(f"ConversationLimits: {name} = {getattr(self, name)!r}: must be 1 or above")


class ConversationStore(Protocol):
    """Keeps the conversations of each user. All methods may raise `ChatError`, which carries an HTTP status."""

    async def list(self, user: str, *, search: str = "", limit: int = 100, offset: int = 0) -> Sequence[Summary]:
        """Return conversations of a user, the one that changed last first.

        Parameters:
            user: The id of the user.
            search: Words, each of which is in the title or in the text of a message. Default: all conversations.
            limit: The maximum number of conversations. Default: 100.
            offset: How many conversations to leave out at the beginning. Default: 0.
        """

    async def get(self, user: str, id: str) -> Conversation | None:
        """Return a conversation; None: the user has no conversation with this id."""

    async def write(
        self, user: str, id: str, *messages: StoredMessage, create: bool = False, activate: bool = True
    ) -> bool:
        """Add messages, or replace the content of those with the same ids. Either all are stored, or none.

        The parent, the time and the feedback of a message that is replaced stay.

        Parameters:
            user: The id of the user.
            id: The conversation.
            messages: The messages. The parent of each is in the conversation, or before it.
            create: Whether to create the conversation if it does not exist. Default: False.
            activate: Whether each message becomes the active one. Default: True. False: only if its parent is active.

        Returns:
            False if the conversation does not exist and `create` is false. Nothing is stored then.
        """

    async def activate(self, user: str, id: str, message_id: str) -> bool:
        """Make a message the active one. Return False if there is no such message."""

    async def rate(self, user: str, id: str, message_id: str, feedback: Feedback | None) -> bool:
        """Set or remove the feedback to a message. Return False if there is no such message."""

    async def remove(self, user: str, id: str, message_id: str) -> bool:
        """Remove a message. Those after it follow its parent. Return False if there is no such message."""

    async def rename(self, user: str, id: str, title: str) -> bool:
        """Set the title of a conversation. Return False if it does not exist."""

    async def annotate(self, user: str, id: str, metadata: Mapping[str, str]) -> bool:
        """Set the metadata of a conversation. Return False if it does not exist."""

    async def delete(self, user: str, id: str) -> bool:
        """Delete a conversation. Return False if it does not exist."""


class WrappedStore(ConversationStore):
    """A store that passes all calls on to another one. A subclass changes some of them."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    async def list(self, user: str, *, search: str = "", limit: int = 100, offset: int = 0) -> Sequence[Summary]:
        return await self._store.list(user, search=search, limit=limit, offset=offset)

    async def get(self, user: str, id: str) -> Conversation | None:
        return await self._store.get(user, id)

    async def write(
        self, user: str, id: str, *messages: StoredMessage, create: bool = False, activate: bool = True
    ) -> bool:
        return await self._store.write(user, id, *messages, create=create, activate=activate)

    async def activate(self, user: str, id: str, message_id: str) -> bool:
        return await self._store.activate(user, id, message_id)

    async def rate(self, user: str, id: str, message_id: str, feedback: Feedback | None) -> bool:
        return await self._store.rate(user, id, message_id, feedback)

    async def remove(self, user: str, id: str, message_id: str) -> bool:
        return await self._store.remove(user, id, message_id)

    async def rename(self, user: str, id: str, title: str) -> bool:
        return await self._store.rename(user, id, title)

    async def annotate(self, user: str, id: str, metadata: Mapping[str, str]) -> bool:
        return await self._store.annotate(user, id, metadata)

    async def delete(self, user: str, id: str) -> bool:
        return await self._store.delete(user, id)


def text_of(message: StoredMessage) -> str:
    """Return the text of a message, for a title and for a search."""
    return " ".join(str(part.get("text") or "") for part in message.parts if part.get("type") == "text")


def title_of(message: StoredMessage) -> str:
    """Return the title of a conversation that begins with a message of a user: its text, or else its first file."""
    if message.role != "user":
        return UNTITLED
    files = (str(part.get("filename") or "") for part in message.parts if part.get("type") == "file")
    return shortened(text_of(message).strip() or next(filter(str.strip, files), ""))


def shortened(text: str) -> str:
    """Return a text as a title: one line of at most `TITLE_LENGTH` characters."""
    line = encodable(" ".join(text.split()))
    return (line if len(line) <= TITLE_LENGTH else f"{line[: TITLE_LENGTH - 1].rstrip()}…") or UNTITLED


def encodable(text: str) -> str:
    """Return a text without halves of surrogate pairs and without NUL, which databases refuse."""
    return text.encode(errors="replace").decode().replace("\0", "?")


def check_ids(**ids: str) -> None:
    """Raise `ChatError` 400 if an id is empty or too long, or has a character that databases refuse."""
    for name, value in ids.items():
        if not 0 < len(value) <= MAX_ID_LENGTH:
            raise ChatError(
                f"the id of the {name} has {len(value):,} characters: it must have 1 to {MAX_ID_LENGTH} characters",
                code="bad_id",
            )
        if value != encodable(value):
            raise ChatError(
                f"the id of the {name} has NUL or half of a surrogate pair, which databases refuse", code="bad_id"
            )
