"""What lasts: streams that wait for their client, WebSockets, work after the answer, signals."""

import asyncio
import os
import signal
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import (
    APIRouter,
    BackgroundTasks,
    Cookie,
    Depends,
    Header,
    HTTPException,
    Request,
    Response,
    WebSocket,
    WebSocketDisconnect,
    WebSocketException,
)
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel
from sse_starlette import EventSourceResponse as OtherEventSourceResponse
from starlette.background import BackgroundTask

from .ground import Mark, append, ran, signal_mark, signals, touch, until_exists


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[dict[str, str]]:
    ran.add("live")
    yield {"of_live": "state of live"}
    ran.discard("live")


router = APIRouter(prefix="/live", tags=["live"], lifespan=lifespan)


def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


@router.get("/lifespans")
async def lifespans(request: Request) -> dict[str, Any]:
    return {"process": os.getpid(), "ran": sorted(ran), "state": request.state.of_live}


# A stream's step n + 1 is produced only once the client, having read step n, asks for it here.
@router.post("/release/{step}")
async def release(step: int, mark: Mark) -> None:
    touch(mark, f"step-{step}")


@router.get("/left/{name}")
async def left(name: str, mark: Mark) -> str | None:
    """What an earlier request left behind; null where it has not yet."""
    path = mark / name
    return path.read_text() if path.exists() else None


async def steps(mark: Path, count: int = 4) -> AsyncIterator[int]:
    try:
        for step in range(count):
            await until_exists(mark / f"step-{step}")
            yield step
    finally:
        touch(mark, "ended")


class Step(BaseModel):
    step: int


@router.get("/sse", response_class=EventSourceResponse)
async def sse(mark: Mark) -> AsyncIterable[Step]:
    async for step in steps(mark):
        yield Step(step=step)


@router.post("/sse-by-hand", response_class=EventSourceResponse)
async def sse_by_hand(mark: Mark) -> AsyncIterable[ServerSentEvent]:
    async for step in steps(mark):
        yield ServerSentEvent(raw_data=f"line one\nline two {step}", event="step", id=str(step), retry=100)


@router.get("/json-lines")
async def json_lines(mark: Mark) -> AsyncIterable[Step]:
    async for step in steps(mark):
        yield Step(step=step)


@router.get("/json-lines-in-a-thread")
def json_lines_in_a_thread() -> Iterable[Step]:
    for step in range(3):
        yield Step(step=step)


@router.get("/raw", response_class=StreamingResponse)
async def raw(mark: Mark) -> AsyncIterable[bytes]:
    async for step in steps(mark):
        yield f"[{step}]\n".encode()


@router.get("/other-sse")
async def other_sse(mark: Mark) -> OtherEventSourceResponse:
    async def events() -> AsyncIterator[dict[str, Any]]:
        async for step in steps(mark):
            yield {"event": "step", "id": str(step), "data": f"step {step}"}

    return OtherEventSourceResponse(events())


@router.post("/background")
async def background(mark: Mark, tasks: BackgroundTasks) -> str:
    async def write() -> None:
        await until_exists(mark / "step-0")
        append(mark, "log", "async task")

    def write_in_a_thread() -> None:
        append(mark, "log", "task in a thread")
        touch(mark, "done", (mark / "log").read_text())

    tasks.add_task(write)
    tasks.add_task(write_in_a_thread)
    append(mark, "log", "endpoint")
    return "answered"


@router.post("/background-of-response")
async def background_of_response(mark: Mark) -> PlainTextResponse:
    return PlainTextResponse("answered", background=BackgroundTask(touch, mark, "done", "task"))


@router.get("/waits-for-the-client-to-leave")
async def waits_for_the_client_to_leave(mark: Mark, request: Request) -> None:
    touch(mark, "entered")
    while (await request.receive())["type"] != "http.disconnect":
        pass
    touch(mark, "seen", "the client left")


@router.get("/asks-whether-the-client-left")
async def asks_whether_the_client_left(mark: Mark, request: Request) -> None:
    touch(mark, "entered")
    while not await request.is_disconnected():  # noqa: ASYNC110 - polling is what is shown here
        await asyncio.sleep(0.005)
    touch(mark, "seen", "the client left")


