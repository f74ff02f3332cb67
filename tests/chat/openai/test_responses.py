"""The Responses API on the wire, of ordinary apps and of a `Toolkit` under uvicorn."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI

from app_toolkit import ConfigError, Toolkit
from app_toolkit.chat import (
    ChatError,
    ChatEvent,
    ChatRequest,
    ErrorEvent,
    FinishEvent,
    TextEvent,
    api_keys,
    live_response,
    openai_router,
)
from app_toolkit.chat.echo import EchoModel
from app_toolkit.chat.openai import responses
from app_toolkit.errors import QueueFull
from app_toolkit.streaming import MemoryStreamLog, StreamLimits
from app_toolkit.streaming.stream_log import PAGE
from tests.chat.served import SOON_S, HeldClock, asking
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.anyio

RESPONSES = "/v1/responses"


class Model:
    """A model that says the words of its prompt, one for each permit, and remembers what it was asked."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)
        self.requests: list[ChatRequest] = []
        self.running = 0
        self.cleaned = 0

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.requests.append(request)
        self.running += 1
        try:
            for word in request.prompt.split():
                await self.permits.acquire()
                match word:
                    case "refuse":
                        raise ChatError("the prompt is too long", code="context_length_exceeded")
                    case "full":
                        raise QueueFull("10 requests wait already")
                    case "break":
                        yield ErrorEvent("it broke", "broken")
                    case "bug":
                        raise ValueError("a secret")
                    case "cancelled":
                        raise asyncio.CancelledError
                    case "cut":
                        yield FinishEvent("length")
                    case _:
                        yield TextEvent(f"{word} ")
        finally:
            self.running -= 1
            await asyncio.sleep(0)  # a cleanup may wait
            self.cleaned += 1

    def allow(self, words: int) -> None:
        for _ in range(words):
            self.permits.release()


@pytest.fixture
def model() -> Model:
    return Model()


def app_of(kind: type[FastAPI], model: Model, **options: Any) -> FastAPI:
    app: FastAPI = kind()
    app.include_router(openai_router({"model": model}, **options), prefix="/v1")
    return app


@pytest.fixture
async def http(model: Model) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(app_of(Toolkit, model, log=MemoryStreamLog())) as http:
        yield http
    assert model.running == 0
    assert model.cleaned == len(model.requests)


