"""An app that tells who it is, and that can be made to suffer."""

import asyncio
import os
from collections.abc import AsyncIterator

from fastapi import APIRouter, WebSocket
from fastapi.responses import StreamingResponse

from app_toolkit import DeploymentConfig, Toolkit

app = Toolkit(
    title="Victim",
    deployment=DeploymentConfig(name="app", num_replicas=3, health_check_period_s=0.5, graceful_shutdown_timeout_s=5),
)
other = APIRouter(prefix="/other")


@app.get("/pid")
async def pid() -> int:
    return os.getpid()


@app.get("/sleep/{seconds}")
async def sleep(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()


@app.get("/numbers/{count}")
async def numbers(count: int) -> StreamingResponse:
    async def lines() -> AsyncIterator[bytes]:
        for number in range(count):
            yield b"%d\n" % number
            await asyncio.sleep(0.01)

    return StreamingResponse(lines())


@app.get("/boom")
async def boom() -> None:
    raise ValueError("out of stock")


@other.get("/pid")
def other_pid() -> int:
    return os.getpid()


@other.websocket("/echo")
async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


app.include_router(other, deployment=DeploymentConfig(name="other"))
