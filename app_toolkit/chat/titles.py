"""A conversation store whose conversations get titles from a model."""

import asyncio
import logging
from contextlib import aclosing

from app_toolkit import ChatError, ConfigError
from app_toolkit.chat.chain import Source, ask
from app_toolkit.chat.conversations import ConversationStore, StoredMessage, WrappedStore, text_of, title_of
from app_toolkit.chat.events import EventChecker, checked
from app_toolkit.chat.protocol import ChatMessage, ChatRequest, ErrorEvent, TextEvent
from app_toolkit.chat.usage import Meter

logger = logging.getLogger("app_toolkit.chat")

INSTRUCTION = (
    "Write a title for a conversation that begins with the message of the user. Use the language of the message and at "
    "most six words, without quotation marks. Answer with the title only, not with an answer to the message."
)

MAX_TEXT = 2_000
"""Characters of the message that the model gets."""

MAX_TITLE = 500
"""Characters of a title after which the model is closed. The store shortens it further."""

METERED = "title"
"""The name of the model that writes titles, in metrics and in the costs of API keys."""

QUOTES = "\"'`*“”„«»# "
"""Characters around a title that small models write although they should not."""

MAX_RUNNING = 16
"""Titles that are made at a time. Further conversations keep the beginning of their first message as their title."""


def titled(store: ConversationStore, model: Source, *, within_s: float = 30.0) -> "TitledStore":
    """Return a store in which a model writes the title of each new conversation, from its first message.

    The title is made beside the response, which does not wait for it. Until then, and if the model fails, the title is
    the beginning of the message. A title that a user has set meanwhile stays.

    Parameters:
        store: The store that keeps the conversations. The new one does not close it.
        model: The model, for example a small one. A router makes its deployment a part of the application.
        within_s: Limit for a title in seconds.

    Raises:
        ConfigError: `within_s` is not positive.
    """
    if within_s <= 0:
        raise ConfigError(f"titled: within_s = {within_s!r}: must be above 0")
    return TitledStore(store, model, within_s)


class TitledStore(WrappedStore):
    """A store that `titled` has returned."""

    def __init__(self, store: ConversationStore, model: Source, within_s: float) -> None:
        self.model = model
        """The model that writes the titles."""
        super().__init__(store)
        self._within_s = within_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def write(
        self, user: str, id: str, *messages: StoredMessage, create: bool = False, activate: bool = True
    ) -> bool:
        is_written = await self._store.write(user, id, *messages, create=create, activate=activate)
        first = messages[0] if create and messages else None
        if is_written and first is not None and _may_be_titled(first) and len(self._tasks) < MAX_RUNNING:
            task = asyncio.create_task(self._set_title(user, id, first), name="app-toolkit chat title")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return is_written

    async def aclose(self) -> None:
        """Stop the model. Conversations whose title is being made keep the beginning of their first message."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _set_title(self, user: str, id: str, message: StoredMessage) -> None:
        try:
            async with asyncio.timeout(self._within_s):
                if await self._needs_title(user, id, message):
                    title = await written_title(self.model, text_of(message))
                    if title and await self._needs_title(user, id, message):
                        await self._store.rename(user, id, title)
        except Exception as error:  # of the model, or of a store of the user's own
            logger.warning("a conversation keeps the beginning of its first message as its title: %r", error)

    async def _needs_title(self, user: str, id: str, message: StoredMessage) -> bool:
        """Return whether a conversation begins with a message and still has its beginning as the title."""
        conversation = await self._store.get(user, id)
        if conversation is None or conversation.tree.messages[0].id != message.id:
            return False
        return conversation.title == title_of(message)


def _may_be_titled(message: StoredMessage) -> bool:
    return message.role == "user" and message.parent_id is None and bool(text_of(message).strip())


async def written_title(model: Source, text: str) -> str:
    """Return the title that a model writes for a text. Empty: it has written none.

    Raises:
        ChatError: The model has failed.
    """
    request = ChatRequest((ChatMessage("system", INSTRUCTION), ChatMessage("user", text[:MAX_TEXT])))
    title, checker = "", EventChecker(METERED)
    async with aclosing(checked(ask(model, request), checker, meter=Meter(METERED))) as events:
        async for event in events:
            if isinstance(event, ErrorEvent):
                raise ChatError(event.message, status=502, code=event.code)
            if isinstance(event, TextEvent):
                title += event.text
            if len(title) > MAX_TITLE:
                break
    return " ".join(title.split()).strip(QUOTES)
