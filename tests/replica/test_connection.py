"""What a caller's connection at the replica adds to uvicorn's own."""

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from app_toolkit.replica.connection import CallerConnection
from app_toolkit.transport import hop
from app_toolkit.transport.filling import FILLED
from app_toolkit.types import Receive, Scope, Send

pytestmark = pytest.mark.anyio

REQUEST = b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n"


class Recorder(asyncio.Transport):
    """A connection that takes everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

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
