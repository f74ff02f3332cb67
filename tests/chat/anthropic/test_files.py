"""The Files API of Anthropic over HTTP, beside that of OpenAI with the same prefix."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from app_toolkit.chat import FileStore, anthropic_router, openai_router
from app_toolkit.chat.echo import EchoModel
from tests.chat.served import in_process

pytestmark = pytest.mark.anyio

VERSION = {"anthropic-version": "2023-06-01"}


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    store, app = FileStore(tmp_path), FastAPI()
    app.include_router(anthropic_router(EchoModel(), files=store), prefix="/v1")
    app.include_router(openai_router(EchoModel(), files=store), prefix="/v1")
    return app


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(app) as http:
        http.headers.update(VERSION)
        yield http


async def test_files_are_uploaded_listed_read_and_deleted(http: httpx.AsyncClient) -> None:
    files = [
        (await http.post("/v1/files", files={"file": (f"{number}.txt", b"hello", "text/plain")})).json()
        for number in range(3)
    ]
    file = files[0]
    path = f"/v1/files/{file['id']}"
    assert file.items() >= {"type": "file", "filename": "0.txt", "mime_type": "text/plain", "size_bytes": 5}.items()
    assert (await http.get(path)).json() == file
    assert (await http.get(f"{path}/content")).text == "hello"
    page = (await http.get("/v1/files", params={"limit": 2})).json()
    assert page["data"] == files[:0:-1]
    page = (await http.get("/v1/files", params={"limit": 2, "page": page["next_page"]})).json()
    assert page == {"data": [file], "next_page": None}
    assert (await http.get("/v1/files", params={"ids[]": [file["id"], "file-1"]})).json()["data"] == [file]
    assert (await http.delete(path)).json() == {"id": file["id"], "type": "file_deleted"}
    for missing in (await http.get(path), await http.get(f"{path}/content"), await http.delete(path)):
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert (await http.get("/v1/files", params={"page": "page_1"})).status_code == 400


async def test_clients_of_both_apis_share_the_path(http: httpx.AsyncClient) -> None:
    id = (await http.post("/v1/files", files={"file": ("a.txt", b"hello")})).json()["id"]
    del http.headers["anthropic-version"]
    assert (await http.get(f"/v1/files/{id}")).json()["object"] == "file"
    assert (await http.post("/v1/files", files={"file": ("b.txt", b"hello")})).json()["object"] == "file"
    assert (await http.delete(f"/v1/files/{id}")).json()["object"] == "file"
