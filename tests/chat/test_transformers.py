"""A tiny model with random weights, which generates several sequences at the same time."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from app_toolkit import ConfigError, Toolkit
from app_toolkit.chat import (
    Attachment,
    ChatError,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    FinishEvent,
    TextEvent,
    Tool,
    UsageEvent,
    openai_router,
)
from app_toolkit.chat.transformers import Transformers
from app_toolkit.errors import QueueFull
from tests.chat import tiny_model as tiny
from tests.chat.served import asking, chunks

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # torch alone takes seconds to import

PROMPTS = ["w3", "w10 w20 w30 w40 w50 w60 w70", " ".join(tiny.WORDS[:90]), "w7 w7 w7", "w150 w2"]
LENGTHS = [30, 12, 25, 1, 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny.save(path)
    return path


def made(folder: Path, **options: Any) -> Transformers:
    return Transformers(str(folder), device="cpu", **{"cache_tokens": 1024, "max_batch_tokens": 32, **options})


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Transformers]:
    model = made(folder, max_running=3, max_waiting=2)
    yield model
    asyncio.run(model.aclose())


def said(text: str, **fields: Any) -> ChatRequest:
    return ChatRequest((ChatMessage("user", text),), **{"temperature": 0, **fields})


async def events(model: Transformers, request: ChatRequest) -> list[ChatEvent]:
    return [event async for event in model.chat(request)]


def text_of(found: list[ChatEvent]) -> str:
    return "".join(event.text for event in found if isinstance(event, TextEvent))


def alone(prompt: str, length: int) -> tuple[str, int]:
    """The text and the number of tokens that transformers itself generates for a prompt of a user."""
    tokenizer = tiny.tiny_tokenizer()
    tokens = tiny.alone(tokenizer(f"user {prompt} assistant")["input_ids"], length)
    return tokenizer.decode(tokens, skip_special_tokens=True), len(tokens)


async def test_requests_of_different_lengths_run_together_as_each_would_alone(model: Transformers) -> None:
    asked = [said(prompt, max_tokens=length) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    texts = set()
    for request, found in zip(asked, await asyncio.gather(*(events(model, each) for each in asked)), strict=True):
        assert request.max_tokens is not None
        text, generated = alone(request.prompt, request.max_tokens)
        assert text_of(found) == text
        usage, finish = found[-2:]
        assert usage == UsageEvent(len(request.prompt.split()) + 2, generated)
        assert finish == FinishEvent("length" if generated == request.max_tokens else "stop")
        texts.add(text)
    assert len(texts) == len(asked)


async def test_the_text_ends_with_an_end_token_of_the_model(folder: Path, tmp_path: Path) -> None:
    end = tiny.alone(tiny.tiny_tokenizer()("user w3 assistant")["input_ids"], 8)[5]
    tiny.save(tmp_path, end_token=end)
    model = made(tmp_path)
    try:
        found = await events(model, said("w3"))
    finally:
        await model.aclose()
    assert text_of(found) == alone("w3", 5)[0]
    assert found[-2:] == [UsageEvent(3, 6), FinishEvent("stop")]


async def test_the_text_ends_before_a_stop_string(model: Transformers) -> None:
    text, _ = alone("w3", 30)
    words = text.split()
    stop = f"{words[4]} {words[5]}"
    found = await events(model, said("w3", max_tokens=30, stop=(stop, "never")))
    assert text_of(found) == text[: text.index(f"{words[4]} {words[5]}")]
    assert found[-2:] == [UsageEvent(3, 6), FinishEvent("stop", stop)]
    assert (await events(model, said("w3", max_tokens=4)))[-1] == FinishEvent("length")


async def test_a_request_without_a_limit_ends_with_the_context_of_the_model(model: Transformers) -> None:
    found = await events(model, said("w3"))
    usage = found[-2]
    assert isinstance(usage, UsageEvent)
    _, generated = alone("w3", tiny.CONTEXT - 3)
    assert usage.output_tokens == generated


async def test_samples_differ_and_greedy_ones_do_not(model: Transformers) -> None:
    hot, cold = said("w3", max_tokens=20, temperature=1), said("w3", max_tokens=20, temperature=1e-30)
    samples = [text_of(await events(model, hot)) for _ in range(3)]
    assert len(set(samples)) > 1
    narrow = said("w3", max_tokens=20, temperature=1, top_p=0.0)
    text, _ = alone("w3", 20)
    assert [text_of(await events(model, each)) for each in (cold, narrow)] == [text, text]


async def test_a_cancelled_request_makes_room(folder: Path) -> None:
    model = made(folder, max_running=1, max_waiting=0)
    try:
        async with aclosing(model.chat(said("w3"))) as first:
            await anext(first)
            with pytest.raises(QueueFull):
                await events(model, said("w7"))
        assert text_of(await events(model, said("w7", max_tokens=3))) == alone("w7", 3)[0]
    finally:
        await model.aclose()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (said(" ".join(["w1"] * 260)), "the prompt has 262 tokens: the model can read 255"),
        (said("w1", temperature=-1), "temperature is -1: it must be from 0 to 100"),
        (said("w1", temperature=float("nan")), "temperature is nan"),
        (said("w1", top_p=2), "top_p is 2: it must be from 0 to 1"),
        (said("w1", tools=(Tool("look_up"),)), "this model calls no tools"),
        (said("w1", response_format={"type": "json_object"}), "this model cannot write in the format 'json_object'"),
        (ChatRequest((ChatMessage("user", attachments=(Attachment("image/png", "data:,"),)),)), "reads text only"),
        (
            ChatRequest((ChatMessage("tool", "w1", tool_call_id="a"),)),
            "chat template refuses the messages: there is no",
        ),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused(
    model: Transformers, request_: ChatRequest, message: str
) -> None:
    with pytest.raises(ChatError, match=message) as refused:
        await events(model, request_)
    assert refused.value.status == 400


async def test_a_transformers_model_serves_a_router_and_is_healthy(folder: Path) -> None:
    app = Toolkit()
    tiny_model = Transformers.bind(str(folder), device="cpu")
    app.include_router(openai_router({"tiny": tiny_model}), prefix="/v1")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "w3"}], "temperature": 0, "max_tokens": 9}
    async with asking(app) as http:
        response = await http.post("/v1/chat/completions", json={**body, "stream": True})
        texts = [choice["delta"].get("content", "") for each in chunks(response.text) for choice in each["choices"]]
    assert "".join(texts) == alone("w3", 9)[0]
    assert len(texts) > 5


async def test_a_model_that_has_ended_is_not_healthy(folder: Path) -> None:
    model = made(folder)
    await model.check_health()
    await model.aclose()
    with pytest.raises(RuntimeError, match="does not run any more"):
        await model.check_health()
    with pytest.raises(ChatError, match="the model does not run"):
        await events(model, said("w3"))


def test_a_wrong_option_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Transformers: max_running = 0: must be at least 1"):
        Transformers(str(folder), max_running=0)
    tokenizer = tiny.tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    tiny.tiny_model().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"the tokenizer of {tmp_path} has no chat template"):
        Transformers(str(tmp_path))
