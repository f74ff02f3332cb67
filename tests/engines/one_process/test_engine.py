"""Limits and deadlines of an app in one process, beside the contract of all engines."""

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, BackgroundTasks, FastAPI, Request, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from app_toolkit import DeploymentConfig, Toolkit, replica_context
from app_toolkit.config.models import Faults
from app_toolkit.engines.one_process.engine import Ingress, OneProcess, in_one_process
from app_toolkit.errors import ContentTooLarge
from app_toolkit.exchange.upload_rate import MinimumRate
from app_toolkit.replica.admission.replica import ReplicaStatistics
from app_toolkit.types import Message, Receive, Scope, Send
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.anyio

SLOW = DeploymentConfig(name="slow", max_ongoing_requests=1, max_queued_requests=1, max_queue_wait_s=PATIENCE_S)


class Held:
    """An app with an endpoint that waits until it is let go."""

    def __init__(self, config: DeploymentConfig = SLOW) -> None:
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

        self.app = Toolkit()
        self.app.include_router(slow, deployment=config)

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
        async with asyncio.timeout(PATIENCE_S), self.someone_entered:
            await self.someone_entered.wait_for(lambda: name in self.entered)


async def test_slow_bodies_hold_half_of_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app_toolkit.replica.admission.replica_request.PROMPT", MinimumRate(64 * 1024, 0.5))
    app = FastAPI()
    rest = asyncio.Event()

    @app.post("/")
    async def size(request: Request) -> int:
        return len(await request.body())

    async def body() -> AsyncIterator[bytes]:
        yield b"slow"
        await rest.wait()

    served = in_one_process(app, DeploymentConfig(name="app", max_ongoing_requests=2))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://shop") as client:
        uploads = [asyncio.create_task(client.post("/", content=body())) for _ in range(2)]
        done, _ = await asyncio.wait(uploads, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result().status_code for each in done] == [408]
        assert (await client.post("/", content=b"fast")).json() == 4
        rest.set()
        assert sorted(each.status_code for each in await asyncio.gather(*uploads)) == [200, 408]


async def slow_ingress(world: Held) -> Ingress:
    """Return the ingress that serves `/slow`, after a first request."""
    async with world.client() as client:
        await client.get("/quick")
    served = world.app._one_process
    assert isinstance(served, OneProcess)
    return served.planes[asyncio.get_running_loop()].ingresses["slow"]


