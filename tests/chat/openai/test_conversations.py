"""The Conversations API, as OpenAI's SDK uses it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI

from app_toolkit.chat import (
    ChatEvent,
    ChatRequest,
    SourceEvent,
    SQLConversationStore,
    TextEvent,
    ai_sdk_router,
    openai_router,
)
from app_toolkit.chat.conversations import ConversationLimits
from app_toolkit.streaming import MemoryStreamLog
from tests.chat.served import in_process
from tests.chat.test_approvals import Payer

openai = pytest.importorskip("openai", reason="openai is not installed")

pytestmark = pytest.mark.anyio

MESSAGE = {"role": "user", "content": "hello"}
CALL = {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "it rains"}


async def count(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    """A model that answers with the number of messages and the prompt."""
    yield TextEvent(f"{len(request.messages)} {request.prompt}")


async def citing(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield TextEvent("Oslo.")
    yield SourceEvent("https://oslo.no", "Oslo")


MODELS = {"count": count, "citing": citing, "payer": Payer()}


@asynccontextmanager
async def asking(limits: ConversationLimits | None = None) -> AsyncIterator[Any]:
    """OpenAI's SDK, and `http`, a client of the same app."""
    store, app, log = SQLConversationStore(":memory:", limits), FastAPI(), MemoryStreamLog()
    app.include_router(openai_router(MODELS, log=log, conversations=store), prefix="/v1")
    app.include_router(ai_sdk_router(count, log=log, conversations=store), prefix="/chat")
    async with in_process(app) as http:
        sdk_http = openai.DefaultAsyncHttpxClient(transport=openai_transport(app), trust_env=False)
        async with openai.AsyncOpenAI(
            base_url="http://test/v1", api_key="any", http_client=sdk_http, max_retries=0
        ) as sdk:
            sdk.http = http
            yield sdk
    await store.close()


def openai_transport(app: FastAPI) -> Any:
    import httpx2

    return httpx2.ASGITransport(app)


def texts(items: Any) -> list[str]:
    return [part.text for item in items if item.type == "message" for part in item.content]


async def test_a_conversation_is_created_updated_and_deleted() -> None:
    async with asking() as sdk:
        created = await sdk.conversations.create(metadata={"topic": "x"}, items=[MESSAGE])
        assert created.object == "conversation"
        assert (await sdk.conversations.retrieve(created.id)) == created
        updated = await sdk.conversations.update(created.id, metadata={"topic": "y"})
        assert (updated.metadata, updated.created_at) == ({"topic": "y"}, created.created_at)
        assert texts((await sdk.conversations.items.list(created.id)).data) == ["hello"]
        deleted = await sdk.conversations.delete(created.id)
        assert (deleted.id, deleted.object, deleted.deleted) == (created.id, "conversation.deleted", True)
        for call in (sdk.conversations.retrieve, sdk.conversations.delete, sdk.conversations.items.list):
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                await call(created.id)
        with pytest.raises(openai.BadRequestError, match="metadata has 17 entries"):
            await sdk.conversations.create(metadata={str(number): "x" for number in range(17)})


async def test_items_are_added_listed_in_pages_and_removed() -> None:
    async with asking() as sdk:
        id = (await sdk.conversations.create()).id
        assert (await sdk.conversations.items.list(id)).data == []
        page = await sdk.conversations.items.create(id, items=[MESSAGE, CALL, OUTPUT])
        message, call, output = page.data
        assert (page.first_id, page.last_id, page.has_more) == (message.id, output.id, False)
        assert (call.name, output.output) == ("search", "it rains")
        newest = await sdk.conversations.items.list(id, limit=1)
        assert newest.has_more
        assert [item.id async for item in sdk.conversations.items.list(id, limit=1)] == [output.id, call.id, message.id]
        assert (await sdk.conversations.items.retrieve(call.id, conversation_id=id)) == call
        again = await sdk.conversations.items.create(id, items=[message.model_dump()])
        assert again.data[0].id != message.id, "an item that is added again is another one"
        assert (await sdk.conversations.items.delete(again.data[0].id, conversation_id=id)).id == id
        assert [item.id async for item in sdk.conversations.items.list(id, order="asc")] == [
            message.id,
            call.id,
            output.id,
        ]
        with pytest.raises(openai.NotFoundError, match="has no item"):
            await sdk.conversations.items.delete("unknown", conversation_id=id)
        with pytest.raises(openai.BadRequestError, match="input\\[0\\]"):
            await sdk.conversations.items.create(id, items=[{"type": "unknown"}])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_of_a_conversation_continues_it_and_is_added_to_it(stream: bool) -> None:
    async with asking() as sdk:
        id = (await sdk.conversations.create(items=[{"role": "developer", "content": "Be brief."}])).id
        for question in ("first", "second"):
            answer = await sdk.responses.create(model="count", input=question, conversation=id, stream=stream)
            if stream:
                assert [event async for event in answer][-1].response.conversation.id == id
            else:
                assert answer.conversation.id == id
        items = (await sdk.conversations.items.list(id, order="asc")).data
        assert texts(items) == ["Be brief.", "first", "2 first", "second", "4 second"]
        assert [item.role for item in items] == ["developer", "user", "assistant", "user", "assistant"]
        for wrong in ({"conversation": "unknown"}, {"conversation": {"id": "unknown"}}):
            with pytest.raises(openai.NotFoundError):
                await sdk.responses.create(model="count", input="x", **wrong)
        with pytest.raises(openai.BadRequestError, match="not both"):
            await sdk.responses.create(model="count", input="x", conversation=id, previous_response_id="resp_1")


