"""One process, no Ray: the limits are real however the app is run."""

import asyncio
import logging

import httpx
import pytest
from fastapi import APIRouter, BackgroundTasks, Request, WebSocket
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from app_toolkit import DeploymentConfig, Toolkit
from app_toolkit.engines.embedded import Ingress
from app_toolkit.replica.replica import Statistics

pytestmark = pytest.mark.anyio

SLOW = DeploymentConfig(name="slow", max_ongoing_requests=1, max_queued_requests=1, max_queue_wait_s=5)


class Gated:
    """An app with an endpoint that waits until it is let go."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.someone_entered = asyncio.Condition()
        self.let_go = asyncio.Event()
        slow = APIRouter()

        @slow.get("/slow/{name}")
        async def slow_one(name: str) -> str:
            async with self.someone_entered:
                self.entered.append(name)
                self.someone_entered.notify_all()
            await self.let_go.wait()
            return name

        @slow.get("/background")
        async def with_background(tasks: BackgroundTasks) -> str:
            tasks.add_task(self.let_go.wait)
            return "answered"

        self.app = Toolkit()
        self.app.include_router(slow, deployment=SLOW)

        @self.app.get("/quick")
        async def quick() -> str:
            return "quick"

        @self.app.get("/boom")
        async def boom() -> None:
            raise ValueError("out of stock")

        @self.app.websocket("/ws")
        async def ws(socket: WebSocket) -> None:
            await socket.accept()
            await socket.send_text("hello")
            await socket.close(4001, "enough")

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://shop")

    async def entered_by(self, name: str) -> None:
        async with asyncio.timeout(5), self.someone_entered:
            await self.someone_entered.wait_for(lambda: name in self.entered)


async def test_one_runs_one_waits_and_the_third_is_refused_at_once() -> None:
    world = Gated()
    async with world.client() as client:
        first = asyncio.create_task(client.get("/slow/first"))
        await world.entered_by("first")
        second = asyncio.create_task(client.get("/slow/second"))
        await asyncio.sleep(0)
        third = await client.get("/slow/third", headers={"x-request-id": "my-own-id"})
        assert third.status_code == 503
        assert third.headers["retry-after"] == "1"
        assert third.headers["x-request-id"] == "my-own-id"
        assert third.json() == {
            "error": "queue_full",
            "detail": "1 requests wait for slow, its max_queued_requests is 1",
            "request_id": "my-own-id",
        }
        assert (await client.get("/quick")).json() == "quick", "another ingress is not touched"
        world.let_go.set()
        assert [(await task).json() for task in (first, second)] == ["first", "second"]
        assert world.entered == ["first", "second"]


async def test_a_caller_that_hangs_up_in_the_queue_leaves_it() -> None:
    world = Gated()
    async with world.client() as client:
        first = asyncio.create_task(client.get("/slow/first"))
        await world.entered_by("first")
        second = asyncio.create_task(client.get("/slow/second"))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        third = asyncio.create_task(client.get("/slow/third"))
        await asyncio.sleep(0)
        world.let_go.set()
        assert (await first).status_code == (await third).status_code == 200
        assert world.entered == ["first", "third"]


async def test_background_tasks_hold_no_turn() -> None:
    world = Gated()
    async with world.client() as client:
        # The in-process transport answers when the app is done, so the answer itself is not awaited here.
        background = asyncio.create_task(client.get("/background"))
        again = asyncio.create_task(client.get("/slow/again"))
        await world.entered_by("again")
        world.let_go.set()
        assert (await background).json() == "answered"
        assert (await again).json() == "again"


async def test_a_slot_that_somebody_else_holds_is_waited_for_in_line() -> None:
    world = Gated()
    ingress = Ingress("slow", world.app, SLOW)
    transport = httpx.ASGITransport(ingress)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        # As a handler holds it whose exchange is over.
        holder = httpx.AsyncClient(transport=httpx.ASGITransport(ingress.replica.admit), base_url="http://shop")
        holding = asyncio.create_task(holder.get("/slow/holder"))
        await world.entered_by("holder")
        waiting = asyncio.create_task(client.get("/slow/waiting"))
        async with asyncio.timeout(5):
            while not ingress.router.lines:  # noqa: ASYNC110 the router tells nobody
                await asyncio.sleep(0)
        assert (ingress.router.waiting, ingress.replica.statistics().lines) == (1, 1)
        world.let_go.set()
        assert (await holding).json() == "holder"
        assert (await waiting).json() == "waiting"
        assert (await client.get("/slow/again")).json() == "again"
        await holder.aclose()
    assert (ingress.router.waiting, ingress.router.ongoing, ingress.router.lines) == (0, 0, 0)
    assert ingress.replica.statistics() == Statistics(0, 0, 0, draining=False)
    assert ingress.replica.line.admits_stranger


async def test_a_handler_that_raises_is_logged_under_its_request_id(caplog: pytest.LogCaptureFixture) -> None:
    world = Gated()
    async with world.client() as client:
        with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="out of stock"):
            await client.get("/boom", headers={"x-request-id": "the-id"})
    assert "request the-id failed in app" in caplog.text


@pytest.mark.parametrize("entered", [True, False], ids=["with", "without"])
def test_the_test_client_works_with_and_without_its_context(entered: bool) -> None:
    client = TestClient(Gated().app)
    if entered:
        client.__enter__()
    try:
        assert client.get("/quick").json() == "quick"
        assert client.get("/nowhere").status_code == 404
        with client.websocket_connect("/ws") as socket:
            assert socket.receive_text() == "hello"
            with pytest.raises(WebSocketDisconnect) as closed:
                socket.receive_text()
            assert (closed.value.code, closed.value.reason) == (4001, "enough")
    finally:
        if entered:
            client.__exit__(None, None, None)


def test_every_answer_carries_a_request_id() -> None:
    client = TestClient(Gated().app)
    ids = {client.get("/quick").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    assert client.get("/quick", headers={"x-request-id": "bad id"}).headers["x-request-id"] != "bad id"


def test_internal_fields_of_a_client_do_not_reach_the_app() -> None:
    world = Gated()

    @world.app.get("/fields")
    async def fields(request: Request) -> list[str]:
        return [name for name in request.headers if "toolkit" in name]

    sent = {"x-app-toolkit-hop": "1", "X_App_Toolkit_Ongoing": "2"}
    assert TestClient(world.app).get("/fields", headers=sent).json() == []


def test_an_app_mounted_in_another_app_finds_its_ingresses() -> None:
    outer = Toolkit()
    outer.mount("/inner", Gated().app)
    assert TestClient(outer).get("/inner/quick").json() == "quick"
