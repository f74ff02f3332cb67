"""Files in places of fsspec: its memory, its local files, and S3 with a server."""

import asyncio
import pickle
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app_toolkit.chat import ChatError, FileStore, files_router
from tests.chat.served import in_process

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + bytes(1_000)

PART = 6 * 2**20
"""Bytes: more than S3 takes in one part, so that an upload has several."""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """The options of a server of S3 with a bucket `files`."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server_module = pytest.importorskip("moto.server", reason="moto is not installed")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {"endpoint_url": f"http://{host}:{port}", "key": "tests", "secret": "tests"}
    fsspec.filesystem("s3", **options).mkdir("files")
    yield options
    server.stop()


@pytest.fixture(params=["memory", "local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    limits: dict[str, Any] = {"max_size": 20 * 2**20, "max_user_files": 5}
    match request.param:
        case "memory":
            return FileStore(f"memory://{uuid.uuid4().hex}", **limits)
        case "local":
            return FileStore(f"file://{tmp_path}/files", **limits)
    options = request.getfixturevalue("s3")
    return FileStore(f"s3://files/{uuid.uuid4().hex}", storage_options=options, **limits)


async def test_a_file_is_kept_and_deleted(store: FileStore) -> None:
    file = await store.put("ada", PNG, name="a.png")
    other = pickle.loads(pickle.dumps(store))
    assert await other.list("ada") == [file]
    assert await other.list("bob") == []
    assert b"".join([chunk async for chunk in other.content(file.id)]) == PNG
    assert await other.delete("ada", file.id)
    assert await store.list("ada") == []
    with pytest.raises(ChatError, match="there is no file"):
        await anext(store.content(file.id))


async def test_an_upload_in_parts_appears_as_a_whole_or_not_at_all(store: FileStore) -> None:
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def chunks(breaks: bool) -> AsyncIterator[bytes]:
        yield b"a" * PART
        waiting.set()
        await go_on.wait()
        if breaks:
            raise ValueError("the client has gone")
        yield b"b" * PART

    uploads = [asyncio.ensure_future(store.put("ada", chunks(breaks))) for breaks in (True, False)]
    await waiting.wait()
    assert await store.list("ada") == []
    go_on.set()
    with pytest.raises(ValueError, match="has gone"):
        await uploads[0]
    file = await uploads[1]
    assert await store.list("ada") == [file]
    assert file.size == 2 * PART


async def test_a_file_is_deleted_with_the_last_conversation_that_refers_to_it(store: FileStore) -> None:
    file = await store.put("ada", PNG)
    for conversation in ("c", "d"):
        assert await store.hold("ada", [file.id], conversation) == {file.id: file}
    await store.release("ada", [file.id], "c")
    assert await store.get("ada", file.id) == file
    await store.release("ada", [file.id], "d")
    assert await store.get("ada", file.id) is None


async def test_the_number_of_files_is_limited(store: FileStore) -> None:
    for number in range(5):
        await store.put("ada", f"{number}".encode())
    with pytest.raises(ChatError, match="the user has 5 files"):
        await store.put("ada", b"6")


async def test_a_client_gets_a_file(store: FileStore) -> None:
    app = FastAPI()
    app.include_router(files_router(store), prefix="/api/files")
    async with in_process(app) as http:
        sent = await http.post("/api/files", files={"file": ("a.png", PNG)})
        assert sent.status_code == 201, sent.text
        content = await http.get(sent.json()["url"])
    assert (content.content, content.headers["content-length"]) == (PNG, str(len(PNG)))


async def test_a_place_that_cannot_be_reached_is_a_503() -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    config = {"retries": {"max_attempts": 1}, "connect_timeout": 1}
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "a", "secret": "b", "config_kwargs": config}
    store = FileStore("s3://files", storage_options=options)
    with pytest.raises(ChatError, match="the files cannot be read or written") as raised:
        await store.put("ada", PNG)
    assert raised.value.status == 503
