"""What a caller's connection at the replica adds to uvicorn's own."""

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest
import uvicorn
from uvicorn.server import ServerState

from app_toolkit.replica.connection import CallerConnection
from app_toolkit.transport import hop
from app_toolkit.transport.filling import FILLED
from app_toolkit.transport.sheet import LEAST, LIVE, MOST, Sheet, Sheets
from app_toolkit.types import Address, ASGIApp, Receive, Scope, Send
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


async def test_a_long_body_that_nobody_wants_any_more_is_read_to_its_end_and_not_kept() -> None:
    below = Recorder()
    extensions: list[dict[str, Any]] = []
    served = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        extensions.append({})
        scope["extensions"] = {"app_toolkit": extensions[-1]}
        reading = asyncio.create_task(receive())
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 504, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})
        await reading
        served.set()

    config = uvicorn.Config(app, lifespan="off", log_config=None, server_header=False, date_header=False)
    config.load()
    connection = CallerConnection(config, ServerState(), {})
    below.set_protocol(connection)
    connection.connection_made(below)
    head = b"POST / HTTP/1.1\r\n%b: all\r\n%b: total\r\ncontent-length: %d\r\n\r\n" % (hop.HOP, hop.CALL, FILLED)
    connection.data_received(head + b"begun")
    await served.wait()
    assert below.protocol is not connection, "the rest has a place"
    below.protocol.data_received(bytes(FILLED - len(b"begun")))  # type: ignore[attr-defined]
    assert below.protocol is connection
    assert extensions == [{}]
    served.clear()
    connection.data_received(REQUEST)
    await served.wait()
    assert below.written == [b"HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n"] * 2
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


class Memory:
    """One answer of so many bytes for every request, in one piece or in two."""

    def __init__(self, size: int, pieces: int = 1, length: bytes = b"content-length") -> None:
        self.body = bytes(range(256)) * (size // 256)
        self.pieces = pieces
        self.length = length
        self.served = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(self.length, b"%d" % len(self.body))] if self.length else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        step = len(self.body) // self.pieces
        for at in range(0, len(self.body), step):
            await send({"type": "http.response.body", "body": self.body[at : at + step], "more_body": True})
        await send({"type": "http.response.body"})
        self.served.set()


BY_SHEET = b"GET / HTTP/1.1\r\n%b: all\r\n%b: word\r\nhost: shop\r\n\r\n" % (hop.HOP, hop.SHEET)


async def answered(app: Memory, request: bytes, connection: CallerConnection, below: Recorder) -> bytes:
    app.served.clear()
    below.written.clear()
    connection.data_received(request)
    await app.served.wait()
    await asyncio.sleep(0)
    return b"".join(below.written)


def connected(app: ASGIApp) -> tuple[CallerConnection, Recorder]:
    config = uvicorn.Config(app, lifespan="off", log_config=None, server_header=False, date_header=False)
    config.load()
    below = Recorder()
    connection = CallerConnection(config, ServerState(), {})
    connection.connection_made(below)
    return connection, below


async def test_a_long_answer_lies_on_a_sheet_until_its_caller_comes_again_or_goes() -> None:
    app = Memory(LEAST)
    connection, below = connected(app)
    for _ in range(2):
        answer = await answered(app, BY_SHEET, connection, below)
        (sheet,) = Sheet.live
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b: word/%b\r\n\r\n" % (LEAST, hop.SHEET, sheet.name)
        assert answer == head + LEAST.to_bytes(4, "big")
        assert Sheets().open(Address("unix:/r"), sheet.name) == app.body
        assert connection.transport.get_write_buffer_size() == LEAST
    plain = await answered(app, REQUEST, connection, below)
    assert plain == b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % LEAST + app.body
    assert connection.transport.get_write_buffer_size() == 0
    connection.connection_lost(None)
    assert not Sheet.live


@pytest.mark.parametrize(
    "app",
    [
        Memory(LEAST // 2),
        Memory(2 * LEAST, pieces=2),
        Memory(LEAST, length=b""),
        Memory(MOST + 256),
    ],
    ids=["short", "in two pieces", "of no known length", "too long"],
)
async def test_what_is_no_long_answer_in_one_piece_comes_over_the_connection(app: Memory) -> None:
    connection, below = connected(app)
    answer = await answered(app, BY_SHEET, connection, below)
    assert len(answer) > len(app.body)
    assert hop.SHEET not in answer[:200]
    assert not Sheet.live
    connection.connection_lost(None)


async def test_where_there_is_no_memory_for_a_sheet_answers_come_over_the_connection() -> None:
    others = [Sheet(1) for _ in range(LIVE)]
    app = Memory(LEAST)
    connection, below = connected(app)
    try:
        assert (await answered(app, BY_SHEET, connection, below)).endswith(b"\r\n\r\n" + app.body)
        assert connection.transport.get_write_buffer_size() == 0
    finally:
        for sheet in others:
            sheet.close()
    connection.connection_lost(None)
    assert not Sheet.live


async def test_a_part_of_a_body_is_not_taken_for_a_head() -> None:
    part, image = b"--frame\r\ncontent-length: %d\r\n\r\n" % LEAST, bytes(LEAST)
    served = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        length = b"%d" % len(part + image)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": image})
        served.set()

    connection, below = connected(app)
    connection.data_received(BY_SHEET)
    await served.wait()
    assert b"".join(below.written).endswith(b"\r\n\r\n" + part + image)
    assert not Sheet.live
    connection.connection_lost(None)


async def test_an_answer_after_which_the_connection_closes_comes_over_it() -> None:
    app = Memory(LEAST)
    connection, below = connected(app)
    closing = BY_SHEET.replace(b"host:", b"connection: close\r\nhost:")
    assert (await answered(app, closing, connection, below)).endswith(b"\r\n\r\n" + app.body)
    assert not Sheet.live
    connection.connection_lost(None)


async def test_a_connection_that_becomes_a_websocket_has_no_sheet_any_more() -> None:
    app = Memory(LEAST)
    connection, below = connected(app)
    await answered(app, BY_SHEET, connection, below)
    assert len(Sheet.live) == 1
    connection.data_received(UPGRADE)
    assert below.protocol is not connection
    assert not Sheet.live
    below.protocol.connection_lost(None)
