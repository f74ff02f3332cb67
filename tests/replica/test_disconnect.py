"""Handlers and their slots when the client disconnects, and at the deadline of the request."""

import asyncio
import gc
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest
from fastapi import APIRouter, BackgroundTasks, FastAPI, Request, WebSocket
from fastapi.sse import EventSourceResponse
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import StreamingResponse
from websockets.frames import Frame, Opcode

from app_toolkit import ConfigError, on_disconnect
from app_toolkit.calls.http import http_app
from app_toolkit.observability.context import deadline
from app_toolkit.replica.admission import live_sets
from app_toolkit.replica.admission.after_disconnect import stops
from app_toolkit.replica.admission.client import KEPT, ClientMessages
from app_toolkit.replica.admission.replica import Replica, ReplicaStatistics
from app_toolkit.types import Message, OnDisconnect, Receive, Scope, Send
from tests.patience import PATIENCE_S, until

from .talking import Talking, handshake, head

pytestmark = pytest.mark.anyio

SWEEP_S = 0.01


class Visit:
    """One client of an app that notes what happens to its handlers, which wait until `go` is set."""

    def __init__(self, on_disconnect: OnDisconnect = "auto") -> None:
        self.notes: list[str] = []
        self.go, self.read, self.clean = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.thread_goes = threading.Event()
        self.talking = Talking(app_of(self), on_disconnect=on_disconnect)

    @contextmanager
    def noted(self) -> Iterator[None]:
        self.notes.append("began")
        try:
            yield
        except asyncio.CancelledError:
            self.notes.append("cancelled")
            raise
        self.notes.append("ended")

    async def hold(self) -> None:
        with self.noted():
            await self.go.wait()

    @property
    def statistics(self) -> ReplicaStatistics:
        return self.talking.replica.statistics()

    async def ask(self, path: str, method: str = "GET", *fields: tuple[bytes, bytes], **of_hop: Any) -> None:
        """Send a request, and wait until its handler has begun."""
        self.talking.say(head(method, path.encode(), [(b"host", b"shop"), *fields], **of_hop))
        await until(lambda: "began" in self.notes)

    async def leave(self, path: str, method: str = "GET", *fields: tuple[bytes, bytes]) -> None:
        """Send a request, and disconnect when its handler has begun."""
        await self.ask(path, method, *fields)
        self.talking.leave()

    async def notes_are(self, *notes: str) -> None:
        await until(lambda: self.notes == list(notes))

    async def watched(self) -> None:
        """Wait until the replica watches for the disconnect of the client."""
        live = self.talking.replica.live
        await until(lambda: any(each.watched for each in (*live.ongoing, *live.websockets)))

    async def still(self, *notes: str) -> None:
        """Check that nothing is noted in a time in which a disconnect would be noticed."""
        await asyncio.sleep(5 * SWEEP_S)
        assert self.notes == list(notes)

    def response(self) -> tuple[int, bytes]:
        start, _, body = self.talking.wire.said.partition(b"\r\n\r\n")
        return int(start.split()[1]), body


