"""The SDK of OpenAI for Python."""

import asyncio
import secrets
from typing import Any

import openai
from cases import has_route, refusals, run, until_running, until_stopped
from pydantic import BaseModel

TOOLS: Any = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


def sdk(url: str, path: str = "/v1", api_key: str = "any", max_retries: int = 0) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=url + path, api_key=api_key, max_retries=max_retries, http_client=http)


def said(prompt: str) -> Any:
    return [{"role": "user", "content": prompt}]


async def models(url: str, _: str) -> None:
    async with sdk(url) as client:
        assert [model.id async for model in client.models.list()] == ["echo", "agent", "lengths"]
        assert (await client.models.retrieve("echo")).id == "echo"


async def completion(url: str, _: str) -> None:
    async with sdk(url) as client:
        found = await client.chat.completions.create(model="echo", messages=said("hello world"))
        (choice,) = found.choices
        assert (choice.message.content, choice.finish_reason) == ("hello world", "stop")
        assert found.usage is not None
        assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (2, 2, 4)


async def streaming(url: str, _: str) -> None:
    async with sdk(url) as client:
        stream = await client.chat.completions.create(model="echo", messages=said("hello ä world"), stream=True)
        chunks = [chunk async for chunk in stream]
        assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "hello", " ä", " world", None]
        assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 4 + ["stop"]
        assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
        assert all(chunk.usage is None for chunk in chunks)


async def usage_of_a_stream(url: str, _: str) -> None:
    async with sdk(url) as client:
        stream = await client.chat.completions.create(
            model="echo", messages=said("hello world"), stream=True, stream_options={"include_usage": True}
        )
        *_, last = [chunk async for chunk in stream]
        assert last.usage is not None
        assert (last.choices, last.usage.total_tokens) == ([], 4)


async def tools(url: str, _: str) -> None:
    messages = said("/tool")
    async with sdk(url) as client:
        async with client.chat.completions.stream(model="echo", messages=messages, tools=TOOLS) as stream:
            (choice,) = (await stream.get_final_completion()).choices
        (call,) = choice.message.tool_calls or ()
        assert choice.finish_reason == "tool_calls"
        assert (call.function.name, call.function.arguments) == ("look_up", '{"text": "hello"}')
        messages += [
            choice.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "it rains"},
        ]
        found = await client.chat.completions.create(model="echo", messages=messages, tools=TOOLS)
        assert found.choices[0].message.content == "the tool returned it rains"


async def tools_that_the_model_runs(url: str, _: str) -> None:
    """Clients run each call that they get, so they get none of these."""
    async with sdk(url) as client:
        whole = await client.chat.completions.create(model="agent", messages=said("hello"), tools=TOOLS)
        async with client.chat.completions.stream(model="agent", messages=said("hello"), tools=TOOLS) as stream:
            streamed = await stream.get_final_completion()
        for found in (whole, streamed):
            (choice,) = found.choices
            assert not choice.message.tool_calls
            assert (choice.message.content, choice.finish_reason) == ("I look.I found one.", "stop")


async def tools_of_an_mcp_server(url: str, _: str) -> None:
    await has_route(url, "/mcp/v1/responses")
    async with sdk(url, "/mcp/v1") as client:
        completed = await client.chat.completions.create(model="calculator", messages=said("2 3"))
        (choice,) = completed.choices
        assert (choice.message.content, choice.message.tool_calls) == ("The sum is 5.", None)
        response = await client.responses.create(model="calculator", input="2 3")
        assert [item.type for item in response.output] == ["mcp_call", "message"]
        call: Any = response.output[0]
        assert (call.name, call.output, response.output_text) == ("numbers_add", "5", "The sum is 5.")


async def structured_output(url: str, _: str) -> None:
    class City(BaseModel):
        name: str

    async with sdk(url) as client:
        found = await client.chat.completions.parse(
            model="echo", messages=said('{"name":"Oslo"}'), response_format=City
        )
        assert found.choices[0].message.parsed == City(name="Oslo")


async def several_choices(url: str, _: str) -> None:
    async with sdk(url) as client:
        whole = await client.chat.completions.create(model="echo", messages=said("a b"), n=2)
        async with client.chat.completions.stream(model="echo", messages=said("a b"), n=2) as stream:
            streamed = await stream.get_final_completion()
        for found in (whole, streamed):
            assert [(each.index, each.message.content) for each in found.choices] == [(0, "a b"), (1, "a b")]


async def embeddings(url: str, _: str) -> None:
    async with sdk(url) as client:
        for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            found = await client.embeddings.create(model="lengths", input=["a", "abc"], **options)  # type: ignore[call-overload]
            if options.get("encoding_format") != "base64":
                assert [each.embedding for each in found.data] == [[1.0, 0.5], [3.0, 0.5]]


async def errors(url: str, _: str) -> None:
    async with sdk(url) as client:
        refused = await _failure(client, "missing", "hello", openai.NotFoundError)
        assert refused.code == "model_not_found"
        assert "asked to break" in (await _failure(client, "echo", "word /break", openai.APIError)).message


async def _failure(client: openai.AsyncOpenAI, model: str, prompt: str, kind: type[openai.APIError]) -> openai.APIError:
    """Return the error of a streamed completion, before or after its first event."""
    try:
        async for _ in await client.chat.completions.create(model=model, messages=said(prompt), stream=True):
            pass
    except kind as error:
        return error
    raise AssertionError(f"{prompt!r} raised no error")


