"""What a caller's connection at the replica adds to uvicorn's own."""

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest
import uvicorn
from uvicorn.server import ServerState

from app_toolkit.replica.connection import CallerConnection
from app_toolkit.types import ASGIApp, Receive, Scope, Send
from tests.patience import until

pytestmark = pytest.mark.anyio

REQUEST = b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n"


class Recorder(asyncio.Transport):
    """A connection that takes everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written: list[bytes] = []
        self.closed = self.paused = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


async def test_a_whole_answer_leaves_when_it_is_whole_and_a_stream_at_the_end_of_the_turn() -> None:
    below = Recorder()
    seen: list[list[bytes]] = []
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"wh", "more_body": True})
        seen.append(list(below.written))
        await send({"type": "http.response.body", "body": b"le", "more_body": False})
        seen.append(list(below.written))
        ended.set()

    config = uvicorn.Config(app, lifespan="off", log_config=None, server_header=False, date_header=False)
    config.load()
    connection = CallerConnection(config, ServerState(), {})
    connection.connection_made(below)
    connection.data_received(REQUEST)
    await ended.wait()
    begun, whole = seen
    assert begun == []
    assert whole == [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nwhle"]
    connection.connection_lost(None)


class Lingering:
    """An app that goes on, until it may end, when all of its answer has left; `/raise` ends with an error."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.heard: list[str] = []
        self.ended = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            if scope["path"] == "/fast":
                await send({"type": "http.response.body", "body": b"ok"})
                return
            await send({"type": "http.response.body", "body": b"ok", "more_body": True})
            if scope["path"] == "/listen":
                while (message := await receive())["type"] == "http.request":
                    pass
                self.heard.append(message["type"])
            await self.may_end.wait()
            if scope["path"] == "/raise":
                raise ValueError("out of stock")
            await send({"type": "http.response.body"})
        finally:
            self.ended += 1


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


def asking(path: bytes, body: bytes = b"", method: bytes = b"POST") -> bytes:
    return b"%b %b HTTP/1.1\r\nhost: shop\r\ncontent-length: %d\r\n\r\n%b" % (method, path, len(body), body)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(asking(b"/slow"), id="that ends late"),
        pytest.param(asking(b"/raise"), id="that fails in the end"),
        pytest.param(asking(b"/slow", bytes(200_000)), id="that reads no body"),
        pytest.param(asking(b"/slow", method=b"HEAD"), id="that would have a body"),
    ],
)
async def test_who_has_all_of_an_answer_is_served_again_whatever_its_app_goes_on_with(first: bytes) -> None:
    app = Lingering()
    connection, below = connected(app)
    answers = [HEAD if first.startswith(b"HEAD") else HEAD + b"ok"]
    for at in range(0, len(first), 65_536):
        connection.data_received(first[at : at + 65_536])
        await asyncio.sleep(0)
    await until(lambda: b"".join(below.written) == b"".join(answers))
    for _ in range(2):
        connection.data_received(asking(b"/fast"))
        answers.append(HEAD + b"ok")
        await until(lambda: b"".join(below.written) == b"".join(answers))
    assert app.ended == 2
    assert not below.paused
    app.may_end.set()
    await until(lambda: app.ended == 3)
    await asyncio.sleep(0)
    assert b"".join(below.written) == b"".join(answers)
    assert not below.closed
    connection.connection_lost(None)


@pytest.mark.parametrize("path", [b"/fast", b"/slow"])
async def test_nothing_of_a_request_is_left_for_the_garbage_collector(path: bytes) -> None:
    app = Lingering()
    app.may_end.set()
    connection, _ = connected(app)
    gc.disable()
    try:
        connection.data_received(asking(path))
        cycle = ref(connection.cycle)
        await until(lambda: app.ended == 1)
        connection.data_received(asking(path))
        await until(lambda: app.ended == 2)
        assert cycle() is None
    finally:
        gc.enable()
    connection.connection_lost(None)


async def test_an_app_that_goes_on_hears_of_the_end_of_a_connection_that_serves_others() -> None:
    app = Lingering()
    connection, below = connected(app)
    for path in (b"/listen", b"/fast"):
        connection.data_received(asking(path))
        await until(lambda: below.written != [])
        below.written.clear()
    connection.connection_lost(None)
    await until(lambda: app.heard == ["http.disconnect"])
    app.may_end.set()
    await until(lambda: app.ended == 2)


UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: shop\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def test_an_app_that_goes_on_hears_of_the_end_of_a_connection_that_becomes_a_websocket() -> None:
    app = Lingering()
    connection, below = connected(app)
    connection.data_received(asking(b"/listen"))
    await until(lambda: below.written != [])
    connection.data_received(UPGRADE)
    await until(lambda: app.heard == ["http.disconnect"])
    below.protocol.connection_lost(None)
    app.may_end.set()
    await until(lambda: app.ended >= 1)


async def test_a_server_that_shuts_down_closes_what_has_all_of_its_answer() -> None:
    app = Lingering()
    connection, below = connected(app)
    connection.data_received(asking(b"/slow"))
    await until(lambda: below.written != [])
    connection.shutdown()
    assert below.closed
    app.may_end.set()
    await until(lambda: app.ended == 1)
    connection.connection_lost(None)


def connected(app: ASGIApp) -> tuple[CallerConnection, Recorder]:
    config = uvicorn.Config(app, lifespan="off", log_config=None, server_header=False, date_header=False)
    config.load()
    below = Recorder()
    connection = CallerConnection(config, ServerState(), {})
    connection.connection_made(below)
    return connection, below