@asynccontextmanager
async def full(world: Held, ingress: Ingress) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an ingress whose only slot is held by a handler that its router does not know of."""
    holder = httpx.AsyncClient(transport=httpx.ASGITransport(ingress.replica.serve), base_url="http://shop")
    async with holder, world.client() as client:
        holding = asyncio.create_task(holder.get("/slow/holder"))
        await world.entered_by("holder")
        yield client
        world.let_go.set()
        assert (await holding).json() == "holder"
    assert (ingress.router.waiting, ingress.router.ongoing, ingress.router.positions) == (0, 0, 0)


async def test_a_request_waits_in_the_queue_of_the_replica_if_others_hold_its_slots() -> None:
    world = Held()
    ingress = await slow_ingress(world)
    async with full(world, ingress) as client:
        waiting = asyncio.create_task(client.get("/slow/waiting"))
        await until(lambda: ingress.router.positions > 0)
        assert (ingress.router.waiting, ingress.replica.statistics().waiting_callers) == (1, 1)
        world.let_go.set()
        assert (await waiting).json() == "waiting"
        assert (await client.get("/slow/again")).json() == "again"
    assert ingress.replica.statistics() == ReplicaStatistics(0, 0, 0, draining=False)
    assert ingress.replica.wait_queue.admits_unreserved


async def test_a_request_that_is_refused_again_waits_no_longer_than_max_queue_wait_s() -> None:
    world = Held(SLOW.model_copy(update={"max_queue_wait_s": 0.5}))
    ingress = await slow_ingress(world)
    ingress.replica.wait_queue.close()  # so that it is asked, and refuses, every tenth of a second
    async with full(world, ingress) as client, asyncio.timeout(PATIENCE_S):
        late = await client.get("/slow/late")
        assert (late.status_code, late.json()["error"]) == (503, "queue_timeout")


async def test_a_handler_that_raises_is_logged_under_its_request_id(caplog: pytest.LogCaptureFixture) -> None:
    world = Held()
    async with world.client() as client:
        with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="out of stock"):
            await client.get("/boom", headers={"x-request-id": "the-id"})
    assert "request the-id failed in app" in caplog.text


async def test_a_handler_that_raises_in_its_response_is_not_hidden(caplog: pytest.LogCaptureFixture) -> None:
    app = Toolkit()

    @app.get("/")
    async def stream() -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            yield b"begun"
            raise ValueError("out of stock")

        return StreamingResponse(body())

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="out of stock"):
            await client.get("/", headers={"x-request-id": "the-id"})
    assert "request the-id failed in app" in caplog.text


@pytest.mark.parametrize("entered", [True, False], ids=["with", "without"])
def test_the_test_client_works_with_and_without_its_context(entered: bool) -> None:
    client = TestClient(Held().app)
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


@pytest.mark.parametrize("timeout_s", [None, 30.0], ids=["no deadline", "a deadline"])
def test_a_loop_that_has_ended_is_not_kept(timeout_s: float | None) -> None:
    app = Toolkit(deployment=DeploymentConfig(name="app", request_timeout_s=timeout_s))
    client = TestClient(app)
    for _ in range(20):
        assert client.get("/").status_code == 404
    gc.collect()
    assert app._one_process is not None
    assert len(app._one_process.planes) <= 2


class Sends(Response):
    """Sends these messages."""

    def __init__(self, *messages: Message) -> None:
        self.messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert "http.response.debug" in scope["extensions"]
        for message in self.messages:
            await send(message)


def sending(*messages: Message) -> TestClient:
    app = Toolkit()
    app.add_route("/", lambda request: Sends(*messages))
    return TestClient(app)


def test_a_message_of_an_extension_reaches_the_server() -> None:
    shown = {"template": "page.html", "context": {"name": "Ada"}}
    body = {"type": "http.response.body", "body": b"Ada"}
    page = sending({"type": "http.response.debug", "info": shown}, {"type": "http.response.start", "status": 200}, body)
    assert page.get("/").context == {"name": "Ada"}  # type: ignore[attr-defined]


def test_the_server_raises_an_error_for_a_message_out_of_order() -> None:
    start = {"type": "http.response.start", "status": 200}
    body = {"type": "http.response.body", "body": b"Ada", "more_body": True}
    again = {**start, "headers": [(b"content-length", b"3")]}
    with pytest.raises(AssertionError, match=r'multiple "http.response.start" messages'):
        sending(start, body, again).get("/")


async def test_a_file_is_sent_in_messages_though_the_server_could_read_it(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("Ada")
    scope: Scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    scope["extensions"] = {"http.response.pathsend": {}}
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")

    async def send(message: Message) -> None:
        sent.append(message)

    app = Toolkit()
    app.add_route("/", lambda request: FileResponse(tmp_path / "page"))
    await app(scope, receive, send)
    assert b"".join(each.get("body", b"") for each in sent) == b"Ada"


def test_internal_fields_of_a_client_do_not_reach_the_app() -> None:
    world = Held()

    @world.app.get("/fields")
    async def fields(request: Request) -> list[str]:
        return [name for name in request.headers if "toolkit" in name]

    sent = {"x-app-toolkit-hop": "1", "X_App_Toolkit_Ongoing": "2"}
    assert TestClient(world.app).get("/fields", headers=sent).json() == []


def test_an_app_mounted_in_another_app_finds_its_ingresses() -> None:
    outer = Toolkit()
    outer.mount("/inner", Held().app)
    assert TestClient(outer).get("/inner/quick").json() == "quick"


@pytest.mark.filterwarnings("ignore::fastapi.exceptions.FastAPIDeprecationWarning")
@pytest.mark.parametrize(("of_app", "of_server"), [("/api/v1", ""), ("", "/api/v1"), ("/api/v1", "/outer")])
def test_an_ingress_is_found_below_the_root_path(of_app: str, of_server: str) -> None:
    app = Toolkit(root_path=of_app)
    items = APIRouter(prefix="/items")

    @items.get("/{name}", name="item")
    async def item(name: str, request: Request) -> list[str]:
        return [replica_context().deployment, str(request.url_for("item", name=name))]

    @items.websocket("/ws")
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close(reason=replica_context().deployment)

    app.include_router(items, deployment=DeploymentConfig(name="items"))
    client = TestClient(app, root_path=of_server)
    for path in ("/items/a", "/api/v1/items/a"):
        assert client.get(path).json() == ["items", "http://testserver/api/v1/items/a"]
    with client.websocket_connect("/api/v1/items/ws") as socket, pytest.raises(WebSocketDisconnect) as closed:
        socket.receive_text()
    assert closed.value.reason == "items"
    assert client.get("/api/v1s/items/a").status_code == 404


def test_faults_apply_to_handshakes_and_to_waits_that_are_longer_than_those_in_the_queue() -> None:
    faults = {"delay_s": 0.3, "delay_percent": 100, "headers": True}
    world = Held(SLOW.model_copy(update={"max_queue_wait_s": 0.1, "faults": Faults(**faults)}))
    world.let_go.set()
    denied = Toolkit(deployment=DeploymentConfig(name="denied", faults={"abort_status": 418, "abort_percent": 100}))

    @denied.websocket("/ws")
    async def never(socket: WebSocket) -> None:
        raise AssertionError("no replica gets it")

    with TestClient(world.app) as client:
        assert client.get("/slow/late").json() == "late"
        late = client.get("/slow/later", headers={"x-request-timeout-seconds": "0.2"})
        assert (late.status_code, late.json()["detail"]) == (504, "no replica took the request within its 0.2 s")
    with (
        TestClient(denied) as client,
        pytest.raises(WebSocketDenialResponse) as refused,
        client.websocket_connect("/ws"),
    ):
        pass
    assert (refused.value.status_code, refused.value.json()["error"]) == (418, "fault_injected")
    assert world.entered == ["late"]


# Deadlines

TIMED = DeploymentConfig(name="timed", max_ongoing_requests=1, request_timeout_s=0.3)


@pytest.mark.parametrize("ending", ["returns", "raises", "raises in a response of known length"])
async def test_the_response_to_a_late_request_is_sent_whole_though_its_handler_ends_meanwhile(ending: str) -> None:
    app, sending = Toolkit(deployment=TIMED), asyncio.Event()
    sent: list[Message] = []
    cleaned_up = False

    async def body() -> AsyncIterator[bytes]:
        await sending.wait()
        raise ValueError("out of stock")
        yield b""

    @app.get("/")
    async def late(background: BackgroundTasks) -> Response:
        if ending == "raises in a response of known length":
            return StreamingResponse(body(), headers={"content-length": "9"})
        await sending.wait()
        if ending == "raises":
            raise ValueError("out of stock")
        background.add_task(clean_up)
        return PlainTextResponse("too late", background=background)

    def clean_up() -> None:
        nonlocal cleaned_up
        cleaned_up = True

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")

    async def send(message: Message) -> None:
        sending.set()
        for _ in range(100):  # as if the connection were full
            await asyncio.sleep(0)
        sent.append(message)

    request = app({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}, receive, send)
    # The handler of a stream sees a disconnect, and ends.
    with pytest.raises(ValueError, match="out of stock") if ending == "raises" else nullcontext():
        await request
    start, rest = sent
    assert start["status"] == 504
    assert json.loads(rest["body"])["error"] == "deadline_exceeded"
    assert cleaned_up == (ending == "returns")


async def test_the_wait_in_the_queue_counts() -> None:
    world = Held()
    async with world.client() as client:
        inside = asyncio.create_task(client.get("/slow/inside"))
        await world.entered_by("inside")
        late = await client.get("/slow/late", headers={"x-request-timeout-seconds": "0.1"})
        assert late.status_code == 504
        assert late.json()["detail"] == "no replica took the request within its 0.1 s"
        world.let_go.set()
        assert (await inside).json() == "inside"
    assert world.entered == ["inside"]


def talking() -> tuple[Toolkit, list[str]]:
    """An app whose WebSocket is accepted late, or never, and heard from later than its deadline."""
    events: list[str] = []
    timed = APIRouter()

    @timed.websocket("/never")
    async def never(socket: WebSocket) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    @timed.websocket("/stubborn")
    async def stubborn(socket: WebSocket) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await socket.accept()
            await socket.close()

    @timed.websocket("/open")
    async def stay(socket: WebSocket) -> None:
        await socket.accept()
        await asyncio.sleep(0.4)
        await socket.send_text("still here")

    app = Toolkit()
    app.include_router(timed, deployment=TIMED)
    return app, events


@pytest.mark.parametrize("path", ["/never", "/stubborn"])
def test_a_websocket_that_is_not_accepted_in_time_is_denied(path: str) -> None:
    app, events = talking()
    with (
        TestClient(app) as client,
        pytest.raises(WebSocketDenialResponse) as denied,
        client.websocket_connect(path),
    ):
        pass
    assert (denied.value.status_code, denied.value.json()["error"]) == (504, "deadline_exceeded")
    assert denied.value.json()["detail"] == "the WebSocket was not accepted within its 0.3 s"
    assert events == ["cancelled"] * (path == "/never")


def test_a_websocket_that_was_accepted_has_no_deadline_any_more() -> None:
    app, _ = talking()
    with TestClient(app) as client, client.websocket_connect("/open") as socket:
        assert socket.receive_text() == "still here"


async def test_a_handler_that_sends_learns_that_its_client_has_left() -> None:
    app = Toolkit()
    messages: list[Message] = [{"type": "websocket.disconnect", "code": 1001}, {"type": "websocket.connect"}]

    @app.websocket("/")
    async def ws(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive()  # in a chat, another task does this
        with pytest.raises(WebSocketDisconnect):
            await socket.send_text("hello")

    async def receive() -> Message:
        return messages.pop()

    async def send(message: Message) -> None:
        if message["type"] == "websocket.send":
            raise OSError("the client has left")

    await app({"type": "websocket", "path": "/", "query_string": b"", "headers": []}, receive, send)


def test_a_timeout_that_is_no_number_is_refused_of_a_websocket_too() -> None:
    app, events = talking()
    with (
        TestClient(app) as client,
        pytest.raises(WebSocketDenialResponse) as denied,
        client.websocket_connect("/never", headers={"x-request-timeout-seconds": "nan"}),
    ):
        pass
    assert (denied.value.status_code, denied.value.json()["error"]) == (400, "bad_request")
    assert events == []


# Pages of other origins

ORIGIN = {"origin": "https://page.example"}
EXPOSED = "Retry-After, X-Request-ID"


async def test_a_page_of_another_origin_reads_the_errors_of_the_toolkit() -> None:
    world = Held()
    world.app.add_middleware(CORSMiddleware, allow_origins=[ORIGIN["origin"]], allow_methods=["GET"])
    world.app.add_api_route("/late", world.let_go.wait)
    async with world.client() as client:
        held = [asyncio.create_task(client.get(f"/slow/{name}")) for name in ("inside", "waiting")]
        await world.entered_by("inside")
        refused = await client.get("/slow/third", headers=ORIGIN)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        preflight = {**ORIGIN, "access-control-request-method": "GET"}
        answered = await client.options("/slow/fourth", headers=preflight)
        assert (answered.status_code, answered.text) == (200, "OK")
        late = await client.get("/late", headers={**ORIGIN, "x-request-timeout-seconds": "0.05"})
        assert late.status_code == 504
        for response in (refused, answered, late):
            assert response.headers["access-control-allow-origin"] == ORIGIN["origin"]
        assert refused.headers["access-control-expose-headers"] == late.headers["access-control-expose-headers"]
        assert refused.headers["access-control-expose-headers"] == EXPOSED
        assert refused.headers["vary"] == "Origin"
        world.let_go.set()
        await asyncio.gather(*held)


# Large bodies


class Mirror(Response):
    """Sends what it gets as it gets it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        more = True
        while more:
            message = await receive()
            more = message["more_body"]
            await send({"type": "http.response.body", "body": message["body"], "more_body": more})


