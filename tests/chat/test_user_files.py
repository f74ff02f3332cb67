"""Messages that name files, in each protocol."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Header
from starlette.testclient import TestClient

from app_toolkit import Toolkit
from app_toolkit.chat import (
    Attachment,
    ChatError,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    FileStore,
    TextEvent,
    ai_sdk_router,
    anthropic_router,
    openai_router,
    websocket_router,
)
from app_toolkit.chat.openai.compatible import OpenAICompatible
from app_toolkit.chat.user_files import UserFiles
from tests.chat.served import in_process, served

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n"


class Reader:
    """A model that says what is in the attachments, and counts its calls."""

    def __init__(self, store: FileStore) -> None:
        self.calls = 0
        self._store = store

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.calls += 1
        for message in request.messages:
            for attachment in message.attachments:
                content = await self._store.read(attachment)
                yield TextEvent(f"{attachment.name} {attachment.media_type} {content.decode()}")


async def current_user(x_user: Annotated[str, Header()] = "ada") -> str:
    return x_user


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


@pytest.fixture
def reader(store: FileStore) -> Reader:
    return Reader(store)


@pytest.fixture
def app(store: FileStore, reader: Reader) -> FastAPI:
    app = FastAPI()
    options: Any = {"files": store, "user": current_user}
    app.include_router(openai_router(reader, **options), prefix="/v1")
    app.include_router(anthropic_router(reader, **options), prefix="/anthropic")
    app.include_router(ai_sdk_router(reader, resume=False, **options), prefix="/chat")
    return app


def completion(id: str) -> tuple[str, dict[str, Any]]:
    content = [{"type": "file", "file": {"file_id": id}}]
    return "/v1/chat/completions", {"model": "default", "messages": [{"role": "user", "content": content}]}


def response(id: str) -> tuple[str, dict[str, Any]]:
    content = [{"type": "input_file", "file_id": id}]
    return "/v1/responses", {"model": "default", "input": [{"role": "user", "content": content}], "store": False}


def image_response(id: str) -> tuple[str, dict[str, Any]]:
    content = [{"type": "input_image", "file_id": id, "detail": "auto"}]
    return "/v1/responses", {"model": "default", "input": [{"role": "user", "content": content}], "store": False}


def message(id: str) -> tuple[str, dict[str, Any]]:
    content = [{"type": "document", "source": {"type": "file", "file_id": id}}]
    messages = [{"role": "user", "content": content}]
    return "/anthropic/messages", {"model": "default", "max_tokens": 10, "messages": messages}


def ui_message(id: str) -> tuple[str, dict[str, Any]]:
    parts = [{"type": "file", "mediaType": "text/html", "url": f"/api/files/{id}/content"}]
    return "/chat", {"messages": [{"id": "m", "role": "user", "parts": parts}]}


@pytest.mark.parametrize("body", [completion, response, image_response, message, ui_message])
async def test_a_message_names_a_file_and_the_model_reads_it(
    app: FastAPI, store: FileStore, reader: Reader, body: Callable[[str], tuple[str, dict[str, Any]]]
) -> None:
    file = await store.put("ada", b"hello", name="a.txt")
    async with in_process(app) as http:
        path, document = body(file.id)
        answer = await http.post(path, json=document)
        assert answer.status_code == 200, answer.text
        assert "a.txt text/plain hello" in answer.text
        for unknown, user in ((file.id, "bob"), ("file-1", "ada"), (f"file-{'0' * 64}", "ada")):
            if path == "/chat" and unknown == "file-1":
                continue  # the address of something else
            path, document = body(unknown)
            answer = await http.post(path, json=document, headers={"x-user": user})
            assert answer.status_code == 404, answer.text
            assert f"there is no file '{unknown}'" in answer.text
    assert reader.calls == 1


async def test_a_websocket_names_a_file(store: FileStore, reader: Reader) -> None:
    app = Toolkit(title="a")
    app.include_router(websocket_router(reader, files=store), prefix="/ws")
    file = await store.put("default", b"hello", name="a.txt")
    with TestClient(app) as client, client.websocket_connect("/ws") as socket:
        for number, (id, expected) in enumerate([(file.id, "a.txt text/plain hello"), ("file-1", "there is no file")]):
            content = [{"type": "file", "file": {"file_id": id}}]
            socket.send_json({"type": "chat", "id": str(number), "messages": [{"role": "user", "content": content}]})
            events = [socket.receive_json()]
            while events[-1]["type"] not in ("finish", "error"):
                events.append(socket.receive_json())
            assert expected in json.dumps(events)


async def test_a_router_without_a_store_keeps_no_files(reader: Reader) -> None:
    app = FastAPI()
    app.include_router(openai_router(reader), prefix="/v1")
    async with in_process(app) as http:
        path, document = completion("file-1")
        answer = await http.post(path, json=document)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file_id")
        assert (await http.get("/v1/files")).status_code == 404


async def test_a_conversation_goes_on_without_a_deleted_file_of_an_earlier_message(store: FileStore) -> None:
    file = await store.put("ada", b"hello")
    attachment = Attachment("text/plain", store.url_of(file.id))
    kept = Attachment("text/plain", "https://example.com" + store.url_of(f"file-{'0' * 64}"))
    question = ChatMessage("user", "what?", attachments=(attachment, kept))
    request = ChatRequest((question, ChatMessage("assistant", "hello"), ChatMessage("user", "and now?")))
    files = UserFiles(store, "ada")
    found = (await files.resolved(request)).messages[0].attachments
    assert found == (Attachment("text/plain", store.url_of(file.id), "file", file.id), kept)
    await store.delete("ada", file.id)
    assert (await files.resolved(request)).messages[0].attachments == (kept,)
    with pytest.raises(ChatError, match="there is no file"):
        await files.resolved(ChatRequest((ChatMessage("assistant", "hello"), question)))


async def test_another_server_gets_the_content_of_a_file(store: FileStore) -> None:
    pytest.importorskip("openai", reason="openai is not installed")
    upstream = FastAPI()
    requests: list[ChatRequest] = []

    async def recorded(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        requests.append(request)
        yield TextEvent("ok")

    upstream.include_router(openai_router(recorded), prefix="/v1")
    file = await store.put("ada", PNG, name="a.png")
    attached = ChatMessage("user", "what?", attachments=(Attachment("image/png", "", None, file.id),))
    async with served(upstream) as url:
        for files in (store, None):
            model = OpenAICompatible(f"{url}/v1", files=files)
            events = model.chat(ChatRequest((attached,)))
            try:
                if files is None:
                    with pytest.raises(ChatError, match="OpenAICompatible has no files"):
                        await anext(events)
                else:
                    assert await anext(events) == TextEvent("ok")
            finally:
                await events.aclose()
                await model.aclose()
    (request,) = requests
    (attachment,) = request.messages[0].attachments
    assert await store.read(attachment) == PNG
    assert attachment.url.startswith("data:image/png;base64,")
