"""The routes of all contenders that serve FastAPI, one for each measure."""

import asyncio
import os
import time
from collections.abc import AsyncIterable, AsyncIterator

from fastapi import APIRouter, Request, Response, WebSocket
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel

TEN_MB = bytes(10_000_000)

router = APIRouter()


class Item(BaseModel):
    name: str
    price: float


@router.get("/")
async def hello() -> dict[str, str]:
    return {"hello": "world"}


@router.post("/item")
async def item(item: Item) -> Item:
    return item


def compute(milliseconds: float) -> None:
    """Use the CPU for this time, in this thread."""
    until = time.thread_time() + milliseconds / 1_000
    while time.thread_time() < until:
        pass


@router.post("/order")
async def order(item: Item) -> Item:
    """Validate a document, and compute for 1 ms."""
    compute(1)
    return item


@router.get("/compute")
async def computed() -> dict[str, str]:
    """Compute for 60 ms."""
    compute(60)
    return {"hello": "world"}


@router.get("/process")
async def process() -> int:
    """Wait for 20 ms without serving other requests, so that other processes accept them, and return the process ID."""
    time.sleep(0.02)  # noqa: ASYNC251
    return os.getpid()


@router.get("/stream")
async def stream() -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        for number in range(100):
            yield f"data: token{number}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


class Token(BaseModel):
    text: str


async def tokens(count: int, period_s: float) -> AsyncIterator[Token]:
    """As fast as they are taken, or one each period."""
    for number in range(count):
        if period_s:
            await asyncio.sleep(period_s)
        yield Token(text=f"token{number}")


@router.get("/tokens", response_class=EventSourceResponse)
async def answer(count: int, period_s: float = 0.0) -> AsyncIterable[Token]:
    async for token in tokens(count, period_s):
        yield token


@router.get("/download")
async def download() -> Response:
    return Response(TEN_MB, media_type="application/octet-stream")


@router.post("/upload")
async def upload(request: Request) -> dict[str, int]:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
    return {"size": size}


@router.websocket("/echo")
async def echo(ws: WebSocket) -> None:
    await ws.accept()
    async for message in ws.iter_text():
        await ws.send_text(message)
