"""OpenAI's SDK understands the Responses API."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from app_toolkit import Toolkit
from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent, openai_router
from app_toolkit.chat.echo import EchoModel
from app_toolkit.errors import QueueFull
from app_toolkit.streaming import MemoryStreamLog
from tests.chat.served import served
from tests.chat.test_approvals import Payer
from tests.patience import until

openai = pytest.importorskip("openai", reason="openai is not installed")

pytestmark = pytest.mark.anyio

TOOLS = [{"type": "function", "name": "look_up", "parameters": {"type": "object"}, "strict": True}]


class Waiting:
    """A model that says `one`, waits for a permit, and says ` two`. It is full at first if it is to."""

    def __init__(self) -> None:
        self.running = 0
        self.calls = 0
        self.permits = asyncio.Semaphore(0)

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.calls += 1
        self.running += 1
        try:
            if request.prompt == "busy" and self.calls < 3:
                raise QueueFull("10 requests wait already")
            if request.prompt == "json":
                yield TextEvent(str(request.response_format and '{"answer": 42}'))
                return
            yield TextEvent("one")
            await self.permits.acquire()
            yield TextEvent(" two")
        finally:
            self.running -= 1


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
async def client(waiting: Waiting) -> AsyncIterator[Any]:
    app = Toolkit()
    router = openai_router({"echo": EchoModel.bind(), "waiting": waiting, "payer": Payer()}, log=MemoryStreamLog())
    app.include_router(router, prefix="/v1")
    async with (
        served(app) as url,
        openai.DefaultAsyncHttpxClient(trust_env=False) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", http_client=http, max_retries=0) as sdk,
    ):
        yield sdk
        await until(lambda: not waiting.running)


def said(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def test_the_helper_for_streams_joins_reasoning_and_calls_whose_results_are_understood(client: Any) -> None:
    items: list[Any] = [{"role": "user", "content": "/reason /tool"}]
    async with client.responses.stream(model="echo", input=items, tools=TOOLS) as stream:
        events = [event async for event in stream]
        response = await stream.get_final_response()
    reasoning, call = response.output
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert reasoning.summary[0].text == "let me think "
    assert (call.name, call.arguments, call.parsed_arguments) == ("look_up", '{"text": "hello"}', {"text": "hello"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "it rains"}
    items += [*(item.to_dict() for item in response.output), result]
    whole = await client.responses.create(model="echo", input=items, tools=TOOLS)
    assert whole.output_text == "the tool returned it rains"
    again = await client.responses.create(model="echo", input=[result], tools=TOOLS, previous_response_id=response.id)
    assert again.output_text == "the tool returned it rains"


@pytest.mark.parametrize("approve", [True, False])
async def test_an_approval_resumes_a_stored_response(client: Any, approve: bool) -> None:
    first = await client.responses.create(model="payer", input="pay")
    (request,) = first.output
    assert (request.type, request.name, request.arguments) == ("mcp_approval_request", "pay", '{"amount": 5}')
    answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
    second = await client.responses.create(model="payer", input=[answer], previous_response_id=first.id)
    assert second.output_text == "Done."
    paid = [(item.output, item.approval_request_id) for item in second.output if item.type == "mcp_call"]
    assert paid == [("paid", request.id)] * approve


async def test_a_response_is_parsed_as_the_model_of_the_client(client: Any) -> None:
    class Answer(BaseModel):
        answer: int

    response = await client.responses.parse(model="waiting", input="json", text_format=Answer)
    assert response.output_parsed == Answer(answer=42)


async def test_a_stream_continues_after_a_disconnect(client: Any, waiting: Waiting) -> None:
    stream = await client.responses.create(model="waiting", input="a", stream=True)
    before = []
    async for event in stream:
        before.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    assert waiting.running == 1
    after = before[-1].sequence_number
    waiting.permits.release()
    rest = await client.responses.retrieve(before[0].response.id, stream=True, starting_after=after)
    events = before + [event async for event in rest]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (said(events), events[-1].type) == ("one two", "response.completed")
    async with client.responses.stream(response_id=before[0].response.id, starting_after=after) as helper:
        assert [event.sequence_number async for event in helper] == list(range(after + 1, len(events)))
        assert (await helper.get_final_response()).output_text == "one two"


async def test_errors_are_raised_as_those_of_the_sdk(client: Any, waiting: Waiting) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.responses.create(model="echo", input="a", previous_response_id="resp_missing")
    assert (wrong.value.code, wrong.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.InternalServerError) as full:
        await client.responses.create(model="waiting", input="busy", stream=True)
    assert (full.value.status_code, full.value.code) == (503, "queue_full")
    waiting.permits.release()
    again = client.with_options(max_retries=2)
    assert (await again.responses.create(model="waiting", input="busy")).output_text == "one two"
    async with client.responses.stream(model="echo", input="a /break") as stream:
        events = [event async for event in stream]
    assert (events[-1].type, events[-1].response.error.message) == ("response.failed", "the model was asked to break")
