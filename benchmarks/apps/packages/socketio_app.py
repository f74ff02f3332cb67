"""python-socketio: long polling, polling that is upgraded to a WebSocket, and a WebSocket from the start."""

from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import socketio
from fastapi import FastAPI
from pins import ONE

from app_toolkit import DeploymentConfig, Toolkit, session_id

A = TypeVar("A", bound=FastAPI)


def with_socketio(app: A) -> A:
    server = socketio.AsyncServer(async_mode="asgi")
    server.eio.generate_id = session_id

    @server.event
    async def echo(sid: str, data: str) -> str:
        await server.emit("said", data, to=sid)
        return data

    app.mount("/socket.io", socketio.ASGIApp(server, socketio_path=None))
    return app


app = with_socketio(FastAPI())
pinned = with_socketio(Toolkit(deployment=ONE))
sticky = with_socketio(Toolkit(deployment=DeploymentConfig(name="app", affinity="query:sid")))


async def talk(url: str, number: int, transports: Sequence[str]) -> None:
    # As in a browser, closing the HTTP session ends an open poll at once. The client alone would wait for its response.
    async with aiohttp.ClientSession() as session:
        client = socketio.AsyncSimpleClient(reconnection=False, http_session=session)
        path = f"{urlsplit(url).path}/socket.io"
        await client.connect(url, transports=list(transports), socketio_path=path.lstrip("/"))
        for word in (f"{number}-{count}" for count in range(3)):
            assert await client.call("echo", word, timeout=10) == word
            assert await client.receive(timeout=10) == ["said", word]
        assert client.transport == transports[-1]


async def polling(url: str, number: int) -> None:
    await talk(url, number, ["polling"])


async def upgrade(url: str, number: int) -> None:
    await talk(url, number, ["polling", "websocket"])


async def websocket(url: str, number: int) -> None:
    await talk(url, number, ["websocket"])
