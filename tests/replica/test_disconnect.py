"""Handlers and their slots when the client disconnects."""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from app_toolkit import ConfigError, on_disconnect
from app_toolkit.core.disconnect import stops
from app_toolkit.replica.admission import live_sets
from app_toolkit.replica.admission.client import KEPT, ClientMessages
from app_toolkit.replica.admission.replica import ReplicaStatistics
from app_toolkit.types import Message
from tests.patience import PATIENCE_S

from .client import Connection, Serve, Served, dial, field, wait_until

SWEEP_S = 0.05
"""Some more often than replicas look by themselves; how soon that is, is asked of both engines, and of a system."""

NOTICED_S = 30.0
"""Generous: it is noticed within two sweeps, but a busy machine may stand still for seconds."""

APP = """
    import time
    from collections.abc import AsyncIterable
    from contextlib import contextmanager
    from fastapi import APIRouter
    from fastapi.sse import EventSourceResponse
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.responses import StreamingResponse
    from app_toolkit import on_disconnect

    app = FastAPI()

    def note(event):
        with (FOLDER / "ledger").open("a") as ledger:
            ledger.write(event + "\\n")

    @contextmanager
    def noted():
        note("began")
        try:
            yield
        except asyncio.CancelledError:
            note("cancelled")
            raise
        note("ended")

    @app.api_route("/async", methods=["GET", "POST"])
    async def in_the_loop():
        with noted():
            await hold_until("go")

    @app.get("/def")
    def in_a_thread():
        with noted():
            while not (FOLDER / "go").exists():
                time.sleep(0.005)

    @app.api_route("/stream", methods=["GET", "POST"])
    async def stream():
        async def body():
            with noted():
                yield b"first"
                await hold_until("go")
        return StreamingResponse(body())

    @app.post("/sse", response_class=EventSourceResponse)
    async def events() -> AsyncIterable[int]:
        with noted():
            yield 1
            await hold_until("go")

    @app.get("/receives")
    async def receives(request: Request):
        with noted():
            note((await request.receive())["type"])
            note((await request.receive())["type"])
            await hold_until("go")

    @app.post("/late")
    async def reads_late(request: Request):
        note("began")
        await hold_until("read")
        note(str(len(await request.body())))

    @app.get("/background")
    async def background(tasks: BackgroundTasks):
        async def afterwards():
            with noted():
                await hold_until("go")
        tasks.add_task(afterwards)
        return "done"

    @app.get("/stubborn")
    async def stubborn():
        note("began")
        try:
            await hold_until("go")
        except asyncio.CancelledError:
            note("cleaning up")
        await hold_until("clean")
        note("ended")

    @app.get("/fails")
    async def fails():
        note("began")
        try:
            await hold_until("go")
        finally:
            raise ValueError("while it was stopped")

    @app.websocket("/listens")
    async def listens(ws: WebSocket):
        await ws.accept()
        note("began")
        async for text in ws.iter_text():
            note(text)
            await hold_until("go")
        note("heard")

    marked = APIRouter()

    @marked.get("/continues")
    @on_disconnect("continue")
    async def continues(request: Request):
        async def listen():
            while (await request.receive())["type"] != "http.disconnect":
                pass
            note("disconnected")
        listening = asyncio.create_task(listen())
        with noted():
            await hold_until("go")
        listening.cancel()

    @marked.post("/cancels")
    @on_disconnect("cancel")
    async def cancels():
        with noted():
            await hold_until("go")

    @marked.post("/unfinished")
    @on_disconnect("continue")
    async def unfinished(request: Request):
        note("began")
        try:
            await request.body()
        except Exception as error:
            note(type(error).__name__)

    app.include_router(marked)
    mounted = FastAPI()
    mounted.include_router(marked)
    app.mount("/mounted", mounted)

    class Passes(BaseHTTPMiddleware):
        async def dispatch(self, request, call_next):
            return await call_next(request)

    behind = FastAPI()
    behind.include_router(marked)
    behind.add_middleware(Passes)
    for path, endpoint in {"/async": in_the_loop, "/def": in_a_thread, "/stream": stream}.items():
        behind.get(path)(endpoint)
    app.mount("/behind", behind)

    async def copying(scope, receive, send):
        await mounted(dict(scope), receive, send)

    app.mount("/copied", copying)
"""