def body(input: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "model", "input": input, **fields}


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, whose types are on the wire twice."""
    assert text.endswith("\n\n")
    found = []
    for frame in text[:-2].split("\n\n"):
        if frame == live_response.HEARTBEAT.decode().strip():
            continue
        first, second = frame.split("\n")
        event = json.loads(second.removeprefix("data: "))
        assert first == f"event: {event['type']}"
        found.append(event)
    return found


def said(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def output_text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


async def following(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream as they come."""
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def read_until(events: AsyncIterator[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Read events until one of a type."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] != kind:
        found.append(await anext(events))
    return found


async def eventually(http: httpx.AsyncClient, id: str, *statuses: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            response = (await http.get(f"{RESPONSES}/{id}")).json()
            if response["status"] in statuses:
                return dict(response)
            await asyncio.sleep(0.02)


async def test_a_whole_response(http: httpx.AsyncClient, model: Model) -> None:
    model.allow(2)
    response = await http.post(RESPONSES, json=body("a b", metadata={"k": "v"}, unknown=1))
    document = response.json()
    assert (response.status_code, document["status"], output_text(document)) == (200, "completed", "a b ")
    assert (document["object"], document["model"], document["metadata"]) == ("response", "model", {"k": "v"})
    assert (await http.get(f"{RESPONSES}/{document['id']}")).json() == document


async def test_a_stream_has_numbered_events_and_can_be_read_again_from_any_of_them(
    http: httpx.AsyncClient, model: Model
) -> None:
    model.allow(3)
    response = await http.post(RESPONSES, json=body("a b cut", stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    events = events_of(response.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert (said(events), events[-1]["type"]) == ("a b ", "response.incomplete")
    url = f"{RESPONSES}/{events[0]['response']['id']}"
    assert (await http.get(url)).json() == events[-1]["response"]
    assert events_of((await http.get(url, params={"stream": True})).text) == events
    for after in range(len(events) - 1):
        response = await http.get(url, params={"stream": True, "starting_after": after})
        assert events_of(response.text) == events[after + 1 :]
    for after in (len(events) - 1, 10**9):
        response = await http.get(url, params={"stream": True, "starting_after": after})
        assert (response.status_code, events_of(response.text)) == (200, [])


async def test_a_client_continues_a_stored_response_without_a_gap(http: httpx.AsyncClient, model: Model) -> None:
    model.allow(1)
    async with http.stream("POST", RESPONSES, json=body("a b c", stream=True)) as response:
        before = await read_until(following(response), "response.output_text.delta")
    url = f"{RESPONSES}/{before[0]['response']['id']}"
    params = {"stream": True, "starting_after": before[-1]["sequence_number"]}
    async with http.stream("GET", url, params=params) as response:
        model.allow(2)
        after = events_of((await response.aread()).decode())
    assert said([*before, *after]) == "a b c "
    assert [event["sequence_number"] for event in [*before, *after]] == list(range(len(before) + len(after)))
    assert after[-1]["type"] == "response.completed"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_is_not_stored_ends_with_its_client(
    http: httpx.AsyncClient, model: Model, stream: bool
) -> None:
    if stream:
        model.allow(1)
        async with http.stream("POST", RESPONSES, json=body("a b", stream=True, store=False)) as response:
            events = await read_until(following(response), "response.output_text.delta")
        async with asyncio.timeout(SOON_S):
            await until(lambda: model.cleaned == 1)
        assert (await http.get(f"{RESPONSES}/{events[0]['response']['id']}")).status_code == 404
    asked = asyncio.create_task(http.post(RESPONSES, json=body("a b", stream=stream, store=False)))
    before = model.cleaned
    await until(lambda: model.running == 1)
    asked.cancel()
    async with asyncio.timeout(SOON_S):
        await until(lambda: model.cleaned == before + 1)


async def test_a_response_that_is_not_stored_is_complete_and_not_kept(http: httpx.AsyncClient, model: Model) -> None:
    model.allow(4)
    document = (await http.post(RESPONSES, json=body("a b", store=False))).json()
    assert (output_text(document), document["store"]) == ("a b ", False)
    events = events_of((await http.post(RESPONSES, json=body("a b", store=False, stream=True))).text)
    assert said(events) == "a b "
    for id in (document["id"], events[0]["response"]["id"]):
        assert (await http.get(f"{RESPONSES}/{id}")).status_code == 404


async def test_a_response_in_the_background_is_queued_until_the_first_event(
    http: httpx.AsyncClient, model: Model
) -> None:
    document = (await http.post(RESPONSES, json=body("a b", background=True))).json()
    assert (document["status"], document["background"], document["output"]) == ("queued", True, [])
    assert (await http.get(f"{RESPONSES}/{document['id']}")).json()["status"] == "queued"
    model.allow(1)
    found = await eventually(http, document["id"], "in_progress")
    assert found["output"] == []
    model.allow(1)
    assert output_text(await eventually(http, document["id"], "completed")) == "a b "


async def test_a_stream_in_the_background_begins_at_once(http: httpx.AsyncClient, model: Model) -> None:
    async with http.stream("POST", RESPONSES, json=body("a b", background=True, stream=True)) as response:
        first = await read_until(following(response), "response.queued")
    model.allow(2)
    url = f"{RESPONSES}/{first[0]['response']['id']}"
    rest = events_of((await http.get(url, params={"stream": True, "starting_after": 1})).text)
    assert [each["sequence_number"] for each in [*first, *rest]] == list(range(len(first) + len(rest)))
    assert rest[0]["type"] == "response.in_progress"
    assert said(rest) == "a b "


async def test_a_response_is_cancelled_for_all_its_readers(http: httpx.AsyncClient, model: Model) -> None:
    model.allow(1)
    id = (await http.post(RESPONSES, json=body("a b", background=True))).json()["id"]
    url = f"{RESPONSES}/{id}"
    async with http.stream("GET", url, params={"stream": True}) as response:
        stream = following(response)
        before = await read_until(stream, "response.output_text.delta")
        async with asyncio.timeout(SOON_S):
            cancelled = (await http.post(f"{url}/cancel")).json()
        assert (model.running, cancelled["status"], output_text(cancelled)) == (0, "cancelled", "a ")
        assert [item["status"] for item in cancelled["output"]] == ["incomplete"]
        (last,) = [event async for event in stream]
    assert (last["type"], last["response"]) == ("response.incomplete", cancelled)
    assert last["sequence_number"] == before[-1]["sequence_number"] + 1
    assert (await http.post(f"{url}/cancel")).json() == cancelled, "a second time changes nothing"
    assert (await http.get(url)).json() == cancelled
    again = await http.get(url, params={"stream": True, "starting_after": before[-1]["sequence_number"]})
    assert events_of(again.text) == [last]
    again = await http.get(url, params={"stream": True, "starting_after": last["sequence_number"]})
    assert events_of(again.text) == []


async def test_a_response_that_is_complete_cannot_be_cancelled_any_more(http: httpx.AsyncClient, model: Model) -> None:
    model.allow(1)
    document = (await http.post(RESPONSES, json=body("a"))).json()
    assert (await http.post(f"{RESPONSES}/{document['id']}/cancel")).json() == document


async def test_a_deleted_response_is_stopped_and_gone(http: httpx.AsyncClient, model: Model) -> None:
    model.allow(1)
    id = (await http.post(RESPONSES, json=body("a b", background=True))).json()["id"]
    response = await http.delete(f"{RESPONSES}/{id}")
    assert response.json() == {"id": id, "object": "response", "deleted": True}
    assert model.running == 0
    for method, path in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")):
        response = await http.request(method, f"{RESPONSES}/{id}{path}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found"), (method, path)


async def test_a_response_continues_another_one(http: httpx.AsyncClient, model: Model) -> None:
    model.allow(10)
    first = (await http.post(RESPONSES, json=body("a b", instructions="be brief"))).json()
    second = await http.post(RESPONSES, json=body("c", previous_response_id=first["id"]))
    assert second.json()["previous_response_id"] == first["id"]
    items = [{"role": "user", "content": "d"}]
    third = body(items, previous_response_id=second.json()["id"], instructions="be kind", store=False)
    assert (await http.post(RESPONSES, json=third)).status_code == 200
    said = [(each.role, each.text) for each in model.requests[-1].messages]
    assert said == [
        ("system", "be kind"),
        ("user", "a b"),
        ("assistant", "a b "),
        ("user", "c"),
        ("assistant", "c "),
        ("user", "d"),
    ]


async def test_a_request_can_refer_to_items_of_stored_responses(http: httpx.AsyncClient, model: Model) -> None:
    model.allow(10)
    first, second = [(await http.post(RESPONSES, json=body(text))).json()["output"][-1] for text in ("a b", "c")]
    assert first["id"] != second["id"]
    references = [{"type": "item_reference", "id": item["id"]} for item in (first, second)]
    items = [{"role": "user", "content": "a b"}, *references, {"role": "user", "content": "d"}]
    assert (await http.post(RESPONSES, json=body(items))).status_code == 200
    said = [(each.role, each.text) for each in model.requests[-1].messages]
    assert said == [("user", "a b"), ("assistant", "a b "), ("assistant", "c "), ("user", "d")]
    kept = await http.post(RESPONSES, json=body("e", store=False))
    unknown = [{"type": "item_reference", "id": kept.json()["output"][-1]["id"]}]
    response = await http.post(RESPONSES, json=body(unknown))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "item_not_found")


async def test_only_a_response_that_is_kept_and_complete_can_be_continued(
    http: httpx.AsyncClient, model: Model
) -> None:
    response = await http.post(RESPONSES, json=body("a", previous_response_id="resp_missing"))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "previous_response_id")
    assert error["code"] == "previous_response_not_found"
    id = (await http.post(RESPONSES, json=body("a", background=True))).json()["id"]
    response = await http.post(RESPONSES, json=body("a", previous_response_id=id))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "previous_response_id")
    assert "is queued" in response.json()["error"]["message"]
    await http.delete(f"{RESPONSES}/{id}")


@pytest.mark.parametrize(
    ("prompt", "status", "code"),
    [
        ("refuse", 400, "context_length_exceeded"),
        ("full", 503, "queue_full"),
        ("break", 500, "broken"),
        ("bug", 500, None),
        ("cancelled", 500, None),
    ],
)
async def test_an_error_before_the_first_event_has_its_status(
    model: Model, prompt: str, status: int, code: str | None
) -> None:
    async with asking(app_of(FastAPI, model, log=MemoryStreamLog())) as http:
        for options in ({}, {"store": False}, {"stream": True}, {"stream": True, "store": False}):
            model.allow(1)
            response = await http.post(RESPONSES, json=body(prompt, **options))
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)
            assert ("retry-after" in response.headers) is (status == 503)
            assert "secret" not in response.text


async def test_a_later_error_is_the_last_event_or_the_status_of_a_whole_response(
    http: httpx.AsyncClient, model: Model
) -> None:
    for prompt, status, code in (
        ("a refuse", 400, "context_length_exceeded"),
        ("a break", 500, "broken"),
        ("a bug", 500, "server_error"),
    ):
        for store in (True, False):
            model.allow(4)
            events = events_of((await http.post(RESPONSES, json=body(prompt, stream=True, store=store))).text)
            response = events[-1]["response"]
            assert (events[-1]["type"], response["status"]) == ("response.failed", "failed")
            assert (response["error"]["code"], output_text(response)) == (code, "a ")
            whole = await http.post(RESPONSES, json=body(prompt, store=store))
            assert (whole.status_code, whole.json()["error"]["code"] or "server_error") == (status, code)
            assert "secret" not in json.dumps(events) + whole.text


async def test_an_event_that_cannot_be_sent_fails_a_response_that_has_all_its_events() -> None:
    async def wrong(request: ChatRequest) -> AsyncIterator[Any]:
        yield TextEvent("a")
        yield "not an event"

    app = FastAPI()
    app.include_router(openai_router({"model": wrong}, log=MemoryStreamLog()), prefix="/v1")
    async with asking(app) as http:
        for sent in (body("a"), body("a", store=False), body("a", background=True)):
            events = events_of((await http.post(RESPONSES, json={**sent, "stream": True})).text)
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.failed")


async def test_a_long_response_is_returned_whole_and_can_be_continued() -> None:
    words = 3 * PAGE

    async def write(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        for _ in range(words if request.prompt == "long" else 1):
            yield TextEvent("a")

    app = FastAPI()
    app.include_router(openai_router({"model": write}, log=MemoryStreamLog()), prefix="/v1")
    async with asking(app) as http:
        document = (await http.post(RESPONSES, json=body("long"))).json()
        assert output_text(document) == "a" * words
        assert (await http.get(f"{RESPONSES}/{document['id']}")).json() == document
        second = await http.post(RESPONSES, json=body("short", previous_response_id=document["id"]))
        assert (second.status_code, second.json()["status"]) == (200, "completed")


async def test_every_error_in_the_background_is_in_the_response(http: httpx.AsyncClient, model: Model) -> None:
    response = await http.post(RESPONSES, json=body("refuse", background=True))
    assert (response.status_code, response.json()["status"]) == (200, "queued")
    model.allow(1)
    failed = await eventually(http, response.json()["id"], "failed")
    assert failed["error"] == {"code": "context_length_exceeded", "message": "the prompt is too long"}


async def test_a_wrong_request_has_the_error_of_openai(http: httpx.AsyncClient) -> None:
    for sent, status, param in (
        ({"model": "model"}, 400, "input"),
        (body("a", model="missing"), 404, None),
        (body("a", background=True, store=False), 400, "background"),
        (body([{"role": "robot", "content": "a"}]), 400, "input[0].role"),
        (body([{"type": "item_reference", "id": "msg_1"}]), 400, "input[0].id"),
        (body([{"type": "item_reference", "id": f"msg_{'0' * 32}_0"}]), 400, "input[0].id"),
        (body("a", tools=[{"type": "function"}]), 400, "tools[0].name"),
        (body("a", max_output_tokens=0), 400, "max_output_tokens"),
    ):
        response = await http.post(RESPONSES, json=sent)
        error = response.json()["error"]
        assert (response.status_code, error["type"], error["param"]) == (status, "invalid_request_error", param)
    for after in ("-1", "x", str(2**53)):
        response = await http.get(f"{RESPONSES}/resp_{0:032x}?stream=true&starting_after={after}")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "starting_after")


async def test_text_that_clients_could_take_for_the_end_of_an_event_is_one_event() -> None:
    async def scripted(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        yield TextEvent("a\n\ndata: b\r\u2028\u2029\x85é\ud83d 日")

    app = FastAPI()
    app.include_router(openai_router(scripted, log=MemoryStreamLog()), prefix="/v1")
    async with asking(app) as other:
        response = await other.post(RESPONSES, json=body("a", model="default", stream=True))
        assert not set("\r\u2028\u2029\x85") & set(response.text)
        assert said(events_of(response.text)) == "a\n\ndata: b\r\u2028\u2029\x85é\ufffd 日"


async def test_numbers_that_json_does_not_have_are_refused(http: httpx.AsyncClient) -> None:
    sent = '{"model": "model", "input": "a", "tools": [{"type": "function", "name": "f", "parameters": {"a": NaN}}]}'
    response = await http.post(RESPONSES, content=sent, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_an_unknown_response_is_not_found(model: Model) -> None:
    log = MemoryStreamLog()
    await log.begin("secret", "owner", "text/event-stream", "resp_key")
    async with asking(app_of(FastAPI, model, log=log)) as http:
        for id in ("resp_missing", "resp_%00", "other", "secret", "resp_key"):
            for method, path in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")):
                response = await http.request(method, f"{RESPONSES}/{id}{path}")
                assert (response.status_code, response.json()["error"]["type"]) == (404, "invalid_request_error")


async def test_the_client_of_a_slow_model_gets_a_comment_and_later_errors_are_events(
    http: httpx.AsyncClient, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "FIRST_EVENT_S", 0.01)
    for store in (True, False):
        async with http.stream("POST", RESPONSES, json=body("refuse", stream=True, store=store)) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == live_response.HEARTBEAT.decode().strip()
            model.allow(1)
            data = [json.loads(line[6:]) async for line in lines if line.startswith("data: ")]
        assert [event["type"].removeprefix("response.") for event in data] == ["created", "in_progress", "failed"]
        assert data[-1]["response"]["error"]["code"] == "context_length_exceeded"


async def test_a_stored_response_without_a_client_is_stopped_after_linger_s(model: Model) -> None:
    clock = HeldClock()
    log = MemoryStreamLog(now=clock)
    async with asking(app_of(FastAPI, model, log=log, linger_s=0.1)) as http:
        model.allow(1)
        async with http.stream("POST", RESPONSES, json=body("a b", stream=True)) as response:
            events = await read_until(following(response), "response.output_text.delta")
        id = events[0]["response"]["id"]
        background = (await http.post(RESPONSES, json=body("c d", background=True))).json()["id"]
        clock.go_on()
        await until(lambda: model.cleaned == 1)
        assert (await eventually(http, id, "cancelled"))["status"] == "cancelled"
        assert (await eventually(http, background, "queued", "in_progress"))["background"] is True
        model.allow(2)
        await eventually(http, background, "completed")


@asynccontextmanager
async def replicas(model: Model, log: Any) -> AsyncIterator[list[httpx.AsyncClient]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(asking(app_of(FastAPI, model, log=log))) for _ in range(2)]


async def test_replicas_that_share_a_log_serve_the_responses_of_each_other(model: Model) -> None:
    async with replicas(model, MemoryStreamLog()) as (one, other):
        model.allow(1)
        id = (await one.post(RESPONSES, json=body("a b", background=True))).json()["id"]
        url = f"{RESPONSES}/{id}"
        async with other.stream("GET", url, params={"stream": True}) as response:
            await read_until(following(response), "response.output_text.delta")
            async with asyncio.timeout(SOON_S):
                assert (await other.post(f"{url}/cancel")).json()["status"] == "cancelled"
        assert model.running == 0
        model.allow(2)
        first = (await one.post(RESPONSES, json=body("a"))).json()["id"]
        assert (await other.post(RESPONSES, json=body("b", previous_response_id=first))).status_code == 200
        assert len(model.requests[-1].messages) == 3


async def test_a_response_whose_replica_ended_has_failed(model: Model) -> None:
    log = MemoryStreamLog()
    async with asking(app_of(FastAPI, model, log=log)) as other:
        async with asking(app_of(FastAPI, model, log=log)) as http:
            model.allow(1)
            id = (await http.post(RESPONSES, json=body("a b", background=True))).json()["id"]
            url = f"{RESPONSES}/{id}"
            asked = asyncio.create_task(other.get(url, params={"stream": True}))
            await until(lambda: len(model.requests) == 1 and model.permits.locked())
        await until(lambda: model.cleaned == 1)
        events = events_of((await asked).text)
        assert (events[-1]["type"], said(events)) == ("response.failed", "a ")
        found = (await other.get(url)).json()
        assert (found, found["error"]["code"]) == (events[-1]["response"], "server_error")


async def test_a_response_larger_than_its_log_is_an_error(model: Model) -> None:
    async with asking(app_of(FastAPI, model, log=MemoryStreamLog(StreamLimits(max_bytes=1_600)))) as http:
        model.allow(3)
        whole = (await http.post(RESPONSES, json=body("a b c"))).json()
        assert output_text(whole) == "a b c "
        url = f"{RESPONSES}/{whole['id']}"
        assert (await http.get(url)).json() == whole
        (error,) = events_of((await http.get(url, params={"stream": True})).text)
        assert (error["type"], error["code"], error["sequence_number"]) == ("error", "history_evicted", 0)
        response = await http.post(RESPONSES, json=body("a", previous_response_id=whole["id"]))
        assert (response.status_code, response.json()["error"]["param"]) == (400, "previous_response_id")
        model.allow(3)
        id = (await http.post(RESPONSES, json=body("a b c d", background=True))).json()["id"]
        asked = asyncio.create_task(http.get(f"{RESPONSES}/{id}", params={"stream": True}))
        await until(model.permits.locked)
        async with asyncio.timeout(PATIENCE_S):
            while (response := await http.get(f"{RESPONSES}/{id}")).status_code == 200:
                pass
        assert (response.status_code, response.json()["error"]["code"]) == (410, "history_evicted")
        await http.delete(f"{RESPONSES}/{id}")
        await asked


async def test_a_full_log_refuses_a_response_before_the_model_is_called(model: Model) -> None:
    async with asking(app_of(FastAPI, model, log=MemoryStreamLog(StreamLimits(max_streams=1)))) as http:
        id = (await http.post(RESPONSES, json=body("a", background=True))).json()["id"]
        await until(lambda: model.running == 1)
        response = await http.post(RESPONSES, json=body("a"))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "stream_log_full")
        assert len(model.requests) == 1
        await http.delete(f"{RESPONSES}/{id}")


async def test_a_response_that_is_removed_while_it_is_followed_ends_with_an_error(model: Model) -> None:
    log = MemoryStreamLog()
    async with asking(app_of(FastAPI, model, log=log)) as http:
        model.allow(1)
        async with http.stream("POST", RESPONSES, json=body("a b", stream=True)) as response:
            stream = following(response)
            events = await read_until(stream, "response.output_text.delta")
            await log.remove(events[0]["response"]["id"])
            (last,) = [event async for event in stream]
        assert (last["type"], last["code"]) == ("error", "not_found")
        assert last["sequence_number"] == events[-1]["sequence_number"] + 1
        await until(lambda: model.cleaned == 1)


@pytest.mark.parametrize("options", [{"linger_s": 0}, {"max_duration_s": 0}, {"linger_s": 10**6}])
def test_a_wrong_option_is_refused(options: dict[str, Any], model: Model) -> None:
    with pytest.raises(ConfigError, match=f"openai_router: {next(iter(options))} = "):
        openai_router({"model": model}, **options)


async def test_a_response_belongs_to_the_api_key_that_began_it(model: Model) -> None:
    keys = api_keys({"ada": "a" * 16, "bob": "b" * 16})
    ada, bob = ({"authorization": f"Bearer {letter * 16}"} for letter in "ab")
    app, log = FastAPI(), MemoryStreamLog()
    app.include_router(openai_router({"model": model}, log=log), prefix="/v1", dependencies=[Depends(keys)])
    app.include_router(openai_router({"model": model}, log=log), prefix="/open")
    async with asking(app) as http:
        model.allow(1)
        id = (await http.post(RESPONSES, json=body("one"), headers=ada)).json()["id"]
        continued = body("two", previous_response_id=id)
        for path in ("", "?stream=true", "/input_items"):
            assert (await http.get(f"{RESPONSES}/{id}{path}", headers=bob)).status_code == 404
            assert (await http.get(f"/open/responses/{id}{path}")).status_code == 404
            assert (await http.get(f"{RESPONSES}/{id}{path}", headers=ada)).status_code == 200
        assert (await http.post(f"{RESPONSES}/{id}/cancel", headers=bob)).status_code == 404
        assert (await http.delete(f"{RESPONSES}/{id}", headers=bob)).status_code == 404
        refused = await http.post(RESPONSES, json=continued, headers=bob)
        assert refused.json()["error"]["code"] == "previous_response_not_found"
        model.allow(1)
        assert (await http.post(RESPONSES, json=continued, headers=ada)).status_code == 200
        assert (await http.delete(f"{RESPONSES}/{id}", headers=ada)).json()["id"] == id
        assert (await http.get(f"{RESPONSES}/{id}", headers=ada)).status_code == 404


async def test_the_input_of_a_response_is_listed_with_that_of_the_responses_before_it(
    http: httpx.AsyncClient, model: Model
) -> None:
    model.allow(2)
    first = (await http.post(RESPONSES, json=body("one"))).json()["id"]
    image = {"type": "input_image", "image_url": "https://x.test/a.png"}
    sent = [{"role": "user", "content": [{"type": "input_text", "text": "two"}, image]}]
    second = (await http.post(RESPONSES, json=body(sent, previous_response_id=first))).json()["id"]
    listed = (await http.get(f"{RESPONSES}/{second}/input_items?order=asc")).json()
    assert (listed["object"], listed["has_more"]) == ("list", False)
    question, answer, picture = listed["data"]
    assert question == {
        "id": question["id"],
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "one"}],
    }
    assert (answer["role"], answer["content"][0]["type"]) == ("assistant", "output_text")
    assert picture["content"][1] == {**image, "detail": "auto"}
    assert (listed["first_id"], listed["last_id"]) == (question["id"], picture["id"])
    newest = (await http.get(f"{RESPONSES}/{second}/input_items?limit=1")).json()
    assert ([each["id"] for each in newest["data"]], newest["has_more"]) == ([picture["id"]], True)
    after = f"{RESPONSES}/{second}/input_items?limit=2&after={picture['id']}"
    assert [each["id"] for each in (await http.get(after)).json()["data"]] == [answer["id"], question["id"]]
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=x", "after")):
        refused = await http.get(f"{RESPONSES}/{second}/input_items?{query}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_tokens_of_the_input_are_counted_by_models_that_can(model: Model) -> None:
    app = Toolkit()
    app.include_router(openai_router({"echo": EchoModel.bind(), "model": model}), prefix="/v1")
    async with asking(app) as http:
        first = (await http.post(RESPONSES, json={"model": "echo", "input": "one two"})).json()["id"]
        path = f"{RESPONSES}/input_tokens"
        counted = await http.post(path, json={"model": "echo", "input": "three", "instructions": "be brief"})
        assert counted.json() == {"object": "response.input_tokens", "input_tokens": 3}
        continued = await http.post(path, json={"input": "three", "previous_response_id": first})
        assert continued.json()["input_tokens"] == 5
        refused = await http.post(path, json={"model": "model", "input": "one"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "count_tokens_not_supported")
        assert (await http.post(path, json={"model": "echo"})).status_code == 400
        assert (await http.post(path, json={"model": "none", "input": "a"})).status_code == 404
