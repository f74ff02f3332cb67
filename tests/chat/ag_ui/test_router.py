"""AG-UI over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI

from app_toolkit import Toolkit
from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent, ag_ui_router, api_keys
from app_toolkit.chat.echo import EchoModel
from app_toolkit.errors import QueueFull
from tests.chat.served import SOON_S, PausedModel, asking, frames, in_process
from tests.patience import until

pytestmark = pytest.mark.anyio

KEY = "a-key-for-the-tests"


async def plain(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    yield TextEvent("plain")


async def full(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    raise QueueFull("10 requests wait already")
    yield


def app_of(models: Any, kind: type[FastAPI] = Toolkit, **options: Any) -> FastAPI:
    app = kind()
    app.include_router(ag_ui_router(models, **options), prefix="/ag-ui")
    return app


def ask(prompt: str, **fields: Any) -> dict[str, Any]:
    messages = [{"id": "1", "role": "user", "content": prompt}]
    return {"threadId": "t", "runId": "r", "messages": messages, **fields}


def events_of(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200
    return [json.loads(frame) for frame in frames(response.text)]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(app_of({"echo": EchoModel(), "org/plain": plain, "full": full})) as client:
        yield client


async def test_a_run_is_a_stream_of_events(http: httpx.AsyncClient) -> None:
    response = await http.post("/ag-ui", json=ask("a b", parentRunId="p"))
    assert response.headers["content-type"].startswith("text/event-stream")
    started, *_, finished = events = events_of(response)
    assert started.items() >= {"type": "RUN_STARTED", "threadId": "t", "runId": "r", "parentRunId": "p"}.items()
    assert [event["delta"] for event in events if "delta" in event] == ["a", " b"]
    assert (finished["type"], finished["usage"][0]["outputTokens"]) == ("RUN_FINISHED", 2)


@pytest.mark.parametrize(("path", "text"), [("", "a"), ("/", "a"), ("/echo", "a"), ("/org/plain", "plain")])
async def test_every_model_is_an_agent_with_a_url(http: httpx.AsyncClient, path: str, text: str) -> None:
    events = events_of(await http.post(f"/ag-ui{path}", json=ask("a")))
    assert [event["delta"] for event in events if "delta" in event] == [text]


async def test_an_approved_call_is_run(http: httpx.AsyncClient) -> None:
    *_, finished = events_of(await http.post("/ag-ui", json=ask("/approve")))
    (interrupt,) = finished["outcome"]["interrupts"]
    call = {"id": interrupt["toolCallId"], "function": {"name": "send", "arguments": "{}"}}
    body = ask("/approve")
    body["messages"].append({"id": "2", "role": "assistant", "toolCalls": [{"type": "function", **call}]})
    body["resume"] = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
    _, result, *_ = events_of(await http.post("/ag-ui", json=body))
    assert (result["type"], result["toolCallId"], result["content"]) == ("TOOL_CALL_RESULT", call["id"], "done")


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/full", ask("a"), 503, "10 requests wait already"),
        ("/missing", ask("a"), 404, "the model 'missing' does not exist"),
        ("", {"threadId": "t", "messages": []}, 400, "the field runId is missing"),
        ("", ask("a", resume=[{"interruptId": "x", "status": "cancelled"}]), 400, "the interrupt 'x'"),
    ],
)
async def test_an_error_before_the_first_event_is_a_response(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    response = await http.post(f"/ag-ui{path}", json=body)
    assert response.status_code == status
    assert words in response.json()["detail"]
    assert ("retry-after" in response.headers) == (status == 503)


async def test_an_error_after_the_first_event_is_the_last_event(http: httpx.AsyncClient) -> None:
    *_, last = events_of(await http.post("/ag-ui", json=ask("a /break")))
    assert last == {"type": "RUN_ERROR", "message": "the model was asked to break", "code": "model_error"}


async def test_keys_and_limits_are_those_of_every_router() -> None:
    app = FastAPI()
    router = ag_ui_router(plain, max_body_size=200)
    app.include_router(router, prefix="/ag-ui", dependencies=[Depends(api_keys({"ada": KEY}))])
    async with in_process(app) as http:
        headers = {"authorization": f"Bearer {KEY}"}
        statuses = [
            (await http.post("/ag-ui", json=ask("a" * length), headers=sent)).status_code
            for length, sent in ((1, headers), (1, {}), (200, headers), (1, {**headers, "content-type": "text/plain"}))
        ]
        crossed = {**headers, "cookie": "a=b", "origin": "https://elsewhere.example"}
        statuses.append((await http.post("/ag-ui", json=ask("a"), headers=crossed)).status_code)
    assert statuses == [200, 401, 413, 415, 403]


async def test_a_model_is_closed_when_its_client_disconnects() -> None:
    model = PausedModel()
    async with asking(app_of(model)) as http:
        task = asyncio.create_task(http.post("/ag-ui", json=ask("a")))
        await until(lambda: model.running == 1)
        task.cancel()
        async with asyncio.timeout(SOON_S):
            await until(lambda: model.running == 0)
