"""An application of one small ingress, of which a replica starts quickly."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator

from fastapi import WebSocket
from fastapi.responses import StreamingResponse

from app_toolkit import Toolkit

app = Toolkit(title="Spread")


@app.get("/pid")
async def pid() -> int:
    return os.getpid()


@app.get("/sleep/{seconds}")
async def sleep(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()


@app.get("/numbers/{count}")
async def numbers(count: int) -> StreamingResponse:
    logging.getLogger("spread").info("%d numbers", count)

    async def lines() -> AsyncIterator[bytes]:
        for number in range(count):
            yield b"%d\n" % number
            await asyncio.sleep(0.01)

    return StreamingResponse(lines())


@app.websocket("/echo")
async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)
