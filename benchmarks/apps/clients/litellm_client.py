"""LiteLLM, which calls the Messages API with its own client."""

import os
import secrets
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would load prices from the network

import litellm
from cases import has_route, refusals, run, until_running, until_stopped

TOOLS: Any = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}]


async def ask(url: str, messages: Any, model: str = "echo", **options: Any) -> Any:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return await litellm.acompletion(
        model=f"anthropic/{model}", api_base=url, api_key="any", messages=messages, num_retries=0, **options
    )


async def completion(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    answer = await ask(url, "hello world")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("hello world", "stop")
    assert answer.usage.total_tokens == 4


async def streaming(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    stream = await ask(url, "hello ä world", stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "hello ä world"


async def reasoning(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    message = (await ask(url, "/reason hello")).choices[0].message
    assert (message.reasoning_content, message.content) == ("let me think ", "hello")


async def tools(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    messages: Any = [{"role": "user", "content": "/tool"}]
    message = (await ask(url, messages, tools=TOOLS)).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("look_up", '{"text": "hello"}')
    stream = await ask(url, messages, tools=TOOLS, stream=True)
    deltas = [delta async for chunk in stream for delta in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(delta.function.arguments or "" for delta in deltas) == '{"text": "hello"}'
    messages += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "it rains"}]
    answer = await ask(url, messages, tools=TOOLS)
    assert answer.choices[0].message.content == "the tool returned it rains"


async def tools_that_the_model_runs(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    message = (await ask(url, "hello", "agent")).choices[0].message
    assert (message.content, message.tool_calls) == ("I look.I found one.", None)


async def errors(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    assert "does not exist" in str(await _failure(url, "hello", "missing", litellm.NotFoundError))
    name = secrets.token_hex(4)
    await _failure(url, f"/refuse 503 {name}", "echo", litellm.InternalServerError)
    assert await refusals(url, name) >= 1


async def _failure(url: str, prompt: str, model: str, kind: type[Exception]) -> Exception:
    try:
        await ask(url, prompt, model)
    except kind as error:
        return error
    raise AssertionError(f"{prompt!r} raised no error")


async def abort_of_a_stream(url: str, _: str) -> None:
    await has_route(url, "/v1/messages")
    word = secrets.token_hex(4)
    stream = await ask(url, f"{word} /forever", stream=True, max_tokens=1_000_000)
    await anext(aiter(stream))
    await until_running(url, word)
    await stream.aclose()
    await until_stopped(url, word)


run(
    [
        *(completion, streaming, reasoning, tools, tools_that_the_model_runs, errors, abort_of_a_stream),
    ]
)
