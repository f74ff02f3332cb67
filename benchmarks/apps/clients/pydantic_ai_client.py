"""Pydantic AI, over chat completions and over responses."""

from typing import Any

import openai
from cases import has_route, run
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

LIMITS = UsageLimits(request_limit=4)


def agent(url: str, model: str, kind: Any) -> "Agent[None, str]":
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, http_client=http)
    made: Agent[None, str] = Agent(kind(model, provider=OpenAIProvider(openai_client=client)))

    @made.tool_plain
    def search(text: str) -> str:
        """Return the weather."""
        return f"{text}: it rains"

    return made


async def tools(url: str, _: str) -> None:
    await _tools(url, OpenAIChatModel)


async def tools_that_the_model_runs(url: str, _: str) -> None:
    await _own_tools(url, OpenAIChatModel, "I look.I found one.")


async def tools_of_a_response(url: str, _: str) -> None:
    await has_route(url, "/v1/responses")
    await _tools(url, OpenAIResponsesModel)


async def tools_of_a_response_that_the_model_runs(url: str, _: str) -> None:
    await has_route(url, "/v1/responses")
    await _own_tools(url, OpenAIResponsesModel, "I found one.")


async def _tools(url: str, kind: Any) -> None:
    found = await agent(url, "echo", kind).run("/tool", usage_limits=LIMITS)
    assert found.output == "the tool returned hello: it rains"


async def _own_tools(url: str, kind: Any, text: str) -> None:
    """The agent sends one request for each message, and continues a conversation with calls of the model."""
    asked = agent(url, "agent", kind)
    whole = await asked.run("hello", usage_limits=LIMITS)
    assert (whole.output, whole.usage.requests) == (text, 1)
    async with asked.run_stream("go on", message_history=whole.all_messages(), usage_limits=LIMITS) as streamed:
        assert await streamed.get_output() == text
        assert streamed.usage.requests == 1


run([tools, tools_that_the_model_runs, tools_of_a_response, tools_of_a_response_that_the_model_runs])