@router.post("/signals/{name}")
async def send_signal(name: Literal["SIGUSR1", "SIGUSR2"], mark: Mark) -> str:
    if signals[name] == "installed":
        signal_mark[name] = mark
        os.kill(os.getpid(), getattr(signal, name))
    return signals[name]


async def token_of(websocket: WebSocket, token: str | None = None) -> str:
    if token == "wrong":
        raise WebSocketException(4403, "wrong token")
    return token or "none"


@router.websocket("/ws/echo")
async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        if message.get("text") is not None:
            await websocket.send_text(message["text"])
        else:
            await websocket.send_bytes(message["bytes"])


@router.websocket("/ws/json")
async def ws_json(websocket: WebSocket) -> None:
    await websocket.accept()
    value = await websocket.receive_json()
    await websocket.send_json({"got": value})
    await websocket.send_json({"binary": True}, mode="binary")
    await websocket.close()


@router.websocket("/ws/subprotocol")
async def subprotocol(websocket: WebSocket) -> None:
    offered = websocket.scope["subprotocols"]
    await websocket.accept(
        subprotocol="two" if "two" in offered else None, headers=[(b"x-accepted", b"1"), (b"x-accepted", b"2")]
    )
    await websocket.send_json(offered)
    await websocket.close(1000, "done")


@router.websocket("/ws/close/{code}")
async def ws_close(websocket: WebSocket, code: int, reason: str = "") -> None:
    await websocket.accept()
    await websocket.close(code, reason)


@router.websocket("/ws/closed-by-client")
async def closed_by_client(websocket: WebSocket, mark: Mark) -> None:
    await websocket.accept()
    try:
        while True:
            await websocket.receive_text()
    except WebSocketDisconnect as gone:
        touch(mark, "closed", f"{gone.code} {gone.reason}")


@router.websocket("/ws/params/{room}")
async def ws_params(
    websocket: WebSocket,
    room: int,
    token: Annotated[str, Depends(token_of)],
    q: str = "",
    session: Annotated[str | None, Cookie()] = None,
    x_token: Annotated[list[str] | None, Header()] = None,
) -> None:
    await websocket.accept()
    await websocket.send_json(
        {
            "room": room,
            "token": token,
            "q": q,
            "session": session,
            "x-token": x_token,
            "path": websocket.scope["path"],
            "url": str(websocket.url),
            "link": str(websocket.url_for("ws_close", code=4000)),
            "type": websocket.scope["type"],
            "host": websocket.client.host if websocket.client else None,
            "greeting": websocket.state.greeting,
            "of_live": websocket.state.of_live,
        }
    )
    await websocket.close()


@router.websocket("/ws/denied")
async def denied(websocket: WebSocket) -> None:
    await websocket.close(1008, "never seen")


@router.websocket("/ws/denied-with-a-body")
async def denied_with_a_body(websocket: WebSocket) -> None:
    await websocket.send_denial_response(
        Response("tickets are sold out", status_code=429, headers={"retry-after": "7"}, media_type="text/plain")
    )


@router.websocket("/ws/denied-by-exception")
async def denied_by_exception(websocket: WebSocket) -> None:
    raise HTTPException(401, "who are you", {"www-authenticate": "Basic"})


@router.websocket("/ws/fails")
async def ws_fails(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("before")
    raise LookupError("after the first message")


@router.websocket("/ws/ends/{how}")
async def ws_ends(websocket: WebSocket, how: str) -> None:
    if how == "without accepting":
        return
    await websocket.accept()
    if how == "cancelled":
        raise asyncio.CancelledError


@router.websocket("/ws/fails-before-accepting")
async def ws_fails_before_accepting(websocket: WebSocket) -> None:
    raise LookupError("before accepting")


@router.websocket("/ws/stream")
async def ws_stream(websocket: WebSocket, mark: Mark) -> None:
    await websocket.accept()
    async for step in steps(mark):
        await websocket.send_json({"step": step})
    await websocket.close()
