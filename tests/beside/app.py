"""The app behind the edge in these tests. It keeps a ledger of what it was given to run."""

from collections import defaultdict
from typing import Any

from fastapi import FastAPI, Request, WebSocket

from app_toolkit.types import ASGIApp, Message, Receive, Scope, Send


class Ledger:
    """An app in front of an app: it writes down every request before that one sees it.

    A line is `METHOD path bytes-of-the-body`; `cut` stands for a body whose end never came.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._lines: dict[int, list[list[str]]] = defaultdict(list)

    def ran(self, port: int) -> tuple[str, ...]:
        """What the client at this port had run."""
        return tuple(" ".join(words) for words in self._lines[port])

    def forget(self, port: int) -> None:
        """The port is another client's now."""
        self._lines.pop(port, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        words = [scope.get("method", "WEBSOCKET"), scope["path"], "cut"]
        self._lines[scope["client"][1]].append(words)
        if scope["type"] == "websocket":
            words.pop()
            await self._app(scope, receive, send)
            return
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        words[2] = str(len(body))
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, again, send)


def build() -> Ledger:
    """Looks at all that a request may hold, as apps do; whatever cannot be read becomes a 500."""
    app = FastAPI()

    @app.websocket("/{path:path}")
    async def talk(ws: WebSocket) -> None:
        await ws.accept()
        await ws.close()

    @app.api_route(
        "/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"]
    )
    async def anything(path: str, request: Request) -> dict[str, Any]:
        return {
            "path": path,
            "url": str(request.url),
            "port": request.url.port,
            "query": dict(request.query_params),
            "cookies": request.cookies,
            "headers": request.headers.items(),
            "length": len(await request.body()),
        }

    return Ledger(app)
