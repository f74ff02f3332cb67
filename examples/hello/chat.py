"""A WebSocket, served by replicas of its own: a busy chat takes nothing from the rest of the application."""

import os

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel

router = APIRouter(prefix="/chat", tags=["chat"])


class Replica(BaseModel):
    pid: int


@router.get("")
async def who() -> Replica:
    """Which of the replicas answered."""
    return Replica(pid=os.getpid())


@router.websocket("/ws")
async def talk(websocket: WebSocket) -> None:
    """Give every message back in capitals; `bye` ends the conversation."""
    await websocket.accept()
    try:
        while (message := await websocket.receive_text()) != "bye":
            await websocket.send_json({"you_said": message, "answer": message.upper()})
        await websocket.close(reason="bye")
    except WebSocketDisconnect:
        pass
