"""What a caller's connection at the replica adds to uvicorn's own."""

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from app_toolkit.replica.connection import CallerConnection
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
