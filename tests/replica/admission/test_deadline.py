"""Deadlines that a caller names: the handler is cancelled, and the answer is a 504 or is cut."""

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

from app_toolkit.replica.admission.replica import Replica, ReplicaStatistics
from app_toolkit.types import Message, Receive, Scope, Send
from tests.replica.client import Serve, Served, dial, field, wait_until

APP = """
    import time
    from starlette.responses import StreamingResponse
    from app_toolkit import on_disconnect
    from app_toolkit.observability.context import deadline

    app = FastAPI()

    @app.get("/due")
    async def due(tasks: BackgroundTasks):
        tasks.add_task(lambda: mark(f"afterwards due: {deadline()}"))
        return deadline()

    @app.websocket("/ws")
    async def talk(ws: WebSocket):
        await ws.accept()
        await ws.send_json(deadline())
        await ws.close()

    async def until_cancelled():
        mark("began")
        try:
            await hold_until("go")
        except asyncio.CancelledError:
            mark("cancelled")
            raise

    @app.api_route("/wait", methods=["GET", "POST"])
    async def wait():
        await until_cancelled()

    @app.get("/continues")
    @on_disconnect("continue")
    async def continues():
        await until_cancelled()

    @app.get("/def")
    def in_a_thread():
        mark("began")
        while not (FOLDER / "go").exists():
            time.sleep(0.005)
        mark("ended")

    @app.get("/stream")
    async def stream():
        async def body():
            yield b"first"
            await until_cancelled()
        return StreamingResponse(body())

    @app.get("/quick")
    async def quick(request: Request):
        return dict(request.headers)

    @app.get("/own")
    async def own():
        raise TimeoutError("of the handler's own")

    @app.get("/inner")
    async def inner():
        try:
            async with asyncio.timeout(0.01):
                await hold_until("go")
        except TimeoutError:
            return "caught"

    @app.get("/background")
    async def background(tasks: BackgroundTasks):
        tasks.add_task(until_cancelled)
        return "done"

    @app.get("/stubborn")
    async def stubborn():
        try:
            await hold_until("go")
        except asyncio.CancelledError:
            mark("cancelled")
        await hold_until("clean")
        return "too late"
"""


@pytest.fixture
def served(serve: Serve) -> Iterator[Served]:
    served = serve(APP)
    yield served
    idle(served)


def idle(served: Served) -> None:
    replica = served.server.replica
    assert replica is not None
    nobody = ReplicaStatistics(0, 0, 0, draining=replica.draining)
    wait_until(lambda: replica.statistics() == nobody, "nobody is inside")


def within(milliseconds: int) -> tuple[str, bytes]:
    return field(timeout_ms=milliseconds)


@pytest.mark.parametrize(("method", "path"), [("GET", "/wait"), ("POST", "/wait"), ("GET", "/continues")])
def test_a_handler_is_cancelled_at_its_deadline(served: Served, method: str, path: str) -> None:
    began = time.monotonic()
    answer = served.connect().ask(path, hop=within(500), method=method)
    assert answer.status == 504
    assert 0.5 <= time.monotonic() - began < 30
    assert json.loads(answer.read()) == {
        "error": "deadline_exceeded",
        "detail": "the deadline of this request passed while its handler ran",
        "request_id": "req-1",
    }
    wait_until(lambda: served.marked("cancelled"), "the handler is cancelled")


def test_a_handler_knows_its_deadline_and_background_work_and_websockets_have_none(served: Served) -> None:
    connection = served.connect()
    began = time.monotonic()
    due = json.loads(connection.ask("/due", hop=within(10_000)).read())
    assert began + 10 <= due <= time.monotonic() + 10
    wait_until(lambda: served.marked("afterwards due: None"), "the background task has run")
    assert connection.ask("/due").read() == b"null"
    assert served.websocket("/ws", within(10_000)).receive() == "null"


def test_a_deadline_that_has_passed_is_answered_at_once(served: Served) -> None:
    assert served.connect().ask("/wait", hop=within(0)).status == 504


def test_a_response_that_has_begun_is_cut(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with dial(served.address) as raw:
        name, value = within(500)
        head = b"%b: %b\r\nhost: a\r\n\r\n" % (name.encode(), value)
        raw.sendall(b"GET /stream HTTP/1.1\r\n" + head)
        read = b""
        while data := raw.recv(65_536):
            read += data
    assert read.endswith(b"5\r\nfirst\r\n"), "no last chunk: it cannot be taken for the whole"
    assert served.marked("cancelled")
    assert served.server.stop(5)
    assert caplog.records == []


def test_a_thread_holds_its_slot_beyond_the_deadline_and_its_client_does_not_wait(served: Served) -> None:
    connection = served.connect()
    assert connection.ask("/def", hop=within(500)).status == 504
    assert served.server.statistics().ongoing == 1
    served.release("go")
    idle(served)
    assert served.marked("ended")


def test_a_late_handler_is_answered_with_504_and_its_own_response_is_dropped(served: Served) -> None:
    connection = served.connect()
    answer = connection.ask("/stubborn", hop=within(500))
    assert answer.status == 504
    answer.read()
    wait_until(lambda: served.marked("cancelled"), "the handler is cancelled")
    assert served.server.statistics().ongoing == 1
    assert connection.ask("/quick").read() == b'{"host":"shop.example"}', "the connection serves others meanwhile"
    served.release("clean")
    idle(served)


def test_timeouts_of_the_handlers_own_are_its_own(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    assert served.connect().ask("/inner", hop=within(10_000)).read() == b'"caught"'
    assert served.connect().ask("/own", hop=within(10_000)).status == 500
    assert served.server.stop(5)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["of the handler's own"]


def test_a_deadline_does_not_end_background_tasks(served: Served) -> None:
    assert served.connect().ask("/background", hop=within(1_000)).read() == b'"done"'
    wait_until(lambda: served.marked("began"), "the background task runs")
    with pytest.raises(AssertionError):
        wait_until(lambda: served.marked("cancelled"), "it is cancelled", 1.5)
    served.release("go")


@pytest.mark.anyio
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
    task = asyncio.create_task(replica.admit(scope, receive, send, timeout=0.2))
    await cleaning.wait()
    assert sent[0]["status"] == 504
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert replica.statistics() == ReplicaStatistics(0, 0, 0, draining=False)


@pytest.mark.anyio
@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("between", range(4))
async def test_a_response_that_begins_to_the_moment_of_the_deadline_is_whole(before: int, between: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(before):
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(between):
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"whole"})

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    replica = Replica(app, name="hasty", max_ongoing_requests=1)
    await replica.admit({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send, timeout=0)
    start, body = sent
    assert (start["status"], body["body"] == b"whole") in ((200, True), (504, False))
    assert replica.statistics() == ReplicaStatistics(0, 0, 0, False)
