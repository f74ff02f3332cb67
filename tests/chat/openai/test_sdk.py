"""OpenAI's SDK understands chat completions, text completions and embeddings."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from app_toolkit import Toolkit
from app_toolkit.chat import ChatError, ChatEvent, ChatRequest, TextEvent, live_response, openai_router
from app_toolkit.chat.echo import EchoModel
from app_toolkit.errors import QueueFull
from tests.chat.served import served
from tests.docs.pages import page

openai = pytest.importorskip("openai", reason="openai is not installed")

pytestmark = pytest.mark.anyio

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


class Waiting:
    """A model that counts the generators that run, waits for ever after a word, and is full at first if it is to."""

    def __init__(self) -> None:
        self.running = 0
        self.refusals = 0
        self.thought = asyncio.Event()

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.running += 1
        try:
            if request.prompt == "busy" and self.refusals < 2:
                self.refusals += 1
                raise QueueFull("10 requests wait already")
            if request.prompt == "limit":
                raise ChatError("too many tokens", status=429)
            yield TextEvent("word")
            if request.prompt == "break":
                raise ChatError("it broke")
            if request.prompt == "think":
                await self.thought.wait()
                yield TextEvent(" thought")
            if request.prompt == "wait":
                await asyncio.Event().wait()
        finally:
            self.running -= 1


async def lengths(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text)), 0.5] for text in texts]


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
async def client(waiting: Waiting) -> AsyncIterator[Any]:
    app = Toolkit()
    router = openai_router({"echo": EchoModel.bind(), "waiting": waiting}, embeddings={"lengths": lengths})
    app.include_router(router, prefix="/v1")
    async with (
        served(app) as url,
        openai.DefaultAsyncHttpxClient(trust_env=False) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", http_client=http, max_retries=0) as sdk,
    ):
        yield sdk
    assert not waiting.running


def said(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


async def test_the_helper_for_streams_joins_tool_calls_and_their_result_is_understood(client: Any) -> None:
    messages: list[Any] = said("/tool")
    async with client.chat.completions.stream(model="echo", messages=messages, tools=TOOLS) as stream:
        completion = await stream.get_final_completion()
    (choice,) = completion.choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert (call.function.name, call.function.arguments) == ("look_up", '{"text": "hello"}')
    messages += [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "it rains"},
    ]
    completion = await client.chat.completions.create(model="echo", messages=messages, tools=TOOLS)
    assert completion.choices[0].message.content == "the tool returned it rains"


async def test_errors_are_raised_as_those_of_the_sdk(client: Any) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        await create(model="missing", messages=said("hello"), stream=True)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        await create(model="echo", messages=[{"role": "robot", "content": "a"}])
    assert (wrong.value.param, wrong.value.type) == ("messages[0].role", "invalid_request_error")
    with pytest.raises(openai.RateLimitError) as limited:
        await create(model="waiting", messages=said("limit"))
    assert limited.value.code == "rate_limit_exceeded"
    with pytest.raises(openai.InternalServerError) as full:
        await create(model="waiting", messages=said("busy"), stream=True)
    assert (full.value.status_code, full.value.code) == (503, "queue_full")


async def test_the_sdk_ignores_the_comments_of_a_slow_stream(
    client: Any, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, beats = live_response.EventWriter.write, []

    async def counted(self: Any, frames: bytes) -> None:
        await write(self, frames)
        if frames == live_response.HEARTBEAT:
            beats.append(frames)
            if len(beats) == 3:
                waiting.thought.set()

    monkeypatch.setattr(live_response, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(live_response.EventWriter, "write", counted)
    stream = await client.chat.completions.create(model="waiting", messages=said("think"), stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "word thought"


async def test_the_sdk_reads_the_app_of_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where the store is
    shown = page("docs/chat-openai.md")
    code = "\n".join(shown.shown("py"))
    names: dict[str, Any] = {}
    defined = shown.run()
    async with served(defined["app"]) as url:
        code = code.replace("http://127.0.0.1:8000", url)
        await asyncio.to_thread(exec, compile(code, shown.name, "exec"), names)
    for client in ("client", "stored"):
        names[client].close()
    await defined["store"].close()
    assert capsys.readouterr().out == "HELLO \nTELL ME \nGO ON \n['user', 'assistant']\n"
