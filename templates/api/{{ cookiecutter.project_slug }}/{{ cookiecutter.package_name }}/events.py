"""Connections that stay open. They have their own replicas, so they take no capacity from the other endpoints."""

import asyncio
from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Query, WebSocket
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel

router = APIRouter(prefix="/events", tags=["events"])


class Event(BaseModel):
    number: int


@router.get("", response_class=EventSourceResponse)
async def count_up(
    count: Annotated[int, Query(ge=1, le=1_000)] = 10,
    period_s: Annotated[float, Query(ge=0, le=10)] = 0.2,
) -> AsyncIterable[Event]:
    """Stream the numbers from 1 to `count`, one every `period_s` seconds."""
    for number in range(1, count + 1):
        yield Event(number=number)
        await asyncio.sleep(period_s)


@router.websocket("/ws")
async def echo(websocket: WebSocket) -> None:
    """Send back every text that arrives."""
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)