def app_of(visit: Visit) -> FastAPI:
    app, marked, mounted, behind = FastAPI(), APIRouter(), FastAPI(), FastAPI()

    @app.api_route("/async", methods=["GET", "POST"])
    @behind.get("/async")
    async def in_the_loop() -> None:
        await visit.hold()

    @behind.get("/def")
    @app.get("/def")
    def in_a_thread() -> None:
        with visit.noted():
            visit.thread_goes.wait(PATIENCE_S)

    @app.api_route("/stream", methods=["GET", "POST"])
    async def stream() -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            with visit.noted():
                yield b"first"
                await visit.go.wait()

        return StreamingResponse(body())

    @app.post("/sse", response_class=EventSourceResponse)
    async def events() -> AsyncIterable[int]:
        with visit.noted():
            yield 1
            await visit.go.wait()

    @app.get("/receives")
    async def receives(request: Request) -> None:
        with visit.noted():
            visit.notes.append((await request.receive())["type"])
            visit.notes.append((await request.receive())["type"])
            await visit.go.wait()

    @app.post("/late")
    async def reads_late(request: Request) -> None:
        visit.notes.append("began")
        await visit.read.wait()
        visit.notes.append(str(len(await request.body())))

    @app.get("/background")
    async def background(tasks: BackgroundTasks) -> str:
        tasks.add_task(visit.hold)
        return "done"

    @app.get("/stubborn")
    async def stubborn() -> str:
        visit.notes.append("began")
        try:
            await visit.go.wait()
        except asyncio.CancelledError:
            visit.notes.append("cleaning up")
        await visit.clean.wait()
        visit.notes.append("ended")
        return "too late"

    @app.get("/fails")
    async def fails() -> None:
        visit.notes.append("began")
        try:
            await visit.go.wait()
        finally:
            raise ValueError("while it was stopped")

    @app.websocket("/listens")
    async def listens(ws: WebSocket) -> None:
        await ws.accept()
        visit.notes.append("began")
        async for text in ws.iter_text():
            visit.notes.append(text)
            await visit.go.wait()
        visit.notes.append("heard")

    @app.get("/due")
    async def due(tasks: BackgroundTasks) -> float | None:
        tasks.add_task(lambda: visit.notes.append(f"then {deadline()}"))
        visit.notes.append("began")
        return deadline()

    @app.get("/own")
    async def own() -> None:
        visit.notes.append("began")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await visit.go.wait()
        raise TimeoutError("of the handler's own")

    @marked.get("/continues")
    @on_disconnect("continue")
    async def continues(request: Request) -> None:
        async def listen() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            visit.notes.append("disconnected")

        listening = asyncio.create_task(listen())
        try:
            await visit.hold()
        finally:
            listening.cancel()

    @marked.post("/cancels")
    @on_disconnect("cancel")
    async def cancels() -> None:
        await visit.hold()

    @marked.post("/unfinished")
    @on_disconnect("continue")
    async def unfinished(request: Request) -> None:
        visit.notes.append("began")
        try:
            await request.body()
        except Exception as error:
            visit.notes.append(type(error).__name__)

    class Class:
        @on_disconnect("cancel")
        async def __call__(self, request: Request) -> None:
            await visit.hold()

    class Passes(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: Any) -> Any:
            return await call_next(request)

    async def copying(scope: Scope, receive: Receive, send: Send) -> None:
        await mounted(dict(scope), receive, send)

    for router in (app, mounted, behind):
        router.include_router(marked)
    behind.add_middleware(Passes)
    app.mount("/mounted", mounted)
    app.mount("/behind", behind)
    app.mount("/copied", copying)
    app.mount("/class", http_app(Class, Class()))
    return app


@pytest.fixture(autouse=True)
def _replicas_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_sets, "SWEEP_S", SWEEP_S)


@pytest.fixture
async def visit() -> AsyncIterator[Visit]:
    visit = Visit()
    yield visit
    await visit.talking.idle()


