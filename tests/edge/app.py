"""The app behind the proxy in these tests, as a user might write it, and a process that serves it."""

import asyncio
import hashlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.responses import StreamingResponse

from app_toolkit.replica.admission.replica import Replica
from app_toolkit.replica.http.unauthenticated import UnauthenticatedConnection, UnauthenticatedPeers
from app_toolkit.replica.http.websocket import BoundedWebSocket
from app_toolkit.wire.uvicorn_server import EventServer

SECRET = b"open-sesame"
CHUNK = b"x" * 65_536
VAST = 32_000_000
"""More than all sockets on the way hold."""


class Journal:
    """What happened in an app, for the test to read from its own thread."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.naps: list[tuple[float, float]] = []
        self.produced = 0
        self.consumed = 0
        self.release = asyncio.Event()


def build(name: str, journal: Journal, marks: Path | None = None) -> FastAPI:
    """`marks`: a file that gets a line whenever a request begins that may kill the process."""
    app = FastAPI()

    @app.get("/hello")
    async def hello() -> dict[str, str]:
        return {"replica": name}

    @app.get("/path/{rest:path}")
    async def path(rest: str) -> dict[str, str]:
        return {"path": f"/path/{rest}"}

    @app.api_route("/seen", methods=["GET", "POST"])
    async def seen(request: Request) -> dict[str, Any]:
        scope = request.scope
        return {
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
            "client": scope["client"],
            "scheme": scope["scheme"],
            "id": scope["extensions"]["app_toolkit"]["request_id"],
            "length": len(await request.body()),
        }

    @app.api_route("/echo", methods=["POST", "PUT", "PATCH"])
    async def echo(request: Request) -> Response:
        return Response(await request.body())

    @app.post("/echo-as-it-comes")
    async def echo_as_it_comes() -> Response:
        return Echo()

    @app.post("/digest")
    async def digest(request: Request) -> dict[str, Any]:
        sha, length = hashlib.sha256(), 0
        async for piece in request.stream():
            sha.update(piece)
            length += len(piece)
            journal.consumed += len(piece)
        return {"sha256": sha.hexdigest(), "length": length}

    @app.post("/slow-upload")
    async def slow_upload(request: Request) -> dict[str, int]:
        async for piece in request.stream():
            journal.consumed += len(piece)
            await journal.release.wait()
        return {"length": journal.consumed}

    @app.get("/stream")
    async def stream(n: int = 3) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for i in range(n):
                yield b"part %d\n" % i

        return StreamingResponse(parts())

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            try:
                while True:
                    journal.produced += len(CHUNK)
                    yield CHUNK
            finally:
                journal.events.append("endless ended")

        return StreamingResponse(parts())

    @app.get("/quiet")
    async def quiet() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            journal.events.append("quiet began")
            try:
                yield b"first\n"
                await asyncio.sleep(60)
            finally:
                journal.events.append("quiet ended")

        return StreamingResponse(parts())

    @app.get("/events")
    async def events() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            try:
                yield b"data: first\n\n"
                await journal.release.wait()
            finally:
                journal.events.append("events ended")

        return StreamingResponse(parts(), media_type="text/event-stream")

    @app.api_route("/wait", methods=["GET", "POST"])
    async def wait() -> dict[str, str]:
        journal.events.append("wait began")
        await journal.release.wait()
        return {"replica": name}

    @app.get("/nap/{seconds}")
    async def nap(seconds: float) -> dict[str, str]:
        began = time.monotonic()
        await asyncio.sleep(seconds)
        journal.naps.append((began, time.monotonic()))
        return {"replica": name}

    @app.get("/naps")
    async def naps() -> list[tuple[float, float]]:
        return journal.naps

    @app.post("/unread")
    async def unread() -> Response:
        return Response("too much", 413)

    @app.post("/unread/{size}")
    async def unread_and_long(size: int) -> Response:
        return Response(b"a" * size)

    @app.put("/fails/{how}")
    async def fails(request: Request, how: str) -> Response:
        await request.body()
        journal.events.append(f"fails {how}")
        return Failing(how)

    @app.get("/last")
    async def last(chunked: bool = False) -> Response:
        headers = {"connection": "close"}
        if not chunked:
            return Response("good-bye", headers=headers)
        return StreamingResponse(iter(["good-", "bye"]), headers=headers)

    @app.websocket("/closes")
    async def closes(ws: WebSocket, code: int, reason: str = "") -> None:
        await ws.accept()
        await ws.close(code, reason)

    @app.get("/own-id")
    async def own_id() -> Response:
        return Response("mine", headers={"x-request-id": "from-the-app", "x-app-toolkit-secret": "never"})

    @app.websocket("/ws")
    async def talk(ws: WebSocket) -> None:
        await ws.accept(subprotocol=(ws.scope["subprotocols"] or [None])[0])
        async for text in ws.iter_text():
            if text == "bye":
                await ws.close(4321, "as you wish")
                return
            await ws.send_text(f"{ws.url.scheme}:{text}")
        journal.events.append(f"ws closed {ws.client_state.name}")

    @app.websocket("/ends/{how}")
    async def ends(ws: WebSocket, how: str) -> None:
        if how == "without accepting":
            return
        await ws.accept()
        await ws.send_text("hello")
        if how == "raises":
            raise ValueError("out of stock")
        if how == "cancelled":
            raise asyncio.CancelledError

    @app.websocket("/vast")
    async def vast(ws: WebSocket) -> None:
        await ws.accept()
        await ws.send_bytes(b"x" * VAST)

    @app.websocket("/denied")
    async def denied(ws: WebSocket) -> None:
        await ws.send_denial_response(Response("who are you?", 401, headers={"x-why": "unknown"}))

    @app.get("/block")
    async def block() -> Response:
        assert marks is not None
        mark(marks)
        time.sleep(60)  # noqa: ASYNC251
        return Response("never")

    @app.api_route("/die/{when}", methods=["GET", "PUT", "POST"])
    async def die(when: str, request: Request, times: int = 1) -> Response:
        assert marks is not None
        body = await request.body()
        if mark(marks) > times:
            return Response(body or b"survived")
        if when == "at-once":
            os.kill(os.getpid(), signal.SIGKILL)
        return Dying(when)

    return app


def mark(marks: Path) -> int:
    """One line more; gives how many there are."""
    with marks.open("a") as file:
        file.write("began\n")
    return len(marks.read_text().splitlines())


class Echo(Response):
    """Begins its answer before it reads, and gives back what it reads, piece by piece."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        more = True
        while more:
            message = await receive()
            more = message.get("more_body", False)
            await send({"type": "http.response.body", "body": message.get("body", b""), "more_body": more})


