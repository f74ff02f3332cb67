"""OpenAI's SDK uploads files and names them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from app_toolkit.chat import ChatEvent, ChatRequest, FileStore, TextEvent, openai_router
from tests.chat.served import served

openai = pytest.importorskip("openai", reason="openai is not installed")

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator["openai.AsyncOpenAI"]:
    store = FileStore(tmp_path, max_size=1_000)

    async def reader(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        (attachment,) = request.messages[-1].attachments
        yield TextEvent((await store.read(attachment)).decode())

    app = FastAPI()
    app.include_router(openai_router(reader, files=store), prefix="/v1")
    async with served(app) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        yield client


async def test_files_are_created_listed_read_and_deleted(client: "openai.AsyncOpenAI") -> None:
    files = [
        await client.files.create(file=(f"{number}.jsonl", b'{"a": 1}\n'), purpose=purpose)
        for number, purpose in enumerate(("user_data", "batch", "user_data"))
    ]
    first = files[0]
    assert (first.filename, first.bytes, first.purpose, first.object) == ("0.jsonl", 9, "user_data", "file")
    assert await client.files.retrieve(first.id) == first
    assert (await client.files.content(first.id)).content == b'{"a": 1}\n'
    assert [file async for file in client.files.list(limit=2)] == files[::-1]
    assert [file async for file in client.files.list(purpose="batch", order="asc")] == [files[1]]
    deleted = await client.files.delete(first.id)
    assert (deleted.id, deleted.deleted) == (first.id, True)
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match="there is no file"):
            await call(first.id)


async def test_a_response_reads_a_file_by_its_id(client: "openai.AsyncOpenAI") -> None:
    file = await client.files.create(file=("a.txt", b"hello"), purpose="user_data")
    content = [{"type": "input_file", "file_id": file.id}]
    response = await client.responses.create(model="default", input=[{"role": "user", "content": content}])
    assert response.output_text == "hello"
    items = [item async for item in client.responses.input_items.list(response.id)]
    assert items[0].content[0].file_id == file.id


async def test_errors_have_the_format_of_openai(client: "openai.AsyncOpenAI") -> None:
    with pytest.raises(openai.APIStatusError, match="the limit of a file") as raised:
        await client.files.create(file=("a.txt", b"a" * 1_001), purpose="user_data")
    assert (raised.value.status_code, raised.value.code) == (413, "file_too_large")
    with pytest.raises(openai.BadRequestError, match="no file"):
        await client.files.list(after="file-1")
