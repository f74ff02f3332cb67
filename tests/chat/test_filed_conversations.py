"""Stored conversations whose messages refer to files."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import connect

from app_toolkit import Toolkit
from app_toolkit.chat import (
    ChatEvent,
    ChatRequest,
    FileEvent,
    FileStore,
    SQLConversationStore,
    StoredMessage,
    TextEvent,
    ai_sdk_router,
    conversations_router,
    files_router,
    openai_router,
    websocket_router,
)
from app_toolkit.chat.filed_conversations import FiledConversations
from app_toolkit.streaming import MemoryStreamLog
from tests.chat.served import asking, in_process

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n"
DATA = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files")


class Painter:
    """A model that says what files it sees, and paints one if it is asked to."""

    def __init__(self, files: FileStore) -> None:
        self._files = files

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        seen = [
            (message.role, attachment.file_id is not None, await self._files.read(attachment) == PNG)
            for message in request.messages
            for attachment in message.attachments
        ]
        yield TextEvent(json.dumps(seen))
        if "paint" in request.prompt:
            yield FileEvent("image/png", data=PNG)
        if "film" in request.prompt:
            yield FileEvent("video/mp4", data=b"film")


@pytest.fixture
async def app(files: FileStore) -> AsyncIterator[FastAPI]:
    store, app, log, model = SQLConversationStore(":memory:"), Toolkit(title="a"), MemoryStreamLog(), Painter(files)
    options: Any = {"conversations": store, "files": files, "log": log}
    app.include_router(ai_sdk_router(model, **options), prefix="/api/chat")
    app.include_router(openai_router(model, **options), prefix="/v1")
    app.include_router(websocket_router(model, **options), prefix="/ws")
    app.include_router(conversations_router(store, files=files), prefix="/api/conversations")
    app.include_router(files_router(files), prefix="/api/files")
    yield app
    await store.close()


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(app) as http:
        yield http


def question(id: str, url: str = DATA, text: str = "what?") -> dict[str, Any]:
    file = {"type": "file", "mediaType": "image/png", "filename": "a.png", "url": url}
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}, file]}


async def ask(http: httpx.AsyncClient, chat: str, *messages: dict[str, Any], **fields: Any) -> str:
    response = await http.post("/api/chat", json={"id": chat, "messages": messages, **fields})
    assert response.status_code == 200, response.text
    return response.text


async def stored(http: httpx.AsyncClient, chat: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = (await http.get(f"/api/conversations/{chat}?all=true")).json()["messages"]
    return messages


def file_urls(message: dict[str, Any]) -> list[str]:
    return [part["url"] for part in message["parts"] if part["type"] == "file"]


async def test_the_content_of_a_message_moves_to_the_files(http: httpx.AsyncClient) -> None:
    assert r"[[\"user\", true, true]]" in await ask(http, "c", question("q"))
    next_question = {"id": "r", "role": "user", "parts": [{"type": "text", "text": "and now?"}]}
    answer = await http.post("/api/chat", json={"id": "c", "message": next_question})
    assert r"[[\"user\", true, true]]" in answer.text
    assert len((await http.get("/api/conversations/c")).json()["messages"]) == 4
    (url,) = file_urls((await stored(http, "c"))[0])
    content = await http.get(url)
    assert (content.content, content.headers["content-type"]) == (PNG, "image/png")
    assert [file["name"] for file in (await http.get("/api/files")).json()] == ["a.png"]


async def test_a_question_that_is_asked_again_with_its_content_is_no_edit(http: httpx.AsyncClient) -> None:
    await ask(http, "c", question("q"))
    await ask(http, "c", question("q"), trigger="regenerate-message")
    assert [message["role"] for message in await stored(http, "c")] == ["user", "assistant", "assistant"]


async def test_a_file_of_a_model_moves_too_if_its_type_is_allowed(http: httpx.AsyncClient) -> None:
    await ask(http, "c", question("q", text="paint"))
    await ask(http, "d", question("q", text="film"))
    (painted,) = file_urls((await stored(http, "c"))[1])
    assert (await http.get(painted)).content == PNG
    assert file_urls((await stored(http, "d"))[1]) == ["data:video/mp4;base64,ZmlsbQ=="]


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        (f"/api/files/file-{'0' * 64}/content", 404, "there is no file"),
        ("data:image/png;base64,PGh0bWw+", 415, "says that it is image/png, but its content is not"),
        ("data:image/png;base64,?", 400, "data: URL that is not valid"),
    ],
)
async def test_a_message_with_a_wrong_file_is_not_stored(
    http: httpx.AsyncClient, url: str, status: int, said: str
) -> None:
    response = await http.post("/api/chat", json={"id": "c", "messages": [question("q", url)]})
    assert response.status_code == status
    assert said in response.text
    assert (await http.get("/api/conversations/c")).status_code == 404


async def test_files_are_deleted_with_the_last_conversation_that_refers_to_them(http: httpx.AsyncClient) -> None:
    uploaded = (await http.post("/api/files", files={"file": ("b.png", PNG)})).json()["url"]
    await ask(http, "c", question("q"))
    await ask(http, "c", question("r", uploaded))
    await ask(http, "d", question("s", f"http://test{uploaded}"))
    (moved,) = file_urls((await stored(http, "c"))[0])
    await http.delete("/api/conversations/c")
    assert [(await http.get(url)).status_code for url in (moved, uploaded)] == [404, 200]
    await http.delete("/api/conversations/d")
    assert (await http.get("/api/files")).json() == []


async def test_a_conversation_that_was_refused_keeps_no_file(http: httpx.AsyncClient) -> None:
    url = (await http.post("/api/files", files={"file": ("b.png", PNG)})).json()["url"]
    await ask(http, "c", question("q", url))
    asked = question("r", url)
    asked["parts"].append(asked["parts"][-1] | {"url": f"/api/files/file-{'0' * 64}/content"})
    assert (await http.post("/api/chat", json={"id": "refused", "messages": [asked]})).status_code == 404
    await http.delete("/api/conversations/c")
    assert (await http.get(url)).status_code == 404


async def test_a_file_in_use_is_not_deleted_while_conversations_come_and_go(files: FileStore) -> None:
    file = await files.put("ada", b"hello")

    async def come_and_go(conversation: str) -> int:
        held = 0
        for _ in range(20):
            if file.id in await files.hold("ada", [file.id], conversation):
                held += 1
                assert await files.get("ada", file.id) == file
            await files.release("ada", [file.id], conversation)
        return held

    await files.hold("ada", [file.id], "stays")
    assert await asyncio.gather(*(come_and_go(f"{number}") for number in range(3))) == [20, 20, 20]
    assert b"".join([chunk async for chunk in files.content(file.id)]) == b"hello"
    await files.release("ada", [file.id], "stays")
    assert await files.list("ada") == []


async def test_items_of_openai_name_files_by_their_ids(http: httpx.AsyncClient) -> None:
    image = {"type": "input_image", "image_url": DATA, "detail": "auto"}
    pdf = {"type": "input_file", "file_data": base64.b64encode(b"%PDF-1").decode(), "filename": "a.pdf"}
    items = [{"type": "message", "role": "user", "content": [image, pdf]}]
    conversation = (await http.post("/v1/conversations", json={"items": items})).json()["id"]
    (item,) = (await http.get(f"/v1/conversations/{conversation}/items")).json()["data"]
    assert [part["type"] for part in item["content"]] == ["input_image", "input_file"]
    names = {file["id"]: file["filename"] for file in (await http.get("/v1/files")).json()["data"]}
    assert [names[part["file_id"]] for part in item["content"]] == ["file.png", "a.pdf"]
    body = {"model": "default", "input": "what?", "conversation": conversation, "store": False}
    answer = await http.post("/v1/responses", json=body)
    assert r"[[\"user\", true, true], [\"user\", true, false]]" in answer.text
    await http.delete(f"/v1/conversations/{conversation}")
    assert (await http.get("/v1/files")).json()["data"] == []


async def test_clients_of_openai_read_the_files_of_a_chat(http: httpx.AsyncClient) -> None:
    await ask(http, "c", question("q"))
    items = (await http.get("/v1/conversations/c/items?order=asc")).json()["data"]
    ((file,)) = (await http.get("/v1/files")).json()["data"]
    assert items[0]["content"][1] == {"type": "input_image", "file_id": file["id"], "detail": "auto"}


async def test_a_message_over_a_websocket_refers_to_its_files(app: FastAPI, files: FileStore) -> None:
    uploaded = await files.put("default", PNG)
    parts = [
        {"type": "image_url", "image_url": {"url": DATA}},
        {"type": "file", "file": {"file_id": uploaded.id}},
    ]
    command = {"type": "chat", "id": "r", "conversation": "c", "messages": [{"role": "user", "content": parts}]}
    async with (
        asking(app) as http,
        connect(f"{http.base_url}/ws".replace("http", "ws"), proxy=None) as socket,
    ):
        await socket.send(json.dumps(command))
        while json.loads(await socket.recv())["type"] != "finish":
            pass
        moved, named = file_urls((await stored(http, "c"))[0])
        assert (await http.get(moved)).content == PNG
        assert named == files.url_of(uploaded.id)


async def test_a_file_of_a_response_whose_conversation_was_deleted_meanwhile_is_deleted(files: FileStore) -> None:
    store = SQLConversationStore(":memory:")
    response = StoredMessage("1", "assistant", [{"type": "file", "mediaType": "image/png", "url": DATA}])
    assert not await FiledConversations(store, files).write("ada", "deleted", response)
    assert await files.list("ada") == []
    await store.close()
