"""Connections that stay open: their replicas are their own, so they take nothing from the other endpoints."""

from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel

router = APIRouter(prefix="/events", tags=["events"])


class Event(BaseModel):
    number: int


@router.get("", response_class=EventSourceResponse)
async def stream(count: Annotated[int, Query(ge=1, le=1_000)] = 10) -> AsyncIterable[Event]:
    for number in range(1, count + 1):
        yield Event(number=number)


@router.websocket("/ws")
async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    try:
        while True:
            await websocket.send_text(await websocket.receive_text())
    except WebSocketDisconnect:
        pass