class Visit:
    """Requests of clients that hang up, and what the app notes of its handlers."""

    def __init__(self, served: Served) -> None:
        self.served = served

    @property
    def notes(self) -> list[str]:
        ledger = self.served.folder / "ledger"
        return ledger.read_text().splitlines() if ledger.exists() else []

    @property
    def statistics(self) -> ReplicaStatistics:
        assert self.served.server.replica is not None
        return self.served.server.replica.statistics()  # also once it has ended

    def noted(self, *notes: str) -> None:
        wait_until(lambda: self.notes == list(notes), f"{list(notes)} was noted", NOTICED_S)

    def ask(self, path: str, method: str = "GET", *more: tuple[str, str]) -> Connection:
        connection = self.served.connect()
        connection.send_head(method, path, [field(), *more])
        wait_until(lambda: "began" in self.notes, "the handler began")
        return connection

    def idle(self) -> None:
        wait_until(lambda: self.statistics == ReplicaStatistics(0, 0, 0, draining=False), "nobody is inside")


@pytest.fixture(autouse=True)
def _it_looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_sets, "SWEEP_S", SWEEP_S)


@pytest.fixture
def visit(serve: Serve) -> Iterator[Visit]:
    visit = Visit(serve(APP))
    yield visit
    visit.idle()


# What stops


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/async"),
        ("GET", "/stream"),
        ("POST", "/sse"),
        ("GET", "/behind/async"),
        ("POST", "/cancels"),
        ("POST", "/behind/cancels"),
    ],
)
def test_a_handler_is_cancelled_when_its_client_has_gone(visit: Visit, method: str, path: str) -> None:
    connection = visit.ask(path, method)
    assert visit.statistics.running == 1
    connection.close()
    visit.noted("began", "cancelled")
    visit.idle()


@pytest.mark.parametrize("path", ["/def", "/behind/def"])
def test_a_thread_holds_its_slot_until_it_ends(visit: Visit, path: str) -> None:
    watched = visit.served.server.replica
    assert watched is not None
    connection = visit.ask(path)
    connection.close()
    wait_until(lambda: any(e.ending is not None for e in watched.live.ongoing), "the hang-up is noticed", NOTICED_S)
    for _ in range(5):  # turns of its loop, in which a cancellation would have ended it
        visit.served.server.probe(1)
    assert visit.statistics.ongoing == 1
    visit.served.release("go")
    visit.noted("began", "ended")


def test_a_handler_that_receives_the_disconnect_is_not_cancelled(visit: Visit) -> None:
    visit.ask("/receives").close()
    visit.noted("began", "http.request", "http.disconnect")
    visit.served.release("go")
    visit.noted("began", "http.request", "http.disconnect", "ended")


def test_a_handler_that_cleans_up_holds_its_slot_meanwhile(visit: Visit) -> None:
    visit.ask("/stubborn").close()
    visit.noted("began", "cleaning up")
    assert visit.statistics.ongoing == 1
    visit.served.release("clean")
    visit.noted("began", "cleaning up", "ended")


def test_a_handler_that_fails_while_it_is_stopped_is_logged(visit: Visit, caplog: pytest.LogCaptureFixture) -> None:
    visit.ask("/fails").close()
    visit.idle()
    assert visit.served.server.stop(PATIENCE_S)
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["while it was stopped"]


def test_a_handler_that_is_stopped_is_no_error(visit: Visit, caplog: pytest.LogCaptureFixture) -> None:
    visit.ask("/async").close()
    visit.noted("began", "cancelled")
    assert visit.served.server.stop(PATIENCE_S)
    assert caplog.records == []


