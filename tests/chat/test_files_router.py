"""The routes of files, under uvicorn."""

import asyncio
import re
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Header

from app_toolkit.chat import FileStore, api_keys, files_router
from tests.chat.served import asking, in_process, served
from tests.docs.pages import page
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(100))


async def current_user(x_user: Annotated[str, Header()] = "ada") -> str:
    return x_user


def app_with(store: FileStore, **options: Any) -> FastAPI:
    app = FastAPI()
    app.include_router(files_router(store, user=current_user, **options), prefix="/api/files")
    return app


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files", max_size=100_000)


def left(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_file_is_uploaded_listed_read_and_deleted(store: FileStore) -> None:
    async with in_process(app_with(store)) as http:
        response = await http.post("/api/files", files={"file": ("Bild ä.png", PNG, "image/png")})
        assert response.status_code == 201, response.text
        file = response.json()
        assert file["name"] == "Bild ä.png"
        assert (file["media_type"], file["size"]) == ("image/png", len(PNG))
        assert file["url"] == f"/api/files/{file['id']}/content"
        assert (await http.get("/api/files")).json() == [file]
        assert (await http.get("/api/files", params={"offset": 1})).json() == []
        assert (await http.get(f"/api/files/{file['id']}")).json() == file
        content = await http.get(file["url"])
        assert content.content == PNG
        for path in (f"/api/files/{file['id']}", file["url"]):
            foreign = await http.get(path, headers={"x-user": "bob"})
            assert (foreign.status_code, foreign.json()["code"]) == (404, "file_not_found")
        assert (await http.delete(f"/api/files/{file['id']}", headers={"x-user": "bob"})).status_code == 404
        assert (await http.delete(f"/api/files/{file['id']}")).status_code == 204
        assert (await http.get(file["url"])).status_code == 404


async def test_a_browser_shows_images_and_saves_everything_else(store: FileStore) -> None:
    async with in_process(app_with(store)) as http:
        for name, content, media_type, disposition in (
            ("a.png", PNG, "image/png", "inline; filename*=UTF-8''a.png"),
            ("ä b.html", b"<script>", "text/html", "attachment; filename*=UTF-8''%C3%A4%20b.html"),
        ):
            sent = await http.post("/api/files", files={"file": (name, content, media_type)})
            headers = (await http.get(sent.json()["url"])).headers
            assert headers["content-type"] == media_type
            assert headers["content-disposition"] == disposition
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["content-security-policy"].startswith("default-src 'none'")
            assert "sandbox" in headers["content-security-policy"]
            assert headers["cache-control"] == "private, no-cache"
            assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_content_is_read_in_ranges_and_not_sent_twice(store: FileStore) -> None:
    async with in_process(app_with(store)) as http:
        url = (await http.post("/api/files", files={"file": ("a.png", PNG)})).json()["url"]
        part = await http.get(url, headers={"range": "bytes=0-7"})
        assert (part.status_code, part.content) == (206, PNG[:8])
        again = await http.get(url, headers={"if-none-match": part.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("request_body", "status", "detail"),
    [
        ({"files": {"file": ("a.png", b"<html>", "image/png")}}, 415, "says that it is image/png"),
        ({"files": {"file": ("a.txt", b"a" * 100_001)}}, 413, "the limit of a file"),
        ({"files": {"file": ("a.txt", b"a" * 200_000)}}, 413, "the limit of this router"),
        ({"files": {"other": ("a.txt", b"a")}}, 400, "no file with the name file"),
        ({"files": {"file": ("a.txt", b"a")}, "data": {"purpose": "a" * 101}}, 400, "at most 100 characters"),
        ({"files": {"file": ("a.txt", b"a")}, "data": {"file": "a"}}, 201, ""),
        ({"content": b"{}", "headers": {"content-type": "application/json"}}, 415, "must be a form"),
        (
            {"content": b"--b", "headers": {"content-type": "multipart/form-data; boundary=x"}},
            400,
            "multipart|boundary|no file",
        ),
    ],
)
async def test_an_upload_that_is_refused_gets_one_sentence(
    store: FileStore, tmp_path: Path, request_body: dict[str, Any], status: int, detail: str
) -> None:
    async with in_process(app_with(store)) as http:
        response = await http.post("/api/files", **request_body)
        assert response.status_code == status, response.text
    if status != 201:
        assert any(words in response.json()["detail"] for words in detail.split("|"))
        assert left(tmp_path) == []


async def test_a_foreign_page_may_not_upload_with_cookies(store: FileStore) -> None:
    headers = {"origin": "https://chat.example.com", "cookie": "a=b"}
    for origins, status in (((), 403), (("https://chat.example.com",), 201)):
        async with in_process(app_with(store, origins=origins)) as http:
            response = await http.post("/api/files", files={"file": ("a.txt", b"a")}, headers=headers)
            assert response.status_code == status
            if status == 201:
                content = await http.get(response.json()["url"], headers=headers)
                assert content.headers["cross-origin-resource-policy"] == "cross-origin"


async def test_each_api_key_has_files_of_its_own(store: FileStore) -> None:
    keys = api_keys({"ada": "a" * 16, "bob": "b" * 16}, max_per_minute=3)
    app = FastAPI()
    app.include_router(files_router(store, user=keys), prefix="/api/files", dependencies=[Depends(keys)])
    async with in_process(app) as http:
        ada, bob = ({"authorization": f"Bearer {letter * 16}"} for letter in "ab")
        assert (await http.post("/api/files", files={"file": ("a.txt", b"a")})).status_code == 401
        assert (await http.post("/api/files", files={"file": ("a.txt", b"a")}, headers=ada)).status_code == 201
        assert [len((await http.get("/api/files", headers=key)).json()) for key in (ada, bob)] == [1, 0]
        assert (await http.get("/api/files", headers=ada)).status_code == 200
        assert (await http.get("/api/files", headers=ada)).status_code == 429


async def test_another_prefix_than_that_of_the_store_is_an_error(store: FileStore) -> None:
    app = FastAPI()
    app.include_router(files_router(store), prefix="/uploads")
    async with in_process(app) as http:
        response = await http.post("/uploads", files={"file": ("a.txt", b"a")})
    assert (response.status_code, left(store.path_of("file-" + "0" * 64).parents[1])) == (500, [])  # type: ignore[union-attr]


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(store: FileStore, tmp_path: Path) -> None:
    app = app_with(store)
    open_requests = 0

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        nonlocal open_requests
        if scope["type"] != "http":
            return await app(scope, receive, send)
        open_requests += 1
        try:
            await app(scope, receive, send)
        finally:
            open_requests -= 1

    async with served(counted) as url:  # type: ignore[arg-type]
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port or 0)) as client:
            client.sendall(
                b"POST /api/files HTTP/1.1\r\nhost: a\r\ncontent-length: 90000\r\n"
                b"content-type: multipart/form-data; boundary=b\r\n\r\n"
                b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\n' + b"a" * 50_000
            )
            await until(lambda: open_requests == 1)
        await until(lambda: open_requests == 0)
    assert left(tmp_path) == []


