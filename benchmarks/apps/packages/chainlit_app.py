"""Chainlit: a chat mounted on an app. The client sends the requests of its browser page."""

import asyncio
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import socketio
from chainlit.utils import mount_chainlit
from fastapi import FastAPI
from pins import BY_COOKIE, ONE

from app_toolkit import Toolkit

A = TypeVar("A", bound=FastAPI)


def with_chat(app: A) -> A:
    mount_chainlit(app, str(Path(__file__).with_name("chainlit_chat.py")), path="/chat")
    return app


app = with_chat(FastAPI())
pinned = with_chat(Toolkit(deployment=ONE))
sticky = with_chat(Toolkit(deployment=BY_COOKIE))


async def chat(url: str, number: int) -> None:
    answers: asyncio.Queue[str] = asyncio.Queue()
    # A browser keeps cookies, also those of an IP address.
    session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
    client = socketio.AsyncClient(reconnection=False, http_session=session)

    @client.on("new_message")
    async def heard(step: dict[str, Any]) -> None:
        if step["type"] == "assistant_message":
            await answers.put(step["output"])

    auth = {"clientType": "webapp", "sessionId": str(uuid.uuid4()), "userEnv": "{}"}
    await client.connect(url, socketio_path="/chat/ws/socket.io", auth=auth)
    try:
        await client.emit("connection_successful")
        assert await asyncio.wait_for(answers.get(), 10) == "ready"
        for count in range(1, 4):
            step = {
                "id": str(uuid.uuid4()),
                "name": "user",
                "type": "user_message",
                "output": f"{number}",
                "createdAt": datetime.now(UTC).isoformat(),
            }
            await client.emit("client_message", {"message": step, "fileReferences": []})
            assert await asyncio.wait_for(answers.get(), 10) == f"{count}: {number}"
    finally:
        await client.disconnect()
        await session.close()