def test_a_server_shutdown_is_not_taken_for_a_disconnect(
    visit: Visit, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_sets, "SWEEP_S", 60.0)  # it ends before anybody waits for a hang-up
    visit.ask("/async")
    assert visit.served.server.stop(0)
    assert visit.notes == ["began", "cancelled"]
    assert any("CancelledError" in str(r.exc_info) for r in caplog.records), "uvicorn says whom it has cancelled"


# What goes on


@pytest.mark.parametrize("path", ["/mounted/continues", "/behind/continues"])
def test_a_handler_marked_continue_gets_no_disconnect(visit: Visit, path: str) -> None:
    visit.ask(path).close()
    still(visit, "began")
    visit.served.release("go")
    visit.noted("began", "ended")


def test_the_option_of_the_ingress_applies_if_a_middleware_copies_the_scope(visit: Visit) -> None:
    visit.ask("/copied/continues").close()
    visit.noted("began", "disconnected")
    visit.served.release("go")
    visit.noted("began", "disconnected", "ended")


def test_a_handler_marked_continue_gets_a_disconnect_if_its_body_is_incomplete(visit: Visit) -> None:
    visit.ask("/unfinished", "POST", ("content-length", "10")).close()
    visit.noted("began", "ClientDisconnect")


@pytest.mark.parametrize(
    ("wish", "method", "notes"),
    [("continue", "GET", ["began", "ended"]), ("cancel", "POST", ["began", "cancelled"])],
)
def test_on_disconnect_of_an_ingress_applies_to_all_its_routes(
    serve: Serve, wish: Any, method: str, notes: list[str]
) -> None:
    visit = Visit(serve(APP, on_disconnect=wish))
    visit.ask("/async", method).close()
    if wish == "continue":
        still(visit, "began")
        visit.served.release("go")
    visit.noted(*notes)
    visit.idle()


def test_background_tasks_run_on(visit: Visit) -> None:
    connection = visit.served.connect()
    assert connection.ask("/background").read() == b'"done"'
    visit.noted("began")
    connection.close()
    still(visit, "began")
    visit.served.release("go")
    visit.noted("began", "ended")


def test_a_body_that_is_read_late_arrives_whole(serve: Serve) -> None:
    visit = Visit(serve(APP, on_disconnect="cancel"))
    body = bytes(1_000_000)
    connection = visit.served.connect()
    connection.send_head("POST", "/late", [field(), ("content-length", str(len(body)))])
    connection.sock.settimeout(PATIENCE_S)
    wait_until(lambda: visit.notes == ["began"], "the handler began")
    watched(visit)
    visit.served.release("read")
    connection.send(body)
    assert connection.getresponse().status == 200
    assert visit.notes == ["began", str(len(body))]
    visit.idle()


def test_a_watch_asks_for_no_body_that_waits_for_a_100(serve: Serve) -> None:
    visit = Visit(serve(APP, on_disconnect="cancel"))
    with dial(visit.served.address) as raw:
        name, value = field()
        head = b"%b: %b\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n" % (name.encode(), value)
        raw.sendall(b"POST /late HTTP/1.1\r\n" + head)
        wait_until(lambda: visit.notes == ["began"], "the handler began")
        raw.settimeout(3 * SWEEP_S)
        with pytest.raises(TimeoutError):
            raw.recv(1)
        raw.settimeout(PATIENCE_S)
        visit.served.release("read")
        assert raw.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(b"abc")
        assert raw.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert visit.notes == ["began", "3"]


# WebSockets


def test_a_websocket_receives_all_messages_before_the_disconnect(visit: Visit) -> None:
    client = visit.served.websocket("/listens")
    for text in ("one", "two", "three"):
        client.send(text)
    wait_until(lambda: "one" in visit.notes, "the first message arrived")
    watched(visit)
    client.close()
    visit.served.release("go")
    visit.noted("began", "one", "two", "three", "heard")


def still(visit: Visit, *notes: str) -> None:
    """The hang-up has been there for longer than it takes to notice one, and nothing came of it."""
    with pytest.raises(AssertionError):
        wait_until(lambda: visit.notes != list(notes), "something else was noted", 3 * SWEEP_S)


