"""The client of Ollama for Python."""

import base64
import secrets
from collections.abc import Awaitable
from typing import Any

import ollama
from cases import has_route, run, until_running, until_stopped

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def look_up(word: str) -> str:
    """Looks a word up.

    Args:
        word: The word.
    """
    return f"{word} is a word"


async def served(url: str, **options: Any) -> ollama.AsyncClient:
    await has_route(url, "/ollama/api/chat")
    return ollama.AsyncClient(f"{url}/ollama", trust_env=False, **options)


def said(prompt: str) -> Any:
    return [{"role": "user", "content": prompt}]


async def models(url: str, _: str) -> None:
    client = await served(url)
    assert [model.model for model in (await client.list()).models] == ["echo", "agent", "lengths"]
    assert "completion" in ((await client.show("echo")).capabilities or [])
    assert len((await client.ps()).models) == 3


async def chat(url: str, _: str) -> None:
    client = await served(url)
    answer = await client.chat("echo", said("hello world"), options={"temperature": 0})
    assert (answer.message.role, answer.message.content) == ("assistant", "hello world")
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert (answer.prompt_eval_count, answer.eval_count) == (2, 2)


async def streaming(url: str, _: str) -> None:
    client = await served(url)
    parts = [part async for part in await client.chat("echo", said("hello ä world"), stream=True)]
    assert [part.message.content for part in parts] == ["hello", " ä", " world", ""]
    assert [part.done for part in parts] == [False, False, False, True]


async def thinking(url: str, _: str) -> None:
    client = await served(url)
    answer = await client.chat("echo", said("/reason hello"), think=True)
    assert (answer.message.thinking, answer.message.content) == ("let me think ", "hello")
    answer = await client.chat("echo", said("/reason hello"), think=False)
    assert (answer.message.thinking, answer.message.content) == (None, "hello")


async def tools_of_the_client(url: str, _: str) -> None:
    client = await served(url)
    messages = said("/tool look_up")
    answer = await client.chat("echo", messages, tools=[look_up])
    (call,) = answer.message.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("look_up", {"text": "hello"})
    messages += [answer.message, {"role": "tool", "content": "it rains", "tool_name": "look_up"}]
    answer = await client.chat("echo", messages, tools=[look_up])
    assert answer.message.content == "the tool returned it rains"


async def tools_of_the_model(url: str, _: str) -> None:
    client = await served(url)
    answer = await client.chat("agent", said("hello"))
    assert (answer.message.content, answer.message.tool_calls) == ("I look.I found one.", None)


async def images(url: str, _: str) -> None:
    client = await served(url)
    message = {"role": "user", "content": "hello", "images": [base64.b64decode(PIXEL)]}
    assert (await client.chat("echo", [message])).message.content == "hello"


async def generate(url: str, _: str) -> None:
    client = await served(url)
    answer = await client.generate("echo", "hello world", system="Be brief.")
    assert (answer.response, answer.done) == ("hello world", True)
    parts = [part.response async for part in await client.generate("echo", "hello world", stream=True)]
    assert parts == ["hello", " world", ""]


async def embeddings(url: str, _: str) -> None:
    client = await served(url)
    assert (await client.embed("lengths", ["tea", "coffee"])).embeddings == [[3.0, 0.5], [6.0, 0.5]]
    assert (await client.embeddings("lengths", "tea")).embedding == [3.0, 0.5]


async def _error(call: Awaitable[Any]) -> ollama.ResponseError:
    try:
        await call
    except ollama.ResponseError as error:
        return error
    raise AssertionError("it did not fail")


async def errors(url: str, _: str) -> None:
    client = await served(url)
    for model, prompt, status in (("other", "hello", 404), ("echo", "/fail", 503)):
        error = await _error(client.chat(model, said(prompt)))
        assert error.error
        assert error.status_code == status


async def error_in_a_stream(url: str, _: str) -> None:
    client = await served(url)
    stream = await client.chat("echo", said("hello /break"), stream=True)
    assert (await anext(stream)).message.content == "hello"
    assert (await _error(anext(stream))).error == "the model was asked to break"


async def stop(url: str, _: str) -> None:
    client, word = await served(url), secrets.token_hex(4)
    stream = await client.chat("echo", said(f"{word} /forever"), stream=True)
    await anext(stream)
    await until_running(url, word)
    await stream.aclose()
    await until_stopped(url, word)


run(
    [
        *(models, chat, streaming, thinking, tools_of_the_client, tools_of_the_model, images, generate, embeddings),
        *(errors, error_in_a_stream, stop),
    ]
)
