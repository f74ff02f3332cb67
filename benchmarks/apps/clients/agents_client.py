"""The Agents SDK of OpenAI, over chat completions and over responses."""

from typing import Any

import openai
from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
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


def sdk(url: str) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, http_client=http)


def agent(url: str, model: str, kind: Any) -> "Agent[Any]":
    made: Model = kind(model=model, openai_client=sdk(url))
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


async def session_in_a_conversation(url: str, _: str) -> None:
    """The server has the items of a session, which another process can go on with."""
    await has_route(url, "/v1/conversations")
    asked = agent(url, "echo", OpenAIResponsesModel)
    session = OpenAIConversationsSession(openai_client=sdk(url))
    await Runner.run(asked, "/tool", session=session, max_turns=MAX_TURNS)
    items: list[Any] = await session.get_items()
    kinds = [item["type"] for item in items]
    assert kinds == ["message", "function_call", "function_call_output", "message"], kinds
    assert (await session.get_items(limit=1)) == items[-1:]
    again = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=sdk(url))
    found = await Runner.run(asked, "two", session=again, max_turns=MAX_TURNS)
    assert found.final_output == "two"
    assert len(await again.get_items()) == len(items) + 2
    popped: Any = await again.pop_item()
    assert popped["content"][0]["text"] == "two"
    await again.clear_session()


async def conversation_of_a_response(url: str, _: str) -> None:
    """The agent sends only what is new, and the server adds the items of the conversation."""
    await has_route(url, "/v1/conversations")
    id = (await sdk(url).conversations.create()).id
    asked = agent(url, "echo", OpenAIResponsesModel)
    for prompt in ("/tool", "two"):
        await Runner.run(asked, prompt, conversation_id=id, max_turns=MAX_TURNS)
    items = [item async for item in sdk(url).conversations.items.list(id, order="asc")]
    kinds = [item.type for item in items]
    assert kinds == ["message", "function_call", "function_call_output", *["message"] * 3], kinds


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


run(
    [
        tools,
        tools_that_the_model_runs,
        tools_of_a_response,
        tools_of_a_response_that_the_model_runs,
        session_in_a_conversation,
        conversation_of_a_response,
    ]
)
