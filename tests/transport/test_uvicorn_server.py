import asyncio
import threading
from typing import Any

import pytest
import uvicorn

from app_toolkit.transport.uvicorn_server import EventServer

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


async def test_server_that_shall_end_before_it_serves_ends() -> None:
    server = CountedServer(date_header=False)
    server.should_exit = True

    async with asyncio.timeout(10):
        await server.serve([])
