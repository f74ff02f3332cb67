"""An app under uvicorn, in the event loop of the test, and its clients."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent
from app_toolkit.wire.uvicorn_server import EventServer
from tests.patience import PATIENCE_S, until

SOON_S = 10.0
"""How long a server may take to notice that a client has gone or wants no more.

A slow machine takes less. After 15 s the server would notice it anyway, because it sends a comment.
"""


class HeldClock:
    """A clock that stands still until it is told to go on; then it runs.

    A `ManualClock` would not do: the server may notice that a client has left after the test has moved the clock.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def __call__(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since

    def go_on(self) -> None:
        self._since = time.monotonic()


class PausedModel:
    """A model that says one word, and the next one when it is released."""

    def __init__(self) -> None:
        self.running = 0
        self.released = asyncio.Event()

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        self.running += 1
        try:
            yield TextEvent("one")
            await self.released.wait()
            yield TextEvent(" two")
        finally:
            self.running -= 1


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The URL of the app."""
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = EventServer(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        task = asyncio.create_task(server.serve(sockets=[listening]))
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def asking(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app."""
    async with (
        served(app) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_S) as http,
    ):
        yield http


def in_process(app: FastAPI) -> httpx.AsyncClient:
    """A client that calls the app without a server. It gets a response when the response is complete."""
    return httpx.AsyncClient(base_url="http://test", transport=httpx.ASGITransport(app), timeout=PATIENCE_S)


def frames(body: str) -> list[str]:
    """The data of the events of a body, each of which is one line and a blank line."""
    assert body.endswith("\n\n")
    found = body[:-2].split("\n\n")
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in found), found
    return [frame.removeprefix("data: ") for frame in found]


def chunks(body: str) -> list[Any]:
    """The chunks of a complete stream of OpenAI's format."""
    *documents, done = frames(body)
    assert done == "[DONE]"
    return [json.loads(each) for each in documents]
