import asyncio
import socket
import threading
from typing import Any

import pytest
import uvicorn

from app_toolkit.wire.uvicorn_server import EventServer
from tests.patience import until

pytestmark = pytest.mark.anyio


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """Serve nothing."""


class CountedServer(EventServer):
    """Counts its wake-ups, and signals when the first one is over."""

    def __init__(self, *, date_header: bool) -> None:
        super().__init__(
            uvicorn.Config(nothing, port=0, lifespan="off", log_config=None, ws="none", date_header=date_header)
        )
        self.ticks = 0
        self.ticked = asyncio.Event()

    async def on_tick(self, counter: int) -> bool:
        self.ticks += 1
        self.ticked.set()
        return await super().on_tick(counter)


async def test_server_without_date_wakes_up_only_to_end_when_a_thread_asks() -> None:
    server = CountedServer(date_header=False)
    async with asyncio.timeout(10):
        serving = asyncio.create_task(server.serve([]))
        await server.ticked.wait()

        threading.Thread(target=setattr, args=(server, "should_exit", True)).start()
        await serving

    assert server.ticks == 2


async def test_server_with_date_updates_it() -> None:
    server = CountedServer(date_header=True)
    async with asyncio.timeout(10):
        serving = asyncio.create_task(server.serve([]))
        await server.ticked.wait()
        (date,) = (value for name, value in server.server_state.default_headers if name == b"date")
        while (b"date", date) in server.server_state.default_headers:
            server.ticked.clear()
            await server.ticked.wait()

        server.should_exit = True
        await serving


async def test_server_that_ends_cuts_the_connection_of_a_client_that_does_not_read() -> None:
    async def send_much(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(2**25)})

    server = EventServer(
        uvicorn.Config(send_much, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=0)
    )
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        async with asyncio.timeout(10):
            serving = asyncio.create_task(server.serve([listener]))
            await asyncio.get_running_loop().run_in_executor(None, client.connect, listener.getsockname())
            client.sendall(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
            await until(lambda: any(c.transport.get_write_buffer_size() for c in server.server_state.connections))

            server.should_exit = True
            await serving

    assert not server.server_state.connections


async def test_server_that_shall_end_before_it_serves_ends() -> None:
    server = CountedServer(date_header=False)
    server.should_exit = True

    async with asyncio.timeout(10):
        await server.serve([])
