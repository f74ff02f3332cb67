"""What a caller's connection at the replica adds to uvicorn's own."""

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from app_toolkit.replica.connection import CallerConnection
from app_toolkit.transport import hop
from app_toolkit.transport.filling import FILLED
from app_toolkit.transport.sheet import LEAST, LIVE, MOST, Sheet, Sheets
from app_toolkit.types import Address, ASGIApp, Receive, Scope, Send

pytestmark = pytest.mark.anyio

REQUEST = b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n"


class Recorder(asyncio.Transport):
    """A connection that takes everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


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
    connection.data_received(
        b"GET / HTTP/1.1\r\nhost: shop\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert below.protocol is not connection
    assert not Sheet.live
    below.protocol.connection_lost(None)