async def test_a_response_that_is_complete_is_delivered_though_more_of_its_request_arrives() -> None:
    app, sending = Toolkit(deployment=DeploymentConfig(name="small", max_body_size=1)), asyncio.Event()
    sent: list[Message] = []

    @app.post("/")
    async def early() -> StreamingResponse:
        return StreamingResponse(pieces(3))

    async def receive() -> Message:
        await sending.wait()
        if len(received) == 2:
            await asyncio.Event().wait()
        received.append(b"xx")
        return {"type": "http.request", "body": b"xx", "more_body": True}

    async def send(message: Message) -> None:
        if message.get("more_body") is False:
            sending.set()
            for _ in range(100):  # as if the connection were full
                await asyncio.sleep(0)
        sent.append(message)

    received: list[bytes] = []
    await app({"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}, receive, send)
    assert [each.get("more_body") for each in sent] == [None, True, False]


@pytest.fixture
def small() -> httpx.AsyncClient:
    router = APIRouter()

    @router.post("/size")
    async def size(request: Request) -> int:
        return len(await request.body())

    @router.post("/mirror", response_class=Mirror)
    async def mirror() -> Mirror:
        return Mirror()

    app = Toolkit()
    app.include_router(router, deployment=DeploymentConfig(name="small", max_body_size=100))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")


async def pieces(*sizes: int) -> AsyncIterator[bytes]:
    for size in sizes:
        yield bytes(size)


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_beyond_its_limit_is_refused(small: httpx.AsyncClient, announced: bool) -> None:
    async with small:
        refused = await small.post("/size", content=bytes(101) if announced else pieces(60, 41))
    assert refused.status_code == 413
    assert refused.json()["error"] == "content_too_large"
    size = "101 bytes" if announced else "101 bytes or more"
    assert refused.json()["detail"] == f"the body has {size}, the max_body_size of small is 100"


async def test_a_begun_response_is_cut_if_the_body_is_too_large(small: httpx.AsyncClient) -> None:
    async with small:
        with pytest.raises(ContentTooLarge):
            await small.post("/mirror", content=pieces(60, 41))
