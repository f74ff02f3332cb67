"""Serves several applications in one process, each under its prefix, with its own lifespan and state."""

import asyncio
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocketClose

from app_toolkit.contract.routes import strip_prefix
from app_toolkit.types import ASGIApp, Message, Receive, Scope, Send


class Applications:
    """An ASGI app that passes each request to the application with the longest prefix that matches its path."""

    def __init__(self, apps: Mapping[str, ASGIApp]) -> None:
        """`apps`: the applications by their route prefixes, such as "/" and "/shop"."""
        self._apps = {prefix.rstrip("/") or "/": app for prefix, app in apps.items()}
        self._longest_first = sorted(self._apps, key=len, reverse=True)
        self._states: dict[str, dict[str, Any]] = {prefix: {} for prefix in self._apps}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        path: str = scope["path"]
        for prefix in self._longest_first:
            if strip_prefix(prefix, path) is not None:
                root_path = scope.get("root_path", "") + prefix.rstrip("/")
                scope = {**scope, "root_path": root_path, "state": {**self._states[prefix]}}
                await self._apps[prefix](scope, receive, send)
                return
        refuse = WebSocketClose() if scope["type"] == "websocket" else PlainTextResponse("Not Found", 404)
        await refuse(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with AsyncExitStack() as stack:
            try:
                for prefix, app in self._apps.items():
                    await stack.enter_async_context(_lifespan_of(app, self._states[prefix]))
            except _Failed as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


class _Failed(Exception):
    """The startup of an app failed. The message is that of the app."""


@asynccontextmanager
async def _lifespan_of(app: ASGIApp, state: MutableMapping[str, Any]) -> AsyncIterator[None]:
    """Run the lifespan of one app.

    If the app raises an exception before its first message, it does not support lifespans, as under uvicorn.
    """
    to_app: asyncio.Queue[Message] = asyncio.Queue(2)  # the two messages of a lifespan
    messages: asyncio.Queue[Message] = asyncio.Queue(2)
    scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    running = asyncio.create_task(_run(app, scope, to_app.get, messages.put))
    try:
        to_app.put_nowait({"type": "lifespan.startup"})
        message = await _next_message(messages, running)
        if message is not None and message["type"] == "lifespan.startup.failed":
            raise _Failed(message.get("message", ""))
        yield
        if message is not None and not running.done():
            to_app.put_nowait({"type": "lifespan.shutdown"})
            await _next_message(messages, running)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await running


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


async def _next_message(messages: "asyncio.Queue[Message]", running: "asyncio.Task[None]") -> Message | None:
    """Return the next message of the app, or None if it ended without one."""
    asked = asyncio.create_task(messages.get())
    try:
        await asyncio.wait((asked, running), return_when=asyncio.FIRST_COMPLETED)
        if not asked.done() and messages.empty():
            return None
        return await asked
    finally:
        asked.cancel()
