"""The SDK of Anthropic for Python."""

import asyncio
import secrets
from typing import Any

import anthropic
from cases import has_route, refusals, run, until_running, until_stopped

TOOLS: Any = [{"name": "look_up", "description": "Looks a word up.", "input_schema": {"type": "object"}}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def sdk(url: str, path: str = "", max_retries: int = 0, **key: str) -> anthropic.AsyncAnthropic:
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    return anthropic.AsyncAnthropic(
        base_url=url + path, max_retries=max_retries, http_client=http, **(key or {"api_key": "any"})
    )


def said(prompt: Any) -> Any:
    return [{"role": "user", "content": prompt}]


async def ask(client: anthropic.AsyncAnthropic, prompt: Any, model: str = "echo", **options: Any) -> Any:
    return await client.messages.create(model=model, max_tokens=100, messages=said(prompt), **options)


async def models(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    async with sdk(url) as client:
        listed = [model async for model in client.models.list(limit=1)]
        assert [(model.id, model.type) for model in listed] == [("echo", "model"), ("agent", "model")]
        assert (await client.models.retrieve("echo")).display_name == "echo"


async def message(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    async with sdk(url) as client:
        answer = await ask(client, "hello world", system=[{"type": "text", "text": "Be brief."}])
        assert [(block.type, block.text) for block in answer.content] == [("text", "hello world")]
        assert (answer.model, answer.stop_reason, answer.stop_sequence) == ("echo", "end_turn", None)
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (2, 2)


async def streaming(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    async with sdk(url) as client:
        stream = await ask(client, "hello ä world", stream=True)
        events = [event async for event in stream]
        assert [event.type for event in events] == [
            *("message_start", "content_block_start", *["content_block_delta"] * 3, "content_block_stop"),
            *("message_delta", "message_stop"),
        ]
        assert events[-2].usage.output_tokens == 3


async def helper_for_streams(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    async with sdk(url) as client:
        async with client.messages.stream(model="echo", max_tokens=100, messages=said("hello world")) as stream:
            assert [text async for text in stream.text_stream] == ["hello", " world"]
            answer = await stream.get_final_message()
        assert (answer.content[0].type, answer.stop_reason) == ("text", "end_turn")
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (2, 2)


async def thinking(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    async with sdk(url) as client:
        asked: Any = {"type": "enabled", "budget_tokens": 1024}
        messages = said("/reason hello")
        async with client.messages.stream(model="echo", max_tokens=2000, messages=messages, thinking=asked) as stream:
            answer = await stream.get_final_message()
        first, second = answer.content
        assert first.type == "thinking"
        assert second.type == "text"
        assert (first.thinking, second.text) == ("let me think ", "hello")
        messages += [answer.to_param(), *said("again")]
        assert (await client.messages.create(model="echo", max_tokens=100, messages=messages)).content


async def images(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    async with sdk(url) as client:
        answer = await ask(client, [{"type": "image", "source": source}, {"type": "text", "text": "hello"}])
        assert answer.content[0].text == "hello"


async def tools(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    messages = said("/tool")
    async with sdk(url) as client:
        whole = await client.messages.create(model="echo", max_tokens=100, messages=messages, tools=TOOLS)
        async with client.messages.stream(model="echo", max_tokens=100, messages=messages, tools=TOOLS) as stream:
            streamed = await stream.get_final_message()
        for answer in (whole, streamed):
            (call,) = answer.content
            assert answer.stop_reason == "tool_use"
            assert call.type == "tool_use"
            assert (call.name, call.input) == ("look_up", {"text": "hello"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "it rains"}
        messages += [streamed.to_param(), *said([result])]
        answer = await client.messages.create(model="echo", max_tokens=100, messages=messages, tools=TOOLS)
        assert answer.content[0].text == "the tool returned it rains"  # type: ignore[union-attr]


async def runner_of_tools(url: str, _: str) -> None:
    """The SDK runs the tool, and sends its result."""
    await has_route(url, "/v1/messages")

    @anthropic.beta_async_tool
    async def look_up(text: str) -> str:
        """Look a word up."""
        return f"{text} is a word"

    async with sdk(url) as client:
        runner = client.beta.messages.tool_runner(model="echo", max_tokens=100, messages=said("/tool"), tools=[look_up])
        answer = await runner.until_done()
        assert answer.content[0].text == "the tool returned hello is a word"  # type: ignore[union-attr]


async def tools_that_the_model_runs(url: str, _: str) -> None:
    """A client gets these calls if it understands those of MCP servers."""
    await has_route(url, "/v1/messages")
    async with sdk(url) as client:
        answer = await ask(client, "hello", "agent", tools=TOOLS)
        assert ([block.text for block in answer.content], answer.stop_reason) == (["I look.I found one."], "end_turn")
        seen = await client.beta.messages.create(
            model="agent", max_tokens=100, messages=said("hello"), betas=["mcp-client-2025-11-20"]
        )
        kinds = [block.type for block in seen.content]
        assert kinds == ["text", *["mcp_tool_use", "mcp_tool_result"] * 2, "text"]
        messages: Any = [*said("hello"), {"role": "assistant", "content": seen.content}, *said("go on")]
        assert (await client.beta.messages.create(model="agent", max_tokens=100, messages=messages)).content


async def stop_sequences(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    async with sdk(url) as client:
        answer = await ask(client, "one two three", stop_sequences=["nothing", "two"])
        assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("one ", "stop_sequence", "two")
        cut = await client.messages.create(model="echo", max_tokens=1, messages=said("one two"))
        assert cut.stop_reason == "max_tokens"


async def count_of_tokens(url: str, _: str) -> None:
    await has_route(url, "/v1/messages/count_tokens")
    async with sdk(url) as client:
        counted = await client.messages.count_tokens(model="echo", messages=said("hello big world"))
        assert counted.input_tokens == 3
        await _raises(client.messages.count_tokens(model="agent", messages=said("a")), anthropic.BadRequestError)


async def errors(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    async with sdk(url) as client:
        missing = await _raises(ask(client, "hello", "missing", stream=True), anthropic.NotFoundError)
        assert (missing.type, missing.error_code) == ("not_found_error", "model_not_found")
        assert missing.request_id
        wrong = await _raises(client.messages.create(model="echo", max_tokens=0, messages=said("a")))
        assert (wrong.status_code, wrong.type) == (400, "invalid_request_error")
        stream = await ask(client, "word /break", stream=True)
        broken = await _raises(_read(stream))
        assert (broken.type, "asked to break" in str(broken)) == ("api_error", True)
        overloaded = await _raises(ask(client, "/fail"), anthropic.OverloadedError)
        assert overloaded.status_code == 529


async def _read(stream: Any) -> list[Any]:
    return [event async for event in stream]


async def _raises(asking: Any, kind: type[anthropic.APIStatusError] = anthropic.APIStatusError) -> Any:
    try:
        await asking
    except kind as error:
        return error
    raise AssertionError("no error was raised")


async def abort_of_a_stream(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    word = secrets.token_hex(4)
    async with sdk(url) as client:
        stream = await client.messages.create(
            model="echo", max_tokens=1_000_000, messages=said(f"{word} /forever"), stream=True
        )
        await anext(aiter(stream))
        await until_running(url, word)
        await stream.close()
        await until_stopped(url, word)


async def abort_of_a_message(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    word = secrets.token_hex(4)
    async with sdk(url) as client:
        messages = said(f"{word} /forever")
        asking = asyncio.ensure_future(
            client.messages.create(model="echo", max_tokens=20_000, messages=messages, timeout=60)
        )
        await until_running(url, word)
        asking.cancel()
        await until_stopped(url, word)


async def a_429_is_tried_again(url: str, _: str) -> None:
    await _tried_again(url, 429)


async def a_full_queue_is_tried_again(url: str, _: str) -> None:
    await _tried_again(url, 503)


async def _tried_again(url: str, status: int) -> None:
    await has_route(url, "/v1/messages")
    name = secrets.token_hex(4)
    async with sdk(url, max_retries=2) as client:
        answer = await ask(client, f"/refuse {status} {name}")
    assert (answer.content[0].text, await refusals(url, name)) == (f"{status} {name}", 2)


async def api_key(url: str, _: str) -> None:
    await has_route(url, "/protected/v1/messages")
    for key in ({"api_key": "the-key-of-the-clients"}, {"auth_token": "the-key-of-the-clients"}):
        async with sdk(url, "/protected", **key) as client:
            assert (await ask(client, "hello")).content[0].text == "hello"
    async with sdk(url, "/protected", api_key="another-key-of-the-clients") as client:
        wrong = await _raises(ask(client, "hello"), anthropic.AuthenticationError)
        assert wrong.type == "authentication_error"


run(
    [
        *(models, message, streaming, helper_for_streams, thinking, images, tools, runner_of_tools),
        *(tools_that_the_model_runs, stop_sequences, count_of_tokens, errors, abort_of_a_stream, abort_of_a_message),
        *(a_429_is_tried_again, a_full_queue_is_tried_again, api_key),
    ]
)
