"""A conversation store whose messages refer to files, and do not contain them.

The content of a file within a message moves to a `FileStore` when the message is written. Each file knows the
conversations that refer to it, and is deleted with the last one of them.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app_toolkit import ChatError
from app_toolkit.chat.conversations import ConversationStore, StoredMessage, WrappedStore
from app_toolkit.chat.files import FileStore, content_id, data_of, file_id_of, missing_file

logger = logging.getLogger("app_toolkit.chat")

Part = Mapping[str, Any]


class FiledConversations(WrappedStore):
    """A store around another one."""

    def __init__(self, store: ConversationStore, files: FileStore) -> None:
        super().__init__(store)
        self._files = files

    async def write(
        self, user: str, id: str, *messages: StoredMessage, create: bool = False, activate: bool = True
    ) -> bool:
        """Write messages without the content of their files.

        Raises:
            ChatError: Also 404, a message of the user names a file that the user does not have; and as `FileStore.put`
                for a file within it. A file of a model that cannot be stored stays in the message.
        """
        filed = [await self._filed(user, message) for message in messages]
        named = {id for message in filed for id in references(message.parts)}
        if named:
            # Before the conversation holds any file: it may never come to be, and nothing would release them.
            _check(filed, await self._files.find(user, named))
            _check(filed, await self._files.hold(user, named, id))
        is_stored = await self._store.write(user, id, *filed, create=create, activate=activate)
        if not is_stored:  # the conversation was deleted meanwhile
            await self._release(user, named, id)
        return is_stored

    async def delete(self, user: str, id: str) -> bool:
        """Delete a conversation, and the files to which no other one refers."""
        conversation = await self._store.get(user, id)
        if not await self._store.delete(user, id):
            return False
        messages = () if conversation is None else conversation.tree.messages
        named = {file_id for message in messages for file_id in references(message.parts)}
        await self._release(user, named, id)
        return True

    def as_stored(self, user: str, parts: Sequence[Part]) -> list[dict[str, Any]]:
        """Return the parts of a message of the AI SDK as `write` stores them, without storing anything."""

        def stored(part: Part) -> dict[str, Any]:
            if not _has_content(part):
                return dict(part)
            try:
                return self._named(part, content_id(user, data_of(part["url"])[1]))
            except ChatError:  # it has never been stored
                return dict(part)

        return [stored(part) for part in parts]

    async def moved(self, user: str, part: Part) -> dict[str, Any]:
        """Return a part of a message whose files are in the store of files. Raises `ChatError` as `FileStore.put`."""
        if _has_content(part):
            name, media_type = str(part.get("filename") or ""), str(part.get("mediaType") or "")
            stored = await self._files.put_url(user, part["url"], name=name, media_type=media_type)
            return self._named(part, stored.id)
        match part.get("type"):
            case "input_image" if str(part.get("image_url")).startswith("data:"):
                stored = await self._files.put_url(user, part["image_url"])
                return {**_without(part, "image_url"), "file_id": stored.id}
            case "input_file" if isinstance(data := part.get("file_data"), str) and not data.startswith("http"):
                url = data if data.startswith("data:") else f"data:;base64,{data}"
                stored = await self._files.put_url(user, url, name=str(part.get("filename") or ""))
                return {**_without(part, "file_data", "filename"), "file_id": stored.id}
        return {name: await self._moved_in(user, value) for name, value in part.items()}

    async def _release(self, user: str, files: Collection[str], id: str) -> None:
        """Delete the files of a conversation that is deleted, to which no other one refers. A failure is logged."""
        try:
            await self._files.release(user, files, id)
        except ChatError as error:
            logger.warning("the files of the conversation %r were not deleted: %s", id, error)

    async def _moved_in(self, user: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return await self.moved(user, value)
        if isinstance(value, list):
            return [await self._moved_in(user, item) for item in value]
        return value

    async def _filed(self, user: str, message: StoredMessage) -> StoredMessage:
        try:
            return replace(message, parts=[await self.moved(user, part) for part in message.parts])
        except ChatError as error:
            if message.role == "user":
                raise
            logger.warning("a file of a model stays in its message: %s", error)
            return message

    def _named(self, part: Part, id: str) -> dict[str, Any]:
        return {**part, "url": self._files.url_of(id)}


def filed(store: ConversationStore | None, files: FileStore | None) -> ConversationStore | None:
    """Return a store whose messages refer to files; without files, the store itself."""
    return store if store is None or files is None else FiledConversations(store, files)


def _check(messages: Iterable[StoredMessage], files: Collection[str]) -> None:
    """Raise `ChatError` 404 if a message of the user names another file of this server than these."""
    for message in messages:
        for file_id in references(message.parts, is_here=True):
            if message.role == "user" and file_id not in files:
                raise missing_file(file_id)


def references(value: Any, *, is_here: bool = False) -> Iterator[str]:
    """Yield the ids of the files that the parts of a message refer to.

    `is_here`: leave out those of addresses with a host, which may be another server. Default: False.
    """
    if isinstance(value, Mapping):
        if isinstance(id := value.get("file_id"), str):
            yield id
        for name in ("url", "image_url", "file_url"):
            url = value.get(name)
            if isinstance(url, str) and not (is_here and url.startswith("http")) and (found := file_id_of(url)):
                yield found
        for item in value.values():
            yield from references(item, is_here=is_here)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from references(item, is_here=is_here)


def _has_content(part: Part) -> bool:
    """Return whether a part of a message of the AI SDK is a file with its content."""
    return part.get("type") == "file" and str(part.get("url")).startswith("data:")


def _without(part: Part, *names: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in names}
