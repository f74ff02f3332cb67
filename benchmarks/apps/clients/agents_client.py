"""The Agents SDK of OpenAI, over chat completions and over responses."""

from typing import Any

import openai
from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from cases import has_route, run

set_tracing_disabled(True)

MAX_TURNS = 4


@function_tool
def search(text: str) -> str:
    """Return the weather."""
    return f"{text}: it rains"


def agent(url: str, model: str, kind: Any) -> "Agent[Any]":
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, http_client=http)
    made: Model = kind(model=model, openai_client=client)
    return Agent(name="agent", model=made, tools=[search])


async def tools(url: str, _: str) -> None:
    await _tools(url, OpenAIChatCompletionsModel)


async def tools_that_the_model_runs(url: str, _: str) -> None:
    await _own_tools(url, OpenAIChatCompletionsModel, "I look.I found one.")


async def tools_of_a_response(url: str, _: str) -> None:
    await has_route(url, "/v1/responses")
    await _tools(url, OpenAIResponsesModel)


async def tools_of_a_response_that_the_model_runs(url: str, _: str) -> None:
    await has_route(url, "/v1/responses")
    await _own_tools(url, OpenAIResponsesModel, "I found one.")


async def _tools(url: str, kind: Any) -> None:
    found = await Runner.run(agent(url, "echo", kind), "/tool", max_turns=MAX_TURNS)
    assert found.final_output == "the tool returned hello: it rains"
    assert len(found.raw_responses) == 2


async def _own_tools(url: str, kind: Any, text: str) -> None:
    """The agent sends one request for each message, and continues a conversation with calls of the model."""
    asked = agent(url, "agent", kind)
    whole = await Runner.run(asked, "hello", max_turns=MAX_TURNS)
    streamed = Runner.run_streamed(asked, [*whole.to_input_list(), {"role": "user", "content": "go on"}])
    async for _ in streamed.stream_events():
        pass
    for found in (whole, streamed):
        assert (found.final_output, len(found.raw_responses)) == (text, 1)


run([tools, tools_that_the_model_runs, tools_of_a_response, tools_of_a_response_that_the_model_runs])
