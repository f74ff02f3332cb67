"""Ingresses, the same under every engine. Each request names the ground on which its test stands."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, Request, Response, WebSocket
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app_toolkit import DeploymentConfig, Toolkit, on_disconnect, open_stream
from app_toolkit.observability.context import request_id
from tests.engines.contract.ground import AGAIN_S, Ground

DESK = DeploymentConfig(name="desk", max_ongoing_requests=2, max_queued_requests=1, max_open_websockets=3)
HASTY = DeploymentConfig(name="hasty", max_ongoing_requests=1, max_queue_wait_s=0.2, max_open_streams=2)
FEED = DeploymentConfig(name="feed", max_queued_requests=0, faults={"headers": True})
CALM = DeploymentConfig(name="calm", rate_limit="2/hour", rate_limit_by="header:x-key")


async def ground_of(ground: str) -> Ground:
    return Ground(Path(ground))


Ours = Annotated[Ground, Depends(ground_of)]

app = Toolkit(title="Contract", deployment=HASTY)
desk = APIRouter(prefix="/desk")
feed = APIRouter(prefix="/feed")
calm = APIRouter(prefix="/calm")


@app.get("/who")
async def hasty_who() -> str:
    return "hasty"


@desk.get("/who")
async def desk_who() -> str:
    return "desk"


@feed.get("/who")
async def feed_who() -> str:
    return "feed"


@calm.get("/who")
async def calm_who() -> str:
    return "calm"


@calm.websocket("/talk")
async def calm_talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


@app.get("/hold/{name}")
@desk.get("/hold/{name}")
async def hold(name: str, ground: Ours) -> str:
    ground.note(f"{name} began")
    await ground.opened("hold")
    return name


async def stay(ground: Ground) -> None:
    ground.note("began")
    try:
        await ground.opened("stay")
    except asyncio.CancelledError:
        ground.note("cancelled")
        raise
    ground.note("ended")


@desk.api_route("/stay", methods=["GET", "POST"])
async def stays(ground: Ours) -> None:
    await stay(ground)


@desk.post("/stay/cancels")
@on_disconnect("cancel")
async def stays_while_it_is_waited_for(ground: Ours) -> None:
    await stay(ground)


@desk.get("/stay/continues")
@on_disconnect("continue")
async def stays_whoever_waits(ground: Ours) -> None:
    await stay(ground)


@desk.get("/stay/def")
def stays_in_a_thread(ground: Ours) -> None:
    ground.note("began")
    while not (ground.folder / "stay is open").exists():
        time.sleep(AGAIN_S)
    ground.note("ended")


@desk.websocket("/stay/talk")
async def stays_in_a_socket(socket: WebSocket, ground: Ours) -> None:
    await socket.accept()
    await stay(ground)


@desk.post("/echo")
async def echo(request: Request) -> Response:
    return Response(await request.body())


@desk.get("/parts/{count}")
async def parts(count: int, ground: Ours) -> StreamingResponse:
    """Each part waits until the one before has been read."""

    async def stream() -> AsyncIterator[str]:
        try:
            for number in range(count):
                yield f"part {number}\n"
                await ground.opened(f"part {number}")
        finally:
            ground.note("the stream ended")

    return StreamingResponse(stream())


async def idle(ground: Ground) -> AsyncIterator[str]:
    """One event, and then nothing until the test goes on."""
    try:
        yield "data: hello\n\n"
        await ground.opened("idle")
    finally:
        ground.note("an idle stream ended")


async def silent(ground: Ground) -> AsyncIterator[str]:
    """One event, and then nothing as long as the client stays."""
    try:
        yield "data: hello\n\n"
        await asyncio.Event().wait()
    finally:
        ground.note("a silent stream ended")


@app.get("/events")
@feed.get("/events")
async def silent_events(ground: Ours) -> StreamingResponse:
    return StreamingResponse(silent(ground), media_type="text/event-stream")


@app.get("/events/with-task")
async def events(ground: Ours, tasks: BackgroundTasks) -> StreamingResponse:
    async def go_on() -> None:
        await ground.opened("background")
        ground.note("the task of a stream ended")

    tasks.add_task(go_on)
    return StreamingResponse(idle(ground), media_type="Text/Event-Stream; charset=utf-8", background=tasks)


@feed.get("/lines")
@open_stream
async def lines(ground: Ours) -> StreamingResponse:
    return StreamingResponse(silent(ground), media_type="application/jsonl")


@desk.get("/unmarked")
async def unmarked(ground: Ours) -> StreamingResponse:
    return StreamingResponse(idle(ground), media_type="application/jsonl")


@desk.get("/background/{name}")
async def background(name: str, ground: Ours, tasks: BackgroundTasks) -> str:
    async def go_on() -> None:
        await ground.opened("background")
        ground.note(f"{name} ended")

    tasks.add_task(go_on)
    return name


@desk.websocket("/talk")
async def talk(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        if text == "bye":
            await socket.close(4321, "as you wish")
            return
        await socket.send_text(text)


@desk.get("/id/async")
async def async_id() -> str | None:
    return request_id()


@desk.get("/id/def")
def def_id() -> str | None:
    return request_id()


@desk.get("/boom")
async def boom() -> None:
    raise ValueError("out of stock")


class Unfinished(Response):
    """Has a length, and fails before its body."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        raise ValueError("out of stock")


@desk.get("/boom/unfinished")
async def unfinished() -> Response:
    return Unfinished()


@desk.get("/boom/unspeakable")
async def unspeakable() -> Response:
    return Response("four", headers={"x-note": "one line\nand another"})


app.include_router(desk, deployment=DESK)
app.include_router(feed, deployment=FEED)
app.include_router(calm, deployment=CALM)
