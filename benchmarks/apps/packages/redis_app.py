"""State that two processes share: slowapi counts in Redis, and python-socketio sends its events through Redis.

`REDIS_URL` is the URL of the Redis server.
"""

import os
import uuid
from typing import TypeVar

import httpx
import socketio
from fastapi import FastAPI, Request
from pins import ONE
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded

from app_toolkit import Toolkit

A = TypeVar("A", bound=FastAPI)

REDIS = os.environ["REDIS_URL"]


def sharing(app: A) -> A:
    limiter = Limiter(key_func=lambda request: request.headers["x-user"], storage_uri=REDIS)
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)

    @app.get("/limited")
    @limiter.limit("5/minute")
    def limited(request: Request) -> str:
        return "ok"

    server = socketio.AsyncServer(
        async_mode="asgi", transports=["websocket"], client_manager=socketio.AsyncRedisManager(REDIS)
    )

    @server.event
    async def join(sid: str, room: str) -> None:
        await server.enter_room(sid, room)

    @server.event
    async def say(sid: str, room: str, word: str) -> None:
        await server.emit("said", word, room=room, skip_sid=sid)

    app.mount("/socket.io", socketio.ASGIApp(server, socketio_path=None))
    return app


app = sharing(FastAPI())
pinned = sharing(Toolkit(deployment=ONE))


async def limit(url: str, number: int) -> None:
    """Send each request over a new connection, so that both processes receive requests."""
    user = {"x-user": str(uuid.uuid4())}
    answers = []
    for _ in range(8):
        async with httpx.AsyncClient(base_url=url, timeout=10, headers=user) as client:
            answers.append((await client.get("/limited")).status_code)
    assert answers == [200] * 5 + [429] * 3, answers


async def broadcast(url: str, number: int) -> None:
    """Check that a message reaches all connections in the room, in both processes."""
    room = str(uuid.uuid4())
    speaker, *listeners = [socketio.AsyncSimpleClient(reconnection=False) for _ in range(4)]
    try:
        for each in (speaker, *listeners):
            await each.connect(url, transports=["websocket"])
            await each.call("join", room, timeout=10)
        for word in ("one", "two"):
            await speaker.call("say", (room, word), timeout=10)
            for each in listeners:
                assert await each.receive(timeout=10) == ["said", word]
    finally:
        for each in (speaker, *listeners):
            await each.disconnect()
