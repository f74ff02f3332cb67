"""Routes with which users upload, list, read and delete the files of their chats."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from app_toolkit import ConfigError
from app_toolkit.chat.failures import Failure, FormattedRoute
from app_toolkit.chat.file_types import IMAGES
from app_toolkit.chat.files import CHUNK_BYTES, FileStore, StoredFile, missing_file, storage_failure
from app_toolkit.chat.live_response import CLIENT_GONE, document_response
from app_toolkit.chat.requests import RequestChecks, checked
from app_toolkit.chat.users import user_parameter
from app_toolkit.streaming import without_permit

FORM_BYTES = 64 * 1024
"""The bytes that a form may have besides the file."""

MAX_FIELDS = 16
"""The fields that a form may have besides the file."""

MAX_PURPOSE = 100
"""Characters of the field `purpose`."""

SAFE_HEADERS = {
    "cache-control": "private, no-cache",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
}
"""The headers of a content, which must not run as a page of this server."""


def form_of(**fields: str) -> dict[str, Any]:
    """Return what OpenAPI says of a form with a file. `fields`: the types of its further fields."""
    properties: dict[str, Any] = {"file": {"type": "string", "format": "binary"}}
    properties |= {name: {"type": kind} for name, kind in fields.items()}
    schema = {"type": "object", "required": ["file"], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


class FileDocument(BaseModel):
    """A file of a user."""

    id: str
    name: str
    media_type: str
    size: int
    """Bytes."""
    created: datetime
    url: str
    """The address of the content. A message refers to the file by it."""


class FileRoute(FormattedRoute):
    """A route whose errors are as those of FastAPI, with a `code`."""

    @staticmethod
    def respond(failure: Failure) -> Response:
        document = {"detail": failure.message} | ({} if failure.code is None else {"code": failure.code})
        return document_response(document, failure.status, failure.all_headers)


def files_router(store: FileStore, *, user: Callable[..., Any] | None = None, origins: Sequence[str] = ()) -> APIRouter:
    """Return a router for the files of users. Include it with the `url` of the store as its prefix.

    ```python
    app.include_router(files_router(files), prefix="/api/files")
    ```

    `POST` a form with the field `file` stores it, and returns its description with the status 201. `GET` lists the
    files of the user, the newest first (`limit`, `offset`). `GET /{id}` returns one description, and `GET
    /{id}/content` the content. `DELETE /{id}` deletes a file. 404 if the user has no such file; 413, 415, 507 and 503
    as `FileStore.put`.

    Browsers show the content only if it is an image of a safe type. They save everything else.

    Parameters:
        store: The store.
        user: A dependency that returns the id of the user, the same as of the chat router. Default: the
            name of the API key that `api_keys` has checked; without keys, all clients are one user.
        origins: Origins whose pages may change files with cookies, as of `ai_sdk_router`. Default: none.
    """
    checks = RequestChecks.of("files_router", origins)
    router = APIRouter(route_class=checked(FileRoute, checks))
    _add_upload(router, store, user, checks.origins)
    _add_stored(router, store, user, checks.origins)
    return router


def _add_upload(router: APIRouter, store: FileStore, user: Callable[..., Any] | None, origins: tuple[str, ...]) -> None:
    User: Any = user_parameter(user)
    document_of = _document_of(store)

    # The body is read by hand, so that a client that may not upload is refused before.
    @without_permit
    async def upload_file(request: Request, user: User) -> Any:
        path = request.url.path.rstrip("/")
        if not (store.url.endswith(path) or path.endswith(store.url)):
            raise ConfigError(
                f"files_router has the prefix {path}, and its store the url {store.url}: pass FileStore(url={path!r})"
            )
        stored = await uploaded(request, store, user)
        if stored is None:
            return Response(status_code=CLIENT_GONE)
        return document_response(document_of(stored).model_dump(mode="json"), 201)

    router.add_api_route(
        "",
        upload_file,
        methods=["POST"],
        status_code=201,
        response_model=FileDocument,
        openapi_extra=form_of(),
        route_class_override=checked(FileRoute, form_checks(store, origins)),
    )


def _add_stored(router: APIRouter, store: FileStore, user: Callable[..., Any] | None, origins: tuple[str, ...]) -> None:
    User: Any = user_parameter(user)
    document_of = _document_of(store)

    @router.get("")
    @without_permit
    async def list_files(
        user: User,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    ) -> list[FileDocument]:
        return [document_of(file) for file in (await store.list(user))[offset : offset + limit]]

    @router.get("/{id}", responses={404: {}})
    @without_permit
    async def get_file(id: str, user: User) -> FileDocument:
        return document_of(await stored_file(store, user, id))

    @router.get("/{id}/content", response_class=Response, responses={404: {}})
    @without_permit
    async def get_content(id: str, request: Request, user: User) -> Any:
        return content_response(store, await stored_file(store, user, id), request, origins)

    @router.delete("/{id}", status_code=204, responses={404: {}})
    @without_permit
    async def delete_file(id: str, user: User) -> None:
        if not await store.delete(user, id):
            raise missing_file(id)


def form_checks(store: FileStore, origins: tuple[str, ...]) -> RequestChecks:
    """Return the checks of a route to which files are uploaded."""
    return RequestChecks(origins, store.max_size + FORM_BYTES, "form")


async def uploaded(request: Request, store: FileStore, user: str) -> StoredFile | None:
    """Store the field `file` of a form, and return it. None: the client has disconnected before its end.

    Raises:
        ChatError: The store refuses the file, or fails.
        HTTPException: The body is no form with a file, or too long.
    """
    try:
        async with request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=FORM_BYTES) as form:
            file, purpose = form.get("file"), form.get("purpose") or "user_data"
            if not isinstance(file, UploadFile):
                raise HTTPException(400, "the form has no file with the name file")
            if not isinstance(purpose, str) or len(purpose) > MAX_PURPOSE:
                raise HTTPException(400, f"purpose must be a text of at most {MAX_PURPOSE} characters")
            return await store.put(
                user,
                _chunks(file),
                name=file.filename or "",
                media_type=file.content_type or "",
                purpose=purpose,
            )
    except ClientDisconnect:
        return None
    except OSError as error:  # of the temporary file
        raise storage_failure(error) from error


async def stored_file(store: FileStore, user: str, id: str) -> StoredFile:
    """Return a file of a user. Raises `ChatError` 404."""
    file = await store.get(user, id)
    if file is None:
        raise missing_file(id)
    return file


def content_response(store: FileStore, file: StoredFile, request: Request, origins: tuple[str, ...]) -> Response:
    """Return the content of a file. In a folder, a client can ask for a range of it.

    Parameters:
        store: The store of the file.
        file: The file.
        request: The request for it.
        origins: Origins whose pages may use the router. If there are none, no page of another origin can show it.
    """
    disposition = "inline" if file.media_type in IMAGES else "attachment"
    etag = f'"{file.id}"'
    headers = {
        **SAFE_HEADERS,
        "content-disposition": f"{disposition}; filename*=UTF-8''{quote(file.name, safe='')}",
        "cross-origin-resource-policy": "cross-origin" if origins else "same-origin",
        "etag": etag,
    }
    if etag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    # Without a charset, which Starlette would add to the types of texts.
    headers["content-type"] = file.media_type
    path = store.path_of(file.id)
    if path is not None and path.exists():
        return FileResponse(path, headers=headers, media_type=file.media_type)
    headers["content-length"] = str(file.size)
    return StreamingResponse(store.content(file.id), headers=headers)


async def _chunks(file: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await file.read(CHUNK_BYTES):
        yield chunk


def _document_of(store: FileStore) -> Callable[[StoredFile], FileDocument]:
    return lambda file: FileDocument(
        id=file.id,
        name=file.name,
        media_type=file.media_type,
        size=file.size,
        created=file.created,
        url=store.url_of(file.id),
    )
