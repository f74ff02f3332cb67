"""The routes of Anthropic's Files API."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from app_toolkit.chat.anthropic.errors import REQUEST_ID, SharedPathRoute, response_id
from app_toolkit.chat.failures import InvalidParameter
from app_toolkit.chat.files import FileStore, StoredFile, missing_file
from app_toolkit.chat.files_router import content_response, form_checks, form_of, stored_file, uploaded
from app_toolkit.chat.live_response import CLIENT_GONE, document_response
from app_toolkit.chat.requests import RequestChecks, checked
from app_toolkit.chat.users import user_parameter
from app_toolkit.streaming import without_permit

PAGE = "page_"
"""The beginning of a cursor, which goes on with the id of the last file of the page before."""


class AnthropicFile(BaseModel):
    id: str
    type: Literal["file"] = "file"
    filename: str
    mime_type: str
    size_bytes: int
    created_at: datetime
    downloadable: bool = True


class AnthropicFiles(BaseModel):
    data: list[AnthropicFile]
    next_page: str | None


class DeletedAnthropicFile(BaseModel):
    id: str
    type: Literal["file_deleted"] = "file_deleted"


def add_files(router: APIRouter, store: FileStore, user: Callable[..., Any] | None, checks: RequestChecks) -> None:
    """Add the routes of the Files API to a router.

    Parameters:
        router: The router.
        store: The store.
        user: A dependency that returns the id of the user. Default: the name of the API key.
        checks: The checks of the router.
    """
    User: Any = user_parameter(user)

    @without_permit
    async def upload_message_file(request: Request, user: User) -> Any:
        stored = await uploaded(request, store, user)
        if stored is None:
            return Response(status_code=CLIENT_GONE)
        return document_response(_document(stored).model_dump(mode="json"), headers={REQUEST_ID: response_id()})

    @without_permit
    async def list_message_files(
        user: User,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 20,
        page: str | None = None,
        ids: Annotated[list[str] | None, Query(alias="ids[]", max_length=100)] = None,
    ) -> AnthropicFiles:
        if ids is not None:
            files = await store.find(user, set(ids))
            return AnthropicFiles(data=[_document(file) for file in files.values()], next_page=None)
        listed, next_page = page_of(await store.list(user), limit, page)
        return AnthropicFiles(data=[_document(file) for file in listed], next_page=next_page)

    @without_permit
    async def get_message_file(file_id: str, user: User) -> AnthropicFile:
        return _document(await stored_file(store, user, file_id))

    @without_permit
    async def get_message_file_content(file_id: str, request: Request, user: User) -> Any:
        return content_response(store, await stored_file(store, user, file_id), request, checks.origins)

    @without_permit
    async def delete_message_file(file_id: str, user: User) -> DeletedAnthropicFile:
        if not await store.delete(user, file_id):
            raise missing_file(file_id)
        return DeletedAnthropicFile(id=file_id)

    form_route = checked(SharedPathRoute, form_checks(store, checks.origins))
    router.add_api_route(
        "/files",
        upload_message_file,
        methods=["POST"],
        response_model=AnthropicFile,
        openapi_extra=form_of(),
        route_class_override=form_route,
    )
    route = checked(SharedPathRoute, checks)
    router.add_api_route("/files", list_message_files, methods=["GET"], route_class_override=route)
    router.add_api_route("/files/{file_id}", get_message_file, methods=["GET"], route_class_override=route)
    router.add_api_route("/files/{file_id}", delete_message_file, methods=["DELETE"], route_class_override=route)
    router.add_api_route(
        "/files/{file_id}/content",
        get_message_file_content,
        methods=["GET"],
        response_class=Response,
        route_class_override=route,
    )


def page_of(files: Sequence[StoredFile], limit: int, page: str | None) -> tuple[Sequence[StoredFile], str | None]:
    """Return a page of a list, and the cursor of the next one. Raises `InvalidParameter` for an unknown cursor.

    Parameters:
        files: The list.
        limit: The maximum number of files.
        page: The cursor. None: the first page.
    """
    first = 0
    if page is not None:
        ids = [f"{PAGE}{file.id}" for file in files]
        if page not in ids:
            raise InvalidParameter(f"there is no page {page[:100]!r}", "page")
        first = ids.index(page) + 1
    listed = files[first : first + limit]
    return listed, f"{PAGE}{listed[-1].id}" if first + limit < len(files) else None


def _document(file: StoredFile) -> AnthropicFile:
    return AnthropicFile(
        id=file.id, filename=file.name, mime_type=file.media_type, size_bytes=file.size, created_at=file.created
    )
