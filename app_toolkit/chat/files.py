"""Files of users, which messages refer to by their ids.

A file has two entries in the folder of its user: its content, and then a JSON description. Without the latter, it does
not exist. The id of a file says in which folder it is, so that a model in another process reads it without the user.
Each conversation that refers to a file has a further, small entry beside it.
"""

import asyncio
import base64
import binascii
import errno
import hashlib
import json
import mimetypes
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from app_toolkit import ChatError, ConfigError
from app_toolkit.chat.file_storage import PART, Folder, Storage, Upload, storage_at
from app_toolkit.chat.file_types import HEAD_BYTES, MEDIA_TYPES, file_name, is_allowed, type_of_file
from app_toolkit.chat.protocol import Attachment
from app_toolkit.chat.to_the_end import to_its_end

Result = TypeVar("Result")

CHUNK_BYTES = 256 * 1024
"""Bytes that are read at a time."""

LEFT_S = 3_600.0
"""Seconds after which an incomplete file is removed: its process has died."""

HOLD = ".used"
"""The end of the name of an entry that says that a conversation refers to a file."""

MIB = 2**20

MEDIA = ("image/avif", "image/gif", "image/jpeg", "image/png", "image/webp", "audio/*", "application/pdf")
TEXTS = ("text/*", "application/json", "application/x-ndjson", "application/xml", "application/yaml")

ID = re.compile(r"file-([0-9a-f]{32})([0-9a-f]{32})")
"""The id of a file: a hash of its user, and a random number or a hash of the content."""

URL = re.compile(rf"(?:https?://[^/?#]+)?/(?:[^?#]*/)?({ID.pattern})/content")
"""The address of the content of a file."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The description of a file."""

    id: str
    name: str
    media_type: str
    size: int
    """Bytes."""
    created: datetime
    purpose: str = "user_data"
    """What a client of OpenAI's API wants to do with the file. It has no effect."""


