"""The files of one user, as the requests of a chat router refer to them."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends

from app_toolkit.chat.failures import InvalidParameter
from app_toolkit.chat.files import FileStore, StoredFile, file_id_of, missing_file
from app_toolkit.chat.protocol import Attachment, ChatEvent, ChatFunction, ChatMessage, ChatRequest, closing
from app_toolkit.chat.users import user_parameter


class UserFiles:
    """The files of one user. `store` None: the router keeps no files."""

    def __init__(self, store: FileStore | None = None, user: str = "") -> None:
        self._store = store
        self._user = user

    def called(self, model: ChatFunction, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Return the events of a model that gets the files of a request. Reading them raises as `resolved` does."""
        if not any(self._reference(attachment) for message in request.messages for attachment in message.attachments):
            return model(request)
        return self._called(model, request)

    async def resolved(self, request: ChatRequest) -> ChatRequest:
        """Return a request whose attachments have the ids of the files that they name.

        An attachment of an earlier message whose file was deleted is left out, so that the conversation can go on.

        Raises:
            ChatError: 404, the user has no file that a message after the last one of the model names; 503, the place of
                the files fails.
            InvalidParameter: The router keeps no files.
        """
        named = {
            id
            for message in request.messages
            for attachment in message.attachments
            if (id := self._reference(attachment)) is not None
        }
        if not named:
            return request
        if self._store is None:
            raise InvalidParameter("file_id is not supported: this server keeps no files", "file_id")
        files = await self._store.find(self._user, named)
        roles = [message.role for message in request.messages]
        answered = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
        messages = [
            replace(message, attachments=tuple(self._attachments(message, files, is_earlier=number < answered)))
            if message.attachments
            else message
            for number, message in enumerate(request.messages)
        ]
        return replace(request, messages=tuple(messages))

    async def _called(self, model: ChatFunction, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        async with closing(model(await self.resolved(request))) as events:
            async for event in events:
                yield event

    def _reference(self, attachment: Attachment) -> str | None:
        """Return the id of the file that an attachment names."""
        if attachment.file_id is not None or self._store is None:
            return attachment.file_id
        return file_id_of(attachment.url)

    def _attachments(
        self, message: ChatMessage, files: dict[str, StoredFile], *, is_earlier: bool
    ) -> Iterator[Attachment]:
        for attachment in message.attachments:
            id = self._reference(attachment)
            if id is None:
                yield attachment
            elif id in files and self._store is not None:
                file = files[id]
                yield Attachment(file.media_type, self._store.url_of(id), attachment.name or file.name, id)
            elif attachment.url.startswith("http"):  # the address of another server
                yield attachment
            elif not is_earlier:
                raise missing_file(id)


def files_parameter(store: FileStore | None, user: Callable[..., Any] | None) -> Any:
    """Return the annotation of a route's parameter that is the files of the user."""
    if store is None:

        async def no_files() -> UserFiles:
            return UserFiles()

        return Annotated[UserFiles, Depends(no_files)]

    async def of_user(user: user_parameter(user)) -> UserFiles:  # type: ignore[valid-type]
        return UserFiles(store, user)

    return Annotated[UserFiles, Depends(of_user)]