async def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    size, block = 200 * 2**20, b"a" * 2**20
    store = FileStore(tmp_path / "files", max_size=size)
    head = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'

    async def body() -> AsyncIterator[bytes]:
        yield head
        for _ in range(size // len(block)):
            yield block
            await asyncio.sleep(0)
        yield b"\r\n--b--\r\n"

    async with asking(app_with(store)) as http:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sent = await http.post(
            "/api/files",
            content=body(),
            headers={"content-type": "multipart/form-data; boundary=b"},
            timeout=PATIENCE_S,
        )
        assert sent.status_code == 201, sent.text
        read = 0
        async with http.stream("GET", sent.json()["url"]) as content:
            async for chunk in content.aiter_raw():
                read += len(chunk)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
    assert read == size
    assert grown < size / 2


async def test_the_example_of_the_page_reads_an_uploaded_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_TOOLKIT_DATA", str(tmp_path))
    shown = page("docs/chat-files.md")
    names = shown.run()
    async with in_process(names["app"]) as http:
        url = (await http.post("/api/files", files={"file": ("a.png", PNG)})).json()["url"]
        part = {"type": "file", "mediaType": "image/png", "url": url}
        body = {"id": "c", "messages": [{"id": "q", "role": "user", "parts": [part]}]}
        assert "a.png is image/png of 108 bytes" in (await http.post("/api/chat", json=body)).text
        assert (await http.get("/api/conversations/c")).json()["messages"][0]["parts"][0]["url"] == url
    await names["chats"].close()
    routes = set(re.findall(r"^\| `([A-Z]+) (/\S+)`", shown.text, re.MULTILINE))
    documented = {(method.lower(), path.removeprefix("/api").removeprefix("/v1")) for method, path in routes}
    paths = names["app"].openapi()["paths"]
    assert len(routes) == 10
    for prefix in ("/api", "/v1"):
        served_paths = {
            (method, re.sub(r"\{.*\}", "ID", path.removeprefix(prefix)))
            for path, methods in paths.items()
            if path.startswith(f"{prefix}/files")
            for method in methods
        }
        assert served_paths == documented
