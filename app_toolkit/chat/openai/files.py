"""The routes of OpenAI's Files API."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from app_toolkit.chat.failures import InvalidParameter
from app_toolkit.chat.files import FileStore, StoredFile, missing_file
from app_toolkit.chat.files_router import content_response, form_checks, form_of, stored_file, uploaded
from app_toolkit.chat.live_response import CLIENT_GONE, document_response
from app_toolkit.chat.openai.errors import OpenAIRoute
from app_toolkit.chat.requests import checked
from app_toolkit.chat.users import user_parameter
from app_toolkit.streaming import without_permit


class OpenAIFileDocument(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Seconds since 1970.")
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class OpenAIFileList(BaseModel):
    object: Literal["list"] = "list"
    data: list[OpenAIFileDocument]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def add_files(router: APIRouter, store: FileStore, user: Callable[..., Any] | None, origins: tuple[str, ...]) -> None:
    """Add the routes of the Files API to a router.

    Parameters:
        router: The router.
        store: The store.
        user: A dependency that returns the id of the user. Default: the name of the API key.
        origins: Origins whose pages may upload files with cookies.
    """
    User: Any = user_parameter(user)

    @without_permit
    async def create_file(request: Request, user: User) -> Any:
        stored = await uploaded(request, store, user)
        if stored is None:
            return Response(status_code=CLIENT_GONE)
        return document_response(_document(stored).model_dump())

    # The body is a form, and is read by hand, so that a client that may not upload is refused before.
    router.add_api_route(
        "/files",
        create_file,
        methods=["POST"],
        response_model=OpenAIFileDocument,
        openapi_extra=form_of(purpose="string"),
        route_class_override=checked(OpenAIRoute, form_checks(store, origins)),
    )

    @router.get("/files")
    @without_permit
    async def list_files(
        user: User,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
        purpose: str | None = None,
    ) -> OpenAIFileList:
        files = [file for file in await store.list(user) if purpose in (None, file.purpose)]
        if order == "asc":
            files.reverse()
        if after is not None:
            first = next((number for number, file in enumerate(files, 1) if file.id == after), None)
            if first is None:
                raise InvalidParameter(f"there is no file {after[:100]!r} in the list", "after")
            files = files[first:]
        page = files[:limit]
        first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
        return OpenAIFileList(
            data=[_document(file) for file in page], first_id=first_id, last_id=last_id, has_more=len(files) > limit
        )

    @router.get("/files/{file_id}")
    @without_permit
    async def get_file(file_id: str, user: User) -> OpenAIFileDocument:
        return _document(await stored_file(store, user, file_id))

    @router.get("/files/{file_id}/content", response_class=Response)
    @without_permit
    async def get_file_content(file_id: str, request: Request, user: User) -> Any:
        return content_response(store, await stored_file(store, user, file_id), request, origins)

    @router.delete("/files/{file_id}")
    @without_permit
    async def delete_file(file_id: str, user: User) -> DeletedFile:
        if not await store.delete(user, file_id):
            raise missing_file(file_id)
        return DeletedFile(id=file_id)


def _document(file: StoredFile) -> OpenAIFileDocument:
    return OpenAIFileDocument(
        id=file.id,
        bytes=file.size,
        created_at=int(file.created.timestamp()),
        filename=file.name,
        purpose=file.purpose,
    )
