"""The records of requests and calls that one process serves without Ray."""

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import BackgroundTasks, FastAPI, HTTPException, WebSocket
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from app_toolkit import Deployment, DeploymentConfig, Toolkit
from app_toolkit.declare.toolkit import route_table
from app_toolkit.engines.one_process.calls import IN_PROCESS
from app_toolkit.engines.one_process.engine import OneProcess, in_one_process
from app_toolkit.errors import QueueFull
from app_toolkit.observability.records import Record
from app_toolkit.types import Scope
from tests.patience import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def records() -> Iterator[list[Record]]:
    found: list[Record] = []
    subscriber = found.append
    IN_PROCESS.records.subscribe(subscriber)
    yield found
    IN_PROCESS.records.unsubscribe(subscriber)
    IN_PROCESS.close()


def app() -> FastAPI:
    app = Toolkit(deployment=DeploymentConfig(name="web", max_body_size=3, request_timeout_s=0.2))

    @app.get("/word")
    async def word() -> str:
        return "word"

    @app.get("/fails")
    async def fails() -> None:
        raise ValueError("out of stock")

    @app.get("/slow")
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.get("/late")
    async def late() -> None:
        raise HTTPException(504)

    @app.post("/upload")
    async def upload() -> None: ...

    @app.websocket("/refused")
    async def refused(socket: WebSocket) -> None:
        await socket.close()

    @app.websocket("/fails")
    async def fails_when_open(socket: WebSocket) -> None:
        await socket.accept()
        raise ValueError("out of stock")

    @app.websocket("/silent")
    async def silent(socket: WebSocket) -> None: ...

    return app


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "outcome", "replica", "tries"),
    [
        ("GET", "/word", None, 200, "ok", "web", 1),
        ("GET", "/none", None, 404, "ok", "web", 1),
        ("GET", "/fails", None, 500, "ok", "web", 1),
        ("GET", "/slow", None, 504, "deadline_exceeded", "web", 1),
        ("GET", "/late", None, 504, "ok", "web", 1),
        ("POST", "/upload", b"four", 413, "content_too_large", "-", 0),
    ],
)
async def test_request_is_recorded_when_it_ends(
    records: list[Record],
    method: str,
    path: str,
    content: bytes | None,
    status: int,
    outcome: str,
    replica: str,
    tries: int,
) -> None:
    transport = httpx.ASGITransport(app(), raise_app_exceptions=False, client=("192.0.2.7", 50123))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        response = await http.request(method, path, content=content, headers={"x-request-id": "it"})
    (record,) = records
    assert response.status_code == record.status == status
    assert (record.kind, record.deployment, record.outcome) == ("http", "web", outcome)
    assert (record.replica, record.tries, record.size) == (replica, tries, len(response.content))
    assert (record.method, record.path, record.id) == (method.encode(), path.encode(), b"it")
    assert record.peers == b"192.0.2.7 50123"
    assert record.first_byte_s is not None
    assert record.seconds >= record.first_byte_s >= (record.attempt_s or 0) >= 0
    assert (record.attempt_s is None) is (tries == 0)


async def test_responses_in_one_process_have_their_times_if_the_environment_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("APP_TOOLKIT_SERVER_TIMING", "true")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app()), base_url="http://shop") as http:
        timing = (await http.get("/word")).headers["server-timing"]
    assert re.fullmatch(r"queue;dur=0\.0, app;dur=\d+\.\d", timing)


async def test_the_record_of_a_request_has_the_times_of_its_stages(records: list[Record]) -> None:
    app = FastAPI()
    entered, proceed = asyncio.Event(), asyncio.Event()

    @app.get("/{name}")
    async def get(name: str) -> None:
        entered.set()
        await proceed.wait()

    served = in_one_process(app, DeploymentConfig(name="web", max_ongoing_requests=1))
    assert isinstance(served, OneProcess)
    transport = httpx.ASGITransport(served)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        first = asyncio.create_task(http.get("/first"))
        await entered.wait()
        second = asyncio.create_task(http.get("/second"))
        router = served.planes[asyncio.get_running_loop()].ingresses["web"].router
        await until(lambda: router.waiting == 1)
        proceed.set()
        await asyncio.gather(first, second)
    one, two = sorted(records, key=lambda record: record.path)
    assert one.queued_s == 0
    assert one.attempt_s == 0
    assert 0 < two.queued_s <= (two.attempt_s or 0) <= (two.first_byte_s or 0) <= two.seconds


async def test_record_of_an_app_without_ingresses_has_the_route(records: list[Record]) -> None:
    app = FastAPI()

    @app.get("/items/{name}")
    async def item(name: str) -> str:
        return name

    transport = httpx.ASGITransport(in_one_process(app, DeploymentConfig(name="web"), routes=route_table))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        for path in ("/items/tea", "/none"):
            await http.get(path)
    assert [(record.deployment, record.route) for record in records] == [("web", "/items/{name}"), ("web", "")]


@pytest.mark.parametrize(
    ("path", "kind", "status", "error"),
    [("/refused", "http", 403, WebSocketDisconnect), ("/fails", "websocket", 101, ValueError)],
)
def test_a_websocket_is_recorded_when_it_ends(
    records: list[Record], path: str, kind: str, status: int, error: type[Exception]
) -> None:
    with pytest.raises(error), TestClient(app()).websocket_connect(path) as socket:
        socket.receive_text()
    (record,) = records
    assert (record.kind, record.status, record.outcome) == (kind, status, "ok")
    assert (record.replica, record.tries) == ("web", 1)


async def test_a_websocket_that_is_not_accepted_is_recorded_with_the_500_of_the_server(records: list[Record]) -> None:
    scope: Scope = {"type": "websocket", "path": "/silent", "query_string": b"", "headers": [], "subprotocols": []}

    async def nothing(*_: object) -> Any:
        raise AssertionError("the handler neither receives nor sends")

    await app()(scope, nothing, nothing)
    (record,) = records
    assert (record.kind, record.status, record.outcome) == ("http", 500, "ok")


def test_records_of_several_threads_are_all_counted(records: list[Record]) -> None:
    record, count = Record(0.0, 0.01, "http", "of-threads", "of-threads", 1, "ok", b"GET"), 20_000

    def add() -> None:
        for _ in range(count):
            IN_PROCESS.records.add(record)

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch_s)
    counts = IN_PROCESS.counters.copy()["of-threads"]
    assert counts.outcomes == {"ok": 4 * count}
    assert sum(counts.latency) == 4 * count


async def test_response_is_complete_even_if_its_background_task_is_refused(records: list[Record]) -> None:
    plain = FastAPI()

    async def refused() -> None:
        raise QueueFull("1 requests wait for writer")

    @plain.get("/word")
    async def word(tasks: BackgroundTasks) -> str:
        tasks.add_task(refused)
        return "word"

    transport = httpx.ASGITransport(in_one_process(plain), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        await http.get("/word")
    assert [(each.status, each.outcome) for each in records] == [(200, "ok")]


class Writer(Deployment):
    async def write(self, word: str) -> str:
        return word.upper()

    async def letters(self, word: str) -> AsyncIterator[str]:
        for letter in word:
            yield letter


async def test_call_is_recorded_when_its_result_is_complete(records: list[Record]) -> None:
    writer = Writer.bind().handle
    assert await writer.write("word") == "WORD"
    assert [letter async for letter in writer.letters("ab")] == ["a", "b"]
    assert [(each.kind, each.deployment, each.method, each.outcome, each.tries) for each in records] == [
        ("call", "writer", b"write", "ok", 1),
        ("call", "writer", b"letters", "ok", 1),
    ]