class FileStore:
    """Files of users, in a folder that all processes share, or in a place that fsspec knows, such as S3."""

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        url: str = "/api/files",
        max_size: int = 20 * MIB,
        max_user_size: int = 500 * MIB,
        max_user_files: int = 1_000,
        media_types: Sequence[str] = (*MEDIA, *TEXTS),
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Name the place. The first upload creates a folder.

        Parameters:
            location: A folder; or a URL of fsspec, such as `s3://bucket/prefix`, which needs the extra `files`.
            url: The prefix of `files_router`, as a client sees it. Messages refer to files by `URL/ID/content`.
                Default: `/api/files`.
            max_size: Bytes of one file. Default: 20 MiB.
            max_user_size: Bytes of all files of one user. Default: 500 MiB.
            max_user_files: Files of one user. Default: 1000.
            media_types: The types that are allowed, such as `image/png`, `image/*` or `*/*`. Default: images that
                browsers show, audio, PDF, text, and JSON.
            storage_options: Options of the file system of fsspec, such as `endpoint_url`. Default: none.

        Raises:
            ConfigError: An option is out of bounds, or fsspec is missing or does not know the URL.
        """
        for name, value in (
            ("max_size", max_size),
            ("max_user_size", max_user_size),
            ("max_user_files", max_user_files),
        ):
            if value < 1:
                raise ConfigError(f"FileStore: {name} = {value!r}: must be 1 or above")
        if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", url):
            raise ConfigError(f"FileStore: url = {url!r}: must be a path such as /api/files")
        if isinstance(media_types, str) or not media_types:
            raise ConfigError(f"FileStore: media_types = {media_types!r}: pass a list of media types")
        for media_type in media_types:
            if not MEDIA_TYPES.fullmatch(media_type):
                raise ConfigError(f"FileStore: media_types has {media_type!r}: write it as image/png, image/* or */*")
        self.url = url
        self.max_size = max_size
        self._max_user_size = max_user_size
        self._max_user_files = max_user_files
        self._media_types = tuple(media_types)
        self._storage: Storage = storage_at(location, storage_options or {})

    async def put(
        self,
        user: str,
        content: bytes | AsyncIterable[bytes],
        *,
        name: str = "",
        media_type: str = "",
        purpose: str = "user_data",
    ) -> StoredFile:
        """Store a file. If the caller is cancelled, or a chunk raises, nothing is stored.

        Parameters:
            user: The id of the user that it belongs to.
            content: The content, or its chunks.
            name: Its name. Folders and control characters are left out. Default: `file`.
            media_type: The type that a client says. The content decides if it shows its type, as images and PDF do.
                Default: guessed from the name, or else from the content.
            purpose: Of OpenAI's API. Default: `user_data`.

        Raises:
            ChatError: 400, the file is empty; 413, a size or the number of files is over a limit; 415, its type is not
                allowed, or it claims to be an image and is none; 507, the disk is full; 503, the place fails.
        """
        return await self._put(
            f"{_folder(user)}/{secrets.token_hex(16)}", content, file_name(name), media_type, purpose
        )

    async def put_url(self, user: str, url: str, *, name: str = "", media_type: str = "") -> StoredFile:
        """Store the content of a `data:` URL. The same content gets the same id. Raises `ChatError` as `put`.

        Without a name, the file is called `file`, with the ending of its type.
        """
        # In a thread: percent signs in a long URL take seconds.
        found_type, content = await asyncio.to_thread(data_of, url)
        id = await asyncio.to_thread(content_id, user, content)
        stored = await self.get(user, id)
        if stored is not None:
            return stored
        media_type = media_type or found_type
        name = name or f"file{mimetypes.guess_extension(media_type) or ''}"
        return await self._put(_path(id), content, file_name(name), media_type, "user_data")

    async def get(self, user: str, id: str) -> StoredFile | None:
        """Return the description of a file; None: the user has no file with this id. Raises `ChatError` 503."""
        return (await self.find(user, [id])).get(id)

    async def find(self, user: str, ids: Iterable[str]) -> dict[str, StoredFile]:
        """Return the descriptions of those files that the user has, by their ids. Raises `ChatError` 503."""
        return await self._described([_path(id) for id in ids if _belongs(id, user)])

    async def list(self, user: str) -> Sequence[StoredFile]:
        """Return the files of a user, the newest first. Raises `ChatError` 503."""
        folder = _folder(user)
        names = await self._run(self._storage.sizes, folder)
        paths = [f"{folder}/{name.removesuffix('.json')}" for name in names if name.endswith(".json")]
        files = (await self._described(paths)).values()
        return sorted(files, key=lambda file: (file.created, file.id), reverse=True)

    async def content(self, id: str) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file, whoever it belongs to. Raises `ChatError`: 404, there is none; 503."""
        file = await self._run(self._opened, id)
        try:
            while chunk := await self._run(file.read, CHUNK_BYTES):
                yield chunk
        finally:
            await self._run(file.close)

    async def read(self, attachment: Attachment) -> bytes:
        """Return the content of an attachment: a file of this store, or a `data:` URL.

        Raises:
            ChatError: 404, the file does not exist any more; 400, the attachment is another address, or its `data:` URL
                is wrong; 503, the place of the files fails.
        """
        if attachment.file_id is not None:
            return b"".join([chunk async for chunk in self.content(attachment.file_id)])
        if attachment.url.startswith("data:"):
            return (await asyncio.to_thread(data_of, attachment.url))[1]
        raise ChatError(f"the attachment {attachment.url[:200]!r} is not a file of this server", code="not_a_file")

    async def inline(self, attachment: Attachment) -> Attachment:
        """Return an attachment with the content of its file as a `data:` URL, for a model that cannot read the store.

        Raises:
            ChatError: 404, the file does not exist any more; 503, the place of the files fails.
        """
        if attachment.file_id is None:
            return attachment
        content = base64.b64encode(await self.read(attachment)).decode()
        return Attachment(attachment.media_type, f"data:{attachment.media_type};base64,{content}", attachment.name)

    async def delete(self, user: str, id: str) -> bool:
        """Delete a file, also if messages refer to it.

        Return False if the user has no file with this id. Raises `ChatError` 503.
        """
        if await self.get(user, id) is None:
            return False
        for suffix in (".json", ".content"):
            await self._run(self._storage.remove, _path(id) + suffix)
        return True

    async def hold(self, user: str, ids: Iterable[str], conversation: str) -> dict[str, StoredFile]:
        """Note that a conversation refers to files. Return those that exist, by their ids. Raises `ChatError` 503."""
        held = await self.find(user, ids)
        for id in held:
            await self._run(self._write_whole, _hold(id, conversation), b"1")
        # `release` writes the description again if it finds a new note after it has removed it.
        return await self.find(user, held)

    async def release(self, user: str, ids: Iterable[str], conversation: str) -> None:
        """Delete those files to which no other conversation refers. Raises `ChatError` 503."""
        for id in await self.find(user, ids):
            await self._run(self._release, id, conversation)

    def url_of(self, id: str) -> str:
        """Return the address of the content of a file, as messages have it."""
        return f"{self.url}/{id}/content"

    def path_of(self, id: str) -> Path | None:
        """Return the path of the content of a file; None: it is not in a folder of this machine."""
        return self._storage.path / f"{_path(id)}.content" if isinstance(self._storage, Folder) else None

    async def _put(
        self, path: str, content: bytes | AsyncIterable[bytes], name: str, media_type: str, purpose: str
    ) -> StoredFile:
        await self._check_room(path, 0)
        upload = await self._run(self._storage.begin, f"{path}.content")
        is_written = False
        try:
            size, media_type = await self._write(upload, content, name, media_type)
            await self._run(upload.finish)
            is_written = True
            # Uploads at the same time see each other here, so that the limits hold.
            await self._check_room(path, size)
            id = f"file-{path.replace('/', '')}"
            file = StoredFile(id, name, media_type, size, datetime.now(UTC), purpose)
            await self._run(self._write_whole, f"{path}.json", _encoded(file))
        except BaseException:
            with suppress(ChatError):  # what is left is removed later
                await self._run(partial(self._remove_undescribed, path) if is_written else upload.discard)
            raise
        return file

    async def _write(
        self, upload: Upload, content: bytes | AsyncIterable[bytes], name: str, declared: str
    ) -> tuple[int, str]:
        """Write the chunks of a file. Return its size and its media type."""
        size, head, media_type = 0, b"", ""
        async for chunk in _chunks(content):
            size += len(chunk)
            if size > self.max_size:
                raise ChatError(
                    f"the file {name!r} has more than {self.max_size:,} bytes, the limit of a file",
                    status=413,
                    code="file_too_large",
                )
            if len(head) < HEAD_BYTES:
                head = (head + chunk)[:HEAD_BYTES]
                if len(head) == HEAD_BYTES:
                    media_type = self._checked_type(head, name, declared)
            await self._run(upload.write, chunk)
        if not size:
            raise ChatError(f"the file {name!r} is empty", code="file_empty")
        return size, media_type or self._checked_type(head, name, declared)

    def _checked_type(self, head: bytes, name: str, declared: str) -> str:
        media_type, is_consistent = type_of_file(head, name, declared)
        if not is_consistent:
            raise ChatError(
                f"the file {name!r} says that it is {media_type}, but its content is not",
                status=415,
                code="file_type_wrong",
            )
        if not is_allowed(media_type, self._media_types):
            raise ChatError(
                f"the file {name!r} has the type {media_type}: allowed are {', '.join(self._media_types)}",
                status=415,
                code="file_type_not_allowed",
            )
        return media_type

    async def _check_room(self, path: str, size: int) -> None:
        """Raise `ChatError` 413 if the user may not have one more file, and remove what dead processes have left.

        `size`: the size of the new file if it is written already.
        """
        folder = path.partition("/")[0]
        sizes = await self._run(self._swept, folder)
        contents = {name: size for name, size in sizes.items() if not name.endswith((".json", HOLD))}
        new = f"{path}.content".rpartition("/")[2]
        if len(contents) - (new in contents) >= self._max_user_files:
            raise ChatError(
                f"the user has {self._max_user_files:,} files, which is the limit: delete one",
                status=413,
                code="too_many_files",
            )
        if (used := sum(contents.values())) > self._max_user_size or (not size and used == self._max_user_size):
            raise ChatError(
                f"the files of the user would have more than {self._max_user_size:,} bytes, which is the limit: "
                "delete one",
                status=413,
                code="files_too_large",
            )

    def _swept(self, folder: str) -> Mapping[str, int]:
        """Return the sizes of the files of a folder, after the incomplete ones of dead processes were removed."""
        sizes = dict(self._storage.sizes(folder))
        now = time.time()
        for name in [name for name in sizes if name.endswith(PART) or not _has_description(name, sizes)]:
            try:
                if self._storage.age_s(f"{folder}/{name}", now) > LEFT_S:
                    self._storage.remove(f"{folder}/{name}")
                    del sizes[name]
            except FileNotFoundError:  # its upload has just ended
                continue
        return sizes

    def _release(self, id: str, conversation: str) -> None:
        path = _path(id)
        self._storage.remove(_hold(id, conversation))
        description = self._storage.contents([f"{path}.json"]).get(f"{path}.json")
        if description is None or self._is_held(path):
            return
        self._storage.remove(f"{path}.json")
        if self._is_held(path):  # another process has begun to refer to it
            self._write_whole(f"{path}.json", description)
        else:
            self._storage.remove(f"{path}.content")

    def _is_held(self, path: str) -> bool:
        folder, _, key = path.partition("/")
        return any(name.startswith(f"{key}.") and name.endswith(HOLD) for name in self._storage.sizes(folder))

    def _remove_undescribed(self, path: str) -> None:
        """Remove the content of a file, unless another call has stored the same content with a description."""
        if not self._storage.contents([f"{path}.json"]):
            self._storage.remove(f"{path}.content")

    def _write_whole(self, path: str, content: bytes) -> None:
        upload = self._storage.begin(path)
        try:
            upload.write(content)
            upload.finish()
        except BaseException:
            upload.discard()
            raise

    async def _described(self, paths: Sequence[str]) -> dict[str, StoredFile]:
        """Return the descriptions of those files that exist, by their ids."""
        contents = await self._run(self._storage.contents, [f"{path}.json" for path in paths])
        files = (_decoded(content) for content in contents.values())
        return {file.id: file for file in files}

    def _opened(self, id: str) -> Any:
        if not ID.fullmatch(id):
            raise missing_file(id)
        try:
            return self._storage.open(f"{_path(id)}.content")
        except FileNotFoundError:
            raise missing_file(id) from None

    async def _run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Return the result of a function that blocks. It ends before the caller goes on. Raises `ChatError`."""
        try:
            return await to_its_end(asyncio.to_thread(function, *args))
        except OSError as error:
            raise storage_failure(error) from error


def storage_failure(error: OSError) -> ChatError:
    """Return the error for a client: 507 if the disk is full, or else 503."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ChatError("the server has no room for more files", status=507, code="storage_full")
    # The text may have a path of this machine, which clients must not see.
    reason = error.strerror or type(error).__name__
    return ChatError(f"the files cannot be read or written: {reason}", status=503, code="files_unavailable")