async def test_a_conversation_keeps_a_request_for_an_approval_until_it_is_answered() -> None:
    async with asking() as sdk:
        id = (await sdk.conversations.create()).id
        for _ in range(2):
            asked = await sdk.responses.create(model="payer", input="pay", conversation=id)
            (request,) = asked.output
            answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
            done = await sdk.responses.create(model="payer", input=[answer], conversation=id)
            assert [item.approval_request_id for item in done.output if item.type == "mcp_call"] == [request.id]
        items = (await sdk.conversations.items.list(id, order="asc")).data
        turn = ["message", "mcp_approval_request", "mcp_approval_response", "mcp_call", "message"]
        assert [item.type for item in items] == turn * 2
        assert len({item.id for item in items}) == len(items)


async def test_a_conversation_keeps_the_citations_of_a_response() -> None:
    async with asking() as sdk:
        created = await sdk.conversations.create()
        response = await sdk.responses.create(model="citing", input="hello", conversation=created.id)
        _, answer = (await sdk.conversations.items.list(created.id, order="asc")).data
        assert answer.content[0].annotations == response.output[0].content[0].annotations
        assert answer.content[0].annotations[0].url == "https://oslo.no"


async def test_a_chat_of_another_protocol_is_the_same_conversation() -> None:
    async with asking() as sdk:
        message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "from a page"}]}
        await sdk.http.post("/chat", json={"id": "shared", "message": message})
        answer = await sdk.responses.create(model="count", input="from the SDK", conversation="shared")
        assert answer.output_text == "3 from the SDK"
        message = {"id": "u2", "role": "user", "parts": [{"type": "text", "text": "again"}]}
        assert "5 again" in (await sdk.http.post("/chat", json={"id": "shared", "message": message})).text
        items = (await sdk.conversations.items.list("shared", order="asc")).data
        assert texts(items) == ["from a page", "1 from a page", "from the SDK", "3 from the SDK", "again", "5 again"]


async def test_calls_of_functions_reach_the_model_through_another_protocol() -> None:
    async with asking() as sdk:
        for first, second in (([MESSAGE, CALL], [OUTPUT]), ([MESSAGE, CALL, OUTPUT], [])):
            id = (await sdk.conversations.create(items=first)).id
            await sdk.conversations.items.create(id, items=second)
            kinds = [item.type async for item in sdk.conversations.items.list(id, order="asc")]
            assert kinds == ["message", "function_call", "function_call_output"]
            message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "go on"}]}
            answer = await sdk.http.post("/chat", json={"id": id, "message": message})
            assert "4 go on" in answer.text, "the question, the call, its result, and the message"


async def test_a_response_that_cannot_be_stored_reaches_its_client(caplog: pytest.LogCaptureFixture) -> None:
    async with asking(ConversationLimits(max_messages=1)) as sdk:
        id = (await sdk.conversations.create(items=[MESSAGE])).id
        answer = await sdk.responses.create(model="count", input="x", conversation=id)
        assert answer.output_text == "2 x"
        assert texts((await sdk.conversations.items.list(id)).data) == ["hello"]
    assert "was not stored: the conversation has 3 messages, and the limit is 1" in caplog.text


async def test_a_server_without_a_store_has_no_conversations() -> None:
    app = FastAPI()
    app.include_router(openai_router({"count": count}, log=MemoryStreamLog()), prefix="/v1")
    async with in_process(app) as http:
        assert (await http.post("/v1/conversations", json={})).status_code == 404
        refused = await http.post("/v1/responses", json={"model": "count", "input": "x", "conversation": "c"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "conversation")
