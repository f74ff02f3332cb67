"""`ChatOpenAI` and `OpenAIEmbeddings` of LangChain."""

import secrets
from typing import Any

from cases import has_route, run, until_running, until_stopped
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


def chat(url: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="any", model="echo", max_retries=0, **options)  # type: ignore[arg-type]


@tool
def weather(text: str) -> str:
    """Returns the weather."""
    return f"{text}: it rains"


async def invoke(url: str, _: str) -> None:
    message = await chat(url).ainvoke("hello world")
    assert message.content == "hello world"
    assert (message.usage_metadata or {})["total_tokens"] == 4
    assert message.response_metadata["finish_reason"] == "stop"


async def stream(url: str, _: str) -> None:
    chunks = [chunk async for chunk in chat(url, stream_usage=True).astream("hello world")]
    assert [chunk.content for chunk in chunks if chunk.content] == ["hello", " world"]
    whole = sum(chunks[1:], chunks[0])
    assert isinstance(whole, AIMessageChunk)
    assert (whole.usage_metadata or {})["total_tokens"] == 4


async def tools(url: str, _: str) -> None:
    model = chat(url).bind_tools([weather])
    messages: list[Any] = [HumanMessage("/tool")]
    messages.append(await model.ainvoke(messages))
    (call,) = messages[-1].tool_calls
    assert (call["name"], call["args"]) == ("weather", {"text": "hello"})
    messages.append(ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]))
    assert (await model.ainvoke(messages)).content == "the tool returned hello: it rains"


async def tools_of_a_stream(url: str, _: str) -> None:
    chunks = [chunk async for chunk in chat(url).bind_tools([weather]).astream("/tool")]
    (call,) = sum(chunks[1:], chunks[0]).tool_calls
    assert (call["name"], call["args"]) == ("weather", {"text": "hello"})


async def tools_that_the_model_runs(url: str, _: str) -> None:
    model = chat(url).bind_tools([weather])
    message = await model.ainvoke("hello", model="agent")
    assert (message.text, message.tool_calls, message.invalid_tool_calls) == ("I look.I found one.", [], [])
    chunks = [chunk async for chunk in model.astream("hello", model="agent")]
    assert not sum(chunks[1:], chunks[0]).tool_calls


async def structured_output(url: str, _: str) -> None:
    class City(BaseModel):
        name: str

    model = chat(url).with_structured_output(City, method="json_schema")
    assert await model.ainvoke('{"name":"Oslo"}') == City(name="Oslo")


async def abort(url: str, _: str) -> None:
    word = secrets.token_hex(4)
    chunks = chat(url).astream(f"{word} /forever")
    await anext(chunks)
    await until_running(url, word)
    await chunks.aclose()  # type: ignore[attr-defined]
    await until_stopped(url, word)


async def embeddings(url: str, _: str) -> None:
    embedder = OpenAIEmbeddings(
        base_url=f"{url}/v1",
        api_key="any",  # type: ignore[arg-type]
        model="lengths",
        check_embedding_ctx_length=False,
    )
    assert await embedder.aembed_documents(["a", "abc"]) == [[1.0, 0.5], [3.0, 0.5]]


async def response(url: str, _: str) -> None:
    await has_route(url, "/v1/responses")
    message = await chat(url, use_responses_api=True).ainvoke("hello world")
    assert message.text == "hello world"


async def tools_of_a_response_that_the_model_runs(url: str, _: str) -> None:
    await has_route(url, "/v1/responses")
    model = chat(url, use_responses_api=True).bind_tools([weather])
    messages: list[Any] = [HumanMessage("hello")]
    messages.append(await model.ainvoke(messages, model="agent"))
    assert not messages[-1].tool_calls
    answer = await model.ainvoke([*messages, HumanMessage("go on")], model="agent")
    assert (answer.text, answer.tool_calls) == ("I look.I found one.", [])


run(
    [
        *(invoke, stream, tools, tools_of_a_stream, tools_that_the_model_runs, structured_output, abort, embeddings),
        *(response, tools_of_a_response_that_the_model_runs),
    ]
)