def missing_file(id: str) -> ChatError:
    """Return the error for a file that the user does not have."""
    return ChatError(f"there is no file {id[:100]!r}", status=404, code="file_not_found")


def content_id(user: str, content: bytes) -> str:
    """Return the id that the content of a `data:` URL has."""
    return f"file-{_folder(user)}{hashlib.sha256(content).hexdigest()[:32]}"


def data_of(url: str) -> tuple[str, bytes]:
    """Return the media type and the content of a `data:` URL. Raises `ChatError` 400."""
    head, comma, data = url.removeprefix("data:").partition(",")
    media_type, *parameters = head.split(";")
    try:
        if not comma:
            raise ValueError
        if "base64" in parameters:
            return media_type, base64.b64decode(unquote_to_bytes(data), validate=True)
        return media_type, unquote_to_bytes(data)
    except (ValueError, binascii.Error):
        raise ChatError("an attachment has a data: URL that is not valid", code="invalid_data_url") from None


def file_id_of(url: str) -> str | None:
    """Return the id of the file whose content has an address; None: it is another address."""
    match = URL.fullmatch(url)
    return None if match is None else match[1]


async def _chunks(content: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(content, bytes):
        for start in range(0, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]
    else:
        async for chunk in content:
            yield chunk


def _folder(user: str) -> str:
    return hashlib.sha256(user.encode(errors="surrogatepass")).hexdigest()[:32]


def _path(id: str) -> str:
    """Return the path of a file without the ends `.content` and `.json`."""
    match = ID.fullmatch(id)
    assert match is not None
    return f"{match[1]}/{match[2]}"


def _belongs(id: str, user: str) -> bool:
    match = ID.fullmatch(id)
    return match is not None and secrets.compare_digest(match[1], _folder(user))


def _hold(id: str, conversation: str) -> str:
    """Return the path of the entry that says that a conversation refers to a file."""
    return f"{_path(id)}.{_folder(conversation)}{HOLD}"


def _has_description(name: str, names: Mapping[str, int]) -> bool:
    return f"{name.partition('.')[0]}.json" in names


def _encoded(file: StoredFile) -> bytes:
    document = {name: getattr(file, name) for name in StoredFile.__slots__}
    return json.dumps(document | {"created": file.created.timestamp()}).encode()


def _decoded(document: bytes) -> StoredFile:
    fields = json.loads(document)
    return StoredFile(**fields | {"created": datetime.fromtimestamp(fields["created"], UTC)})