def watched(visit: Visit) -> None:
    """Wait until somebody waits for the client to hang up."""
    replica = visit.served.server.replica
    assert replica is not None
    inside = replica.live.ongoing, replica.live.websockets
    wait_until(lambda: any(e.watcher is not None for some in inside for e in list(some)), "it is watched", NOTICED_S)


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


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_an_error_of_receive_is_raised_in_the_app() -> None:
    async def receive() -> Message:
        raise OSError("broken")

    client = ClientMessages(receive)
    await client.watch(lambda: pytest.fail("nobody hung up"))
    with pytest.raises(OSError, match="broken"):
        await client.receive()


def test_a_generator_that_waits_at_its_yield_is_closed_without_the_garbage_collector(serve: Serve) -> None:
    served = serve(
        """
        import gc
        from starlette.responses import StreamingResponse

        gc.disable()
        app = FastAPI()

        @app.get("/firehose/{number}")
        async def firehose(number: int):
            async def body():
                try:
                    while True:
                        yield b"x" * 65_536
                finally:
                    mark(f"closed-{number}")

            return StreamingResponse(body())

        @app.get("/handed-over")
        async def handed_over():
            async def body():
                try:
                    while True:
                        yield b"x" * 65_536
                finally:
                    mark("handed-over-closed")

            async def work(stream):
                await anext(stream)
                await hold_until("go")
                await anext(stream)
                mark("went-on")

            global working
            working = asyncio.create_task(work(body()))
            return StreamingResponse(body())
        """
    )
    for number in range(20):
        connection = served.connect()
        connection.send_head("GET", f"/firehose/{number}", [field()])
        connection.sock.recv(100)
        connection.sock.close()
    connection = served.connect()
    connection.send_head("GET", "/handed-over", [field()])
    connection.sock.recv(100)
    connection.sock.close()
    wait_until(lambda: all(served.marked(f"closed-{number}") for number in range(20)), "their finally blocks ran")
    wait_until(lambda: served.server.statistics().running == 0, "the handlers have ended")
    served.release("go")
    wait_until(lambda: served.marked("went-on"), "a task that goes on keeps its generator")


SHARED = """
    from contextlib import AsyncExitStack, asynccontextmanager

    app = FastAPI()
    stack = AsyncExitStack()
    feeds = []

    @asynccontextmanager
    async def connect():
        try:
            yield "connected"
        finally:
            mark("client-closed")

    @app.get("/connects")
    async def connects():
        await stack.enter_async_context(connect())
        mark("began")
        await hold_until("go")

    @app.get("/served")
    async def served(request: Request, tasks: BackgroundTasks):
        async def feed():
            try:
                while True:
                    yield 1
            finally:
                mark("feed-closed")

        async def listen():
            while (await request.receive())["type"] != "http.disconnect":
                pass
            mark("heard")

        feeds.append(feed())
        await anext(feeds[0])
        tasks.add_task(listen)
        return "done"

    @app.get("/turn")
    async def turn():
        for _ in range(5):
            await asyncio.sleep(0)
"""


def test_a_client_that_all_requests_share_stays_open_when_the_request_that_opened_it_breaks_off(serve: Serve) -> None:
    served = serve(SHARED)
    connection = served.connect()
    connection.send_head("GET", "/connects", [field()])
    wait_until(lambda: served.marked("began"), "the handler began")
    connection.close()
    wait_until(lambda: served.server.statistics().running == 0, "the handler has ended")
    served.connect().ask("/turn")
    assert not served.marked("client-closed")


def test_a_generator_of_a_request_that_was_served_to_its_end_stays_open(serve: Serve) -> None:
    served = serve(SHARED)
    served.connect().ask("/served")
    wait_until(lambda: served.marked("heard"), "the background task hears that the request is over")
    wait_until(lambda: served.server.statistics().running == 0, "the background task has ended")
    served.connect().ask("/turn")
    assert not served.marked("feed-closed")