LENGTH_4 = (b"content-length", b"4")


class Failing(Response):
    """Has a head that nobody can write, or read, or fails behind it."""

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more = {"with-two-lengths": [LENGTH_4], "with-a-field-that-is-none": [(b"x", b"a\nb")]}
        headers = [LENGTH_4, *more.get(self.how, [])]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self.how == "behind-its-head":
            raise ValueError("out of stock")
        await send({"type": "http.response.body", "body": b"fiver" if self.how == "with-too-much" else b"four"})


class Dying(Response):
    """Begins its answer, and then takes the process along."""

    def __init__(self, when: str) -> None:
        self.when = when
        super().__init__()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [] if self.when == "in-chunks" else [(b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self.when != "after-head":
            await send({"type": "http.response.body", "body": b"y" * 10, "more_body": True})
        await asyncio.sleep(0.05)  # the server writes when its loop turns
        os.kill(os.getpid(), signal.SIGKILL)


def serve(app: Any) -> EventServer:
    """A server as replicas run it."""
    return EventServer(
        uvicorn.Config(
            app,
            http=cast(
                Any,
                partial(UnauthenticatedConnection, replica=app, secret=SECRET, unauthenticated=UnauthenticatedPeers()),
            ),
            ws=BoundedWebSocket,
            loop="uvloop",
            interface="asgi3",
            lifespan="off",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            access_log=False,
            log_config=None,
            timeout_keep_alive=3600,
            timeout_graceful_shutdown=1,
        )
    )


def serve_alone(path: Path, name: str, marks: Path, most: int) -> None:
    """What a process of its own runs, until it is killed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    replica = Replica(build(name, Journal(), marks), name=name, max_ongoing_requests=most, secret=SECRET)
    serve(replica).run([listener])
