"""An app that tells who it is, that can be made to suffer, and that keeps a ledger of what its handlers did.

The ledger is the file that `VICTIM_LEDGER` names. A handler whose request names an id in `x-ledger-id` appends to it:
`EVENT ID PID TIME`, with the events `start`, `chunk` (of a stream, after it was handed over), and `end` or `cancel`
(cut short, by whatever). Times are `time.monotonic()`, which all processes of a machine share.
"""

import asyncio
import gc
import hashlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app_toolkit import DeploymentConfig, Toolkit

CHUNK = b"x" * 65_536
TEXT = CHUNK.decode()

app = Toolkit(
    title="Victim",
    deployment=DeploymentConfig(name="app", num_replicas=3, health_check_period_s=0.5, graceful_shutdown_timeout_s=5),
)
other = APIRouter(prefix="/other")
"""Narrow: what it can do is decided by its limits and its handlers, not by the machine."""

# One write of a line to a file opened so is one step, also between processes.
_ledger = os.open(os.environ.get("VICTIM_LEDGER", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
_leaked: list[bytes] = []

Id = Annotated[str | None, Header(alias="x-ledger-id")]


def note(event: str, id: str | None) -> None:
    if id is not None:
        os.write(_ledger, f"{event} {id} {os.getpid()} {time.monotonic():.6f}\n".encode())


@contextmanager
def noted(id: str | None) -> Iterator[None]:
    note("start", id)
    try:
        yield
    except BaseException:
        note("cancel", id)
        raise
    note("end", id)


async def noted_request(id: Id = None) -> AsyncIterator[None]:
    """For streams: from the handler's start until its response is over.

    The generator's own end says less: of a client that hung up FastAPI leaves it to the garbage collector.
    """
    with noted(id):
        yield


@app.get("/")
async def ok(id: Id = None) -> dict[str, str | None]:
    return {"id": id}


@app.get("/pid")
async def pid() -> int:
    return os.getpid()


@app.get("/frozen")
async def frozen() -> int:
    return gc.get_freeze_count()


@app.get("/sleep/{seconds}")
async def sleep(seconds: float, id: Id = None) -> int:
    with noted(id):
        await asyncio.sleep(seconds)
    return os.getpid()


@app.get("/nap/{seconds}")
def nap(seconds: float, id: Id = None) -> int:
    with noted(id):
        time.sleep(seconds)
    return os.getpid()


@app.get("/numbers/{count}")
async def numbers(count: int) -> StreamingResponse:
    async def lines() -> AsyncIterator[bytes]:
        for number in range(count):
            yield b"%d\n" % number
            await asyncio.sleep(0.01)

    return StreamingResponse(lines())


@app.get("/boom")
async def boom() -> None:
    raise ValueError("out of stock")


@app.api_route("/tx", methods=["POST", "PUT"])
async def transaction(id: Id = None, pause: float = 0.005) -> dict[str, str | None]:
    """Must not be executed twice when it is a POST."""
    with noted(id):
        await asyncio.sleep(pause)
    return {"id": id}


@app.get("/stream", dependencies=[Depends(noted_request)])
async def stream(id: Id = None) -> StreamingResponse:
    """Without end."""

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield CHUNK
            note("chunk", id)

    return StreamingResponse(chunks())


@app.get("/sse", response_class=EventSourceResponse, dependencies=[Depends(noted_request)])
async def events(id: Id = None) -> AsyncIterator[ServerSentEvent]:
    """Without end."""
    while True:
        yield ServerSentEvent(raw_data=TEXT)
        note("chunk", id)


@app.websocket("/ws", dependencies=[Depends(noted_request)])
async def frames(socket: WebSocket, id: Id = None) -> None:
    """Without end."""
    await socket.accept()
    with suppress(WebSocketDisconnect):
        while True:
            await socket.send_bytes(CHUNK)
            note("chunk", id)


@app.post("/upload")
async def upload(request: Request, id: Id = None, after: float = 0, rate: float | None = None) -> dict[str, str | int]:
    """Begins to read `after` seconds, and reads `rate` bytes a second."""
    with noted(id):
        await asyncio.sleep(after)
        sha, size, since = hashlib.sha256(), 0, time.monotonic()
        async for piece in request.stream():
            sha.update(piece)
            size += len(piece)
            if rate is not None and (ahead := size / rate - (time.monotonic() - since)) > 0:
                await asyncio.sleep(ahead)
    return {"sha256": sha.hexdigest(), "size": size}


# What a rig has to notice


@app.get("/leak/{size}")
async def leak(size: int) -> int:
    """Keeps so many bytes for ever, and uses them, so that they are really there."""
    _leaked.append(b"x" * size)
    return len(_leaked)


@app.post("/twice")
async def twice(id: Id = None) -> None:
    """A transaction that is executed twice, by mistake."""
    await transaction(id)
    await transaction(id)


@other.get("/pid")
def other_pid() -> int:
    return os.getpid()


@other.get("/sleep/{seconds}")
async def other_sleep(seconds: float, id: Id = None) -> int:
    return await sleep(seconds, id)


@other.websocket("/echo")
async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


app.include_router(other, deployment=DeploymentConfig(name="other", max_ongoing_requests=4, max_queued_requests=16))