async def abort_of_a_stream(url: str, _: str) -> None:
    word = secrets.token_hex(4)
    async with sdk(url) as client:
        stream = await client.chat.completions.create(model="echo", messages=said(f"{word} /forever"), stream=True)
        await anext(aiter(stream))
        await until_running(url, word)
        await stream.close()
        await until_stopped(url, word)


async def abort_of_a_completion(url: str, _: str) -> None:
    word = secrets.token_hex(4)
    async with sdk(url) as client:
        asking = asyncio.ensure_future(client.chat.completions.create(model="echo", messages=said(f"{word} /forever")))
        await until_running(url, word)
        asking.cancel()
        await until_stopped(url, word)


async def a_429_is_tried_again(url: str, _: str) -> None:
    await _tried_again(url, 429)


async def a_503_is_tried_again(url: str, _: str) -> None:
    await _tried_again(url, 503)


async def _tried_again(url: str, status: int) -> None:
    name = secrets.token_hex(4)
    async with sdk(url, max_retries=2) as client:
        stream = await client.chat.completions.create(
            model="echo", messages=said(f"/refuse {status} {name}"), stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert (text, await refusals(url, name)) == (f"{status} {name}", 2)


async def api_key(url: str, _: str) -> None:
    async with sdk(url, "/protected/v1", "the-key-of-the-clients") as client:
        found = await client.chat.completions.create(model="echo", messages=said("hello"))
        assert found.choices[0].message.content == "hello"
    async with sdk(url, "/protected/v1", "another-key-of-the-clients") as client:
        await _failure(client, "echo", "hello", openai.AuthenticationError)


async def response(url: str, _: str) -> None:
    await has_route(url, "/v1/responses")
    async with sdk(url) as client:
        found = await client.responses.create(model="echo", input="hello world")
        assert (found.output_text, found.status) == ("hello world", "completed")
        assert found.usage is not None
        assert found.usage.total_tokens == 4


async def stream_of_a_response(url: str, _: str) -> None:
    await has_route(url, "/v1/responses")
    async with sdk(url) as client, client.responses.stream(model="echo", input="hello world") as stream:
        events = [event async for event in stream]
        assert (await stream.get_final_response()).output_text == "hello world"
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")


async def tools_of_a_response(url: str, _: str) -> None:
    await has_route(url, "/v1/responses")
    tool: Any = {"type": "function", "name": "look_up", "parameters": {"type": "object"}, "strict": False}
    async with sdk(url) as client:
        found = await client.responses.create(model="echo", input="/tool", tools=[tool])
        (call,) = [item for item in found.output if item.type == "function_call"]
        assert (call.name, call.arguments) == ("look_up", '{"text": "hello"}')
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "it rains"}
        found = await client.responses.create(model="echo", input=[*said("/tool"), call, output], tools=[tool])  # type: ignore[list-item]
        assert found.output_text == "the tool returned it rains"


async def tools_of_a_response_that_the_model_runs(url: str, _: str) -> None:
    await has_route(url, "/v1/responses")
    async with sdk(url) as client:
        found = await client.responses.create(model="agent", input="hello")
        first, second = [item for item in found.output if item.type == "mcp_call"]
        assert (first.name, first.arguments, first.output) == ("search", '{"query": "x"}', '{"found": [1]}')
        assert (second.status, second.output) == ("failed", None)
        items: Any = [*said("hello"), *found.output, *said("go on")]
        assert (await client.responses.create(model="agent", input=items)).output_text == "I look.I found one."


async def resume_of_a_response(url: str, _: str) -> None:
    await has_route(url, "/v1/responses/{response_id}")
    async with sdk(url) as client:
        text = " ".join(map(str, range(60)))
        stream = await client.responses.create(model="echo", input=text, stream=True, background=True)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if len(events) == 12:
                break
        await stream.close()
        id = events[0].response.id
        async for event in await client.responses.retrieve(id, stream=True, starting_after=events[-1].sequence_number):
            events.append(event)
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert events[-1].response.output_text == text


async def cancel_of_a_response(url: str, _: str) -> None:
    await has_route(url, "/v1/responses/{response_id}/cancel")
    word = secrets.token_hex(4)
    async with sdk(url) as client:
        begun = await client.responses.create(model="echo", input=f"{word} /forever", background=True)
        await until_running(url, word)
        assert (await client.responses.cancel(begun.id)).status == "cancelled"
        await until_stopped(url, word)


async def responses_that_follow_each_other(url: str, _: str) -> None:
    """Each request has a connection of its own, so each replica gets some of them."""
    await has_route(url, "/v1/responses")
    previous = None
    for word in ("one", "two", "three", "four"):
        async with sdk(url) as client:
            response = await client.responses.create(
                model="echo", input=word, previous_response_id=previous or openai.omit
            )
        previous = response.id
    assert previous is not None
    async with sdk(url) as client:
        items: Any = [item async for item in client.responses.input_items.list(previous, order="asc")]
    assert [item.content[0].text for item in items] == ["one", "one", "two", "two", "three", "three", "four"]


run(
    [
        *(models, completion, streaming, usage_of_a_stream, tools, tools_that_the_model_runs),
        *(tools_of_an_mcp_server, structured_output, several_choices, embeddings),
        *(errors, abort_of_a_stream, abort_of_a_completion, a_429_is_tried_again, a_503_is_tried_again, api_key),
        *(response, stream_of_a_response, tools_of_a_response, tools_of_a_response_that_the_model_runs),
        *(resume_of_a_response, cancel_of_a_response, responses_that_follow_each_other),
    ]
)