# Handlers that are stopped


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/async"),
        ("GET", "/stream"),
        ("POST", "/sse"),
        ("GET", "/behind/async"),
        ("POST", "/cancels"),
        ("POST", "/behind/cancels"),
        ("POST", "/class/it"),
    ],
)
async def test_a_handler_is_cancelled_when_its_client_has_gone(
    visit: Visit, method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    await visit.ask(path, method)
    assert visit.statistics.running == 1
    visit.talking.leave()
    await visit.notes_are("began", "cancelled")
    await visit.talking.idle()
    assert caplog.records == []


@pytest.mark.parametrize("path", ["/def", "/behind/def"])
async def test_a_thread_holds_its_slot_until_it_ends(visit: Visit, path: str) -> None:
    await visit.leave(path)
    await visit.still("began")
    assert visit.statistics.ongoing == 1
    visit.thread_goes.set()
    await visit.notes_are("began", "ended")


async def test_a_handler_that_receives_the_disconnect_is_not_cancelled(visit: Visit) -> None:
    await visit.leave("/receives")
    await visit.notes_are("began", "http.request", "http.disconnect")
    visit.go.set()
    await visit.notes_are("began", "http.request", "http.disconnect", "ended")


async def test_a_handler_that_cleans_up_holds_its_slot_meanwhile(visit: Visit) -> None:
    await visit.leave("/stubborn")
    await visit.notes_are("began", "cleaning up")
    assert visit.statistics.ongoing == 1
    visit.clean.set()
    await visit.notes_are("began", "cleaning up", "ended")


async def test_a_handler_that_fails_while_it_is_stopped_is_logged(
    visit: Visit, caplog: pytest.LogCaptureFixture
) -> None:
    await visit.leave("/fails")
    await visit.talking.idle()
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["while it was stopped"]


# Handlers that continue


@pytest.mark.parametrize("path", ["/mounted/continues", "/behind/continues"])
async def test_a_handler_marked_continue_gets_no_disconnect(visit: Visit, path: str) -> None:
    await visit.leave(path)
    await visit.still("began")
    visit.go.set()
    await visit.notes_are("began", "ended")


async def test_the_option_of_the_ingress_applies_if_a_middleware_copies_the_scope(visit: Visit) -> None:
    await visit.leave("/copied/continues")
    await visit.notes_are("began", "disconnected")
    visit.go.set()
    await visit.notes_are("began", "disconnected", "ended")


async def test_a_handler_marked_continue_gets_a_disconnect_if_its_body_is_incomplete(visit: Visit) -> None:
    await visit.leave("/unfinished", "POST", (b"content-length", b"10"))
    await visit.notes_are("began", "ClientDisconnect")


@pytest.mark.parametrize(("option", "method", "end"), [("continue", "GET", "ended"), ("cancel", "POST", "cancelled")])
async def test_on_disconnect_of_an_ingress_applies_to_all_its_routes(
    option: OnDisconnect, method: str, end: str
) -> None:
    visit = Visit(option)
    await visit.leave("/async", method)
    if option == "continue":
        await visit.still("began")
        visit.go.set()
    await visit.notes_are("began", end)
    await visit.talking.idle()


async def test_background_tasks_run_on(visit: Visit) -> None:
    await visit.leave("/background")
    assert visit.response() == (200, b'"done"')
    await visit.still("began")
    visit.go.set()
    await visit.notes_are("began", "ended")


async def test_a_body_that_is_read_late_arrives_whole() -> None:
    visit = Visit("cancel")
    await visit.ask("/late", "POST", (b"content-length", b"1000000"))
    await visit.watched()
    visit.talking.say(*[bytes(50_000)] * 20)
    visit.read.set()
    await visit.notes_are("began", "1000000")
    await visit.talking.idle()


async def test_a_watch_asks_for_no_body_that_waits_for_a_100() -> None:
    visit = Visit("cancel")
    await visit.ask("/late", "POST", (b"expect", b"100-continue"), (b"content-length", b"3"))
    await visit.still("began")
    assert visit.talking.wire.said == b""
    visit.read.set()
    await until(lambda: visit.talking.wire.said == b"HTTP/1.1 100 Continue\r\n\r\n")
    visit.talking.say(b"abc")
    await visit.notes_are("began", "3")
    await visit.talking.idle()


async def test_a_websocket_receives_all_messages_before_the_disconnect(visit: Visit) -> None:
    visit.talking.say(handshake(b"/listens"))
    await until(lambda: visit.notes == ["began"])
    websocket = visit.talking.wire.protocol
    for text in (b"one", b"two", b"three"):
        websocket.data_received(Frame(Opcode.TEXT, text).serialize(mask=True))
    await until(lambda: "one" in visit.notes)
    await visit.watched()
    websocket.connection_lost(None)
    visit.go.set()
    await visit.notes_are("began", "one", "two", "three", "heard")


# Deadlines


@pytest.mark.parametrize(
    ("method", "path", "timeout_ms"), [("GET", "/async", 50), ("POST", "/async", 50), ("GET", "/continues", 0)]
)
async def test_a_handler_is_cancelled_at_its_deadline(visit: Visit, method: str, path: str, timeout_ms: int) -> None:
    began = time.monotonic()
    await visit.ask(path, method, timeout_ms=timeout_ms)
    await visit.notes_are("began", "cancelled")
    assert time.monotonic() - began >= timeout_ms / 1_000
    status, body = visit.response()
    assert status == 504
    assert json.loads(body) == {
        "error": "deadline_exceeded",
        "detail": "the deadline of this request passed while its handler ran",
        "request_id": "req-1",
    }


async def test_a_handler_knows_its_deadline_and_background_tasks_have_none(visit: Visit) -> None:
    began = time.monotonic()
    await visit.ask("/due", timeout_ms=10_000)
    await visit.notes_are("began", "then None")
    due = json.loads(visit.response()[1])
    assert began + 10 <= due <= time.monotonic() + 10
    visit.talking.say(head(target=b"/due", fields=[(b"host", b"shop")]))
    await until(lambda: visit.talking.wire.said.endswith(b"null"))


async def test_a_response_that_has_begun_is_cut_at_its_deadline(visit: Visit, caplog: pytest.LogCaptureFixture) -> None:
    await visit.ask("/stream", timeout_ms=50)
    await visit.notes_are("began", "cancelled")
    await visit.talking.idle()
    assert visit.response() == (200, b"5\r\nfirst\r\n"), "without the last chunk, which would make it complete"
    await until(lambda: visit.talking.wire.ended == "closed")
    assert caplog.records == []


async def test_a_thread_holds_its_slot_beyond_the_deadline_and_its_client_does_not_wait(visit: Visit) -> None:
    await visit.ask("/def", timeout_ms=50)
    await until(lambda: b"504 Gateway Timeout" in visit.talking.wire.said)
    assert visit.statistics.ongoing == 1
    visit.thread_goes.set()
    await visit.notes_are("began", "ended")


async def test_a_late_handler_is_answered_with_504_and_its_own_response_is_dropped(visit: Visit) -> None:
    await visit.ask("/stubborn", timeout_ms=50)
    await visit.notes_are("began", "cleaning up")
    assert visit.response()[0] == 504
    assert visit.statistics.ongoing == 1
    visit.talking.say(head(target=b"/nowhere", fields=[(b"host", b"shop")]))
    await until(lambda: b"404 Not Found" in visit.talking.wire.said)  # on the same connection
    visit.clean.set()
    await visit.talking.idle()
    assert b"too late" not in visit.talking.wire.said


async def test_a_timeout_of_the_handler_is_no_deadline(visit: Visit, caplog: pytest.LogCaptureFixture) -> None:
    await visit.ask("/own", timeout_ms=10_000)
    await visit.talking.idle()
    assert visit.response()[0] == 500
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["of the handler's own"]


async def test_a_deadline_does_not_end_background_tasks(visit: Visit) -> None:
    await visit.ask("/background", timeout_ms=50)
    await asyncio.sleep(0.1)
    await visit.still("began")
    visit.go.set()


async def test_a_cancellation_by_the_caller_is_not_taken_for_a_deadline() -> None:
    cleaning = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.Event().wait()

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nobody should ask")

    replica = Replica(app, name="r", max_ongoing_requests=1)
    scope: Scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    task = asyncio.create_task(replica.serve(scope, receive, send, timeout=0.2))
    await cleaning.wait()
    assert sent[0]["status"] == 504
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert replica.statistics() == ReplicaStatistics(0, 0, 0, draining=False)


# The decision


@pytest.mark.parametrize(
    ("wish", "kind", "method", "answering", "stopped"),
    [
        ("auto", "http", "GET", False, True),
        ("auto", "http", "HEAD", False, True),
        ("auto", "http", "POST", False, False),
        ("auto", "http", "DELETE", False, False),
        ("auto", "http", "POST", True, True),
        ("auto", "websocket", "", False, True),
        ("cancel", "http", "POST", False, True),
        ("continue", "http", "GET", True, False),
        ("continue", "websocket", "", True, False),
    ],
)
def test_only_requests_that_change_nothing_are_cancelled_by_default(
    wish: Any, kind: str, method: str, answering: bool, stopped: bool
) -> None:
    assert stops(wish, kind, method, answering) is stopped


def test_a_mark_is_one_of_three_words() -> None:
    with pytest.raises(ConfigError, match="on_disconnect is 'stop', not one of auto, cancel, continue"):
        on_disconnect("stop")  # type: ignore[arg-type]


# Reading ahead


class Server:
    """A server's `receive`, which notices when two ask at once."""

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.changed = asyncio.Event()
        self.asking = False
        self.given = 0

    async def receive(self) -> Message:
        assert not self.asking, "two asked at once"
        self.asking = True
        try:
            while not self.messages:
                self.changed.clear()
                await self.changed.wait()
            self.given += 1
            return self.messages.popleft()
        finally:
            self.asking = False

    def say(self, *messages: Message) -> None:
        self.messages.extend(messages)
        self.changed.set()


def body(data: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


async def test_the_app_joins_the_watcher_and_gets_everything_in_order() -> None:
    server, said = Server(), []
    client = ClientMessages(server.receive)
    watch = client.watch(lambda: said.append("gone"))
    server.say(body(b"1"))
    assert await client.receive() == body(b"1")
    joined = asyncio.create_task(client.receive())
    await asyncio.sleep(0)
    assert client.read
    assert not client.watchable
    server.say(body(b"2", more=False), {"type": "http.disconnect"})
    assert await joined == body(b"2", more=False)
    assert (await client.receive())["type"] == "http.disconnect"
    await watch
    assert said == ["gone"]
    assert (client.whole, client.gone, client.watchable) == (True, True, False)


async def test_no_more_is_kept_than_its_bound_and_the_app_reads_on() -> None:
    server = Server()
    client = ClientMessages(server.receive)
    piece = bytes(KEPT // 2)
    server.say(*(body(piece) for _ in range(9)), body(b"", more=False))
    await client.watch(lambda: pytest.fail("nobody hung up"))
    assert server.given == 3, "half, half, and one more"
    assert not client.watchable
    read = [await client.receive() for _ in range(10)]
    assert sum(len(message["body"]) for message in read) == 9 * len(piece)
    assert client.whole
    assert client.watchable


async def test_an_error_of_receive_is_raised_in_the_app() -> None:
    async def receive() -> Message:
        raise OSError("broken")

    client = ClientMessages(receive)
    await client.watch(lambda: pytest.fail("nobody hung up"))
    with pytest.raises(OSError, match="broken"):
        await client.receive()


# Generators

ENDLESS = b"x" * 65_536


async def test_a_generator_that_waits_at_its_yield_is_closed_without_the_garbage_collector() -> None:
    closed: list[str] = []
    go, continued = asyncio.Event(), asyncio.Event()
    working: list[asyncio.Task[None]] = []

    async def body(name: str) -> AsyncIterator[bytes]:
        try:
            while True:
                yield ENDLESS
        finally:
            closed.append(name)

    async def work(stream: AsyncIterator[bytes]) -> None:
        await anext(stream)
        await go.wait()
        await anext(stream)
        continued.set()

    app = FastAPI()

    @app.get("/")
    async def firehose() -> StreamingResponse:
        working.append(asyncio.create_task(work(body("of a task"))))
        return StreamingResponse(body("of a response"))

    talking = Talking(app)
    gc.disable()
    try:
        talking.say(head(fields=[(b"host", b"shop")]))
        await until(lambda: len(talking.wire.said) > len(ENDLESS))
        talking.talker.pause_writing()
        await asyncio.sleep(0)
        talking.leave()
        await until(lambda: closed == ["of a response"])
        await talking.idle()
        go.set()
        async with asyncio.timeout(PATIENCE_S):
            await continued.wait()
    finally:
        gc.enable()
    assert closed == ["of a response"], "a task that continues keeps its generator"


async def test_a_context_that_all_requests_share_stays_open_when_the_request_that_opened_it_is_cancelled() -> None:
    began, closed = asyncio.Event(), list[str]()
    app, stack = FastAPI(), AsyncExitStack()

    @asynccontextmanager
    async def connect() -> AsyncIterator[None]:
        try:
            yield
        finally:
            closed.append("connection")

    @app.get("/")
    async def connects() -> None:
        await stack.enter_async_context(connect())
        began.set()
        await asyncio.Event().wait()

    talking = Talking(app)
    talking.say(head(fields=[(b"host", b"shop")]))
    await began.wait()
    talking.leave()
    await talking.idle()
    for _ in range(5):
        await asyncio.sleep(0)
    assert closed == []
    await stack.aclose()


async def test_a_generator_of_a_request_that_was_served_to_its_end_stays_open() -> None:
    feeds: list[Any] = []
    closed: list[str] = []
    app = FastAPI()

    async def feed() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append("feed")

    @app.get("/")
    async def served(request: Request, tasks: BackgroundTasks) -> str:
        async def listen() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        feeds.append(feed())
        await anext(feeds[0])
        tasks.add_task(listen)
        return "done"

    talking = Talking(app)
    talking.say(head(fields=[(b"host", b"shop")]))
    await until(lambda: bool(feeds))
    await talking.idle()
    for _ in range(5):
        await asyncio.sleep(0)
    assert closed == []
    await feeds[0].aclose()
