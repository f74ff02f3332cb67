"""The applications that the scenarios disturb. Their handlers record what they did in a file, the ledger.

The environment variable `VICTIM_LEDGER` names the file. A handler whose request has the header `x-ledger-id` appends
lines `EVENT ID PID TIME`. The events are `start`, `chunk` (a chunk of a stream was sent), and `end` or `cancel` (the
handler raised or was cancelled). The model records its part of the request as `ID/model`. Times are
`time.monotonic()`, which all processes of a machine share.
"""

import asyncio
import gc
import hashlib
import os
import resource
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app_toolkit import Deployment, DeploymentConfig, Toolkit, batch, remote

CHUNK = b"x" * 65_536
TEXT = CHUNK.decode()
SOME_S = 0.2

app = Toolkit(
    title="Victim",
    deployment=DeploymentConfig(name="app", num_replicas=3, health_check_period_s=0.5, graceful_shutdown_timeout_s=5),
)
other = APIRouter(prefix="/other")
"""Routes of a deployment with low limits. The limits and the handlers determine its capacity, not the machine."""

# With O_APPEND, processes can write lines to the same file concurrently.
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
    """Record a streaming request from the start of its handler until its response ends.

    The end of the generator is no substitute: after a client disconnects, FastAPI leaves the generator to the garbage
    collector.
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
    """A transaction. As a POST request, it must not be executed twice."""
    with noted(id):
        await asyncio.sleep(pause)
    return {"id": id}


@app.get("/stream", dependencies=[Depends(noted_request)])
async def stream(id: Id = None) -> StreamingResponse:
    """An endless stream."""

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield CHUNK
            note("chunk", id)

    return StreamingResponse(chunks())


@app.get("/sse", response_class=EventSourceResponse, dependencies=[Depends(noted_request)])
async def events(id: Id = None) -> AsyncIterator[ServerSentEvent]:
    """An endless stream of events."""
    while True:
        yield ServerSentEvent(raw_data=TEXT)
        note("chunk", id)


@app.get("/idle", response_class=EventSourceResponse, dependencies=[Depends(noted_request)])
async def idle() -> AsyncIterator[ServerSentEvent]:
    """Send one event, and then nothing until the client disconnects."""
    yield ServerSentEvent(raw_data="hello")
    await asyncio.Event().wait()


@app.websocket("/ws", dependencies=[Depends(noted_request)])
async def frames(socket: WebSocket, id: Id = None) -> None:
    """An endless series of messages."""
    await socket.accept()
    with suppress(WebSocketDisconnect):
        while True:
            await socket.send_bytes(CHUNK)
            note("chunk", id)


@app.post("/upload")
async def upload(request: Request, id: Id = None, after: float = 0, rate: float | None = None) -> dict[str, str | int]:
    """Start to read after `after` seconds, and read `rate` bytes per second; None: no limit."""
    with noted(id):
        await asyncio.sleep(after)
        sha, size, since = hashlib.sha256(), 0, time.monotonic()
        async for piece in request.stream():
            sha.update(piece)
            size += len(piece)
            if rate is not None and (ahead := size / rate - (time.monotonic() - since)) > 0:
                await asyncio.sleep(ahead)
    return {"sha256": sha.hexdigest(), "size": size}


# Handlers that call a model


class Model(Deployment, num_replicas=2, max_ongoing_requests=24, resources={"num_cpus": 0.1}):
    """A deployment with low limits. Methods in a thread or a batch cannot always be cancelled, so they take 0.2 s."""

    async def sleep(self, id: str | None, seconds: float) -> int:
        with noted(_here(id)):
            await asyncio.sleep(seconds)
        return os.getpid()

    def nap(self, id: str | None) -> int:
        with noted(_here(id)):
            time.sleep(SOME_S)
        return os.getpid()

    async def write(self, id: str | None) -> AsyncIterator[str]:
        """An endless stream."""
        with noted(_here(id)):
            while True:
                yield TEXT

    @batch(batch_wait_timeout_s=0.05)
    async def sleep_together(self, ids: list[str | None]) -> list[int]:
        with _all_noted(ids):
            await asyncio.sleep(SOME_S)
        return [os.getpid() for _ in ids]

    @batch(batch_wait_timeout_s=0.05)
    def nap_together(self, ids: list[str | None]) -> list[int]:
        with _all_noted(ids):
            time.sleep(SOME_S)
        return [os.getpid() for _ in ids]

    @batch(batch_wait_timeout_s=0.05)
    async def write_together(self, ids: list[str | None]) -> AsyncIterator[list[str]]:
        """An endless stream."""
        with _all_noted(ids):
            while True:
                yield [TEXT for _ in ids]


model = Model.bind()
ToModel = Annotated[Model, Depends(model)]


def _here(id: str | None) -> str | None:
    return None if id is None else f"{id}/model"


@contextmanager
def _all_noted(ids: list[str | None]) -> Iterator[None]:
    with ExitStack() as stack:
        for id in ids:
            stack.enter_context(noted(_here(id)))
        yield


@app.get("/call/sleep/{seconds}")
async def call_sleep(seconds: float, model: ToModel, id: Id = None) -> int:
    with noted(id):
        return await model.sleep(id, seconds)


@app.get("/call/nap")
async def call_nap(model: ToModel, id: Id = None) -> int:
    with noted(id):
        return await remote(model.nap, id)


@app.get("/call/write", dependencies=[Depends(noted_request)])
async def call_write(model: ToModel, id: Id = None) -> StreamingResponse:
    return StreamingResponse(model.write(id))


@app.get("/call/in-a-thread")
def call_in_a_thread(model: ToModel, id: Id = None) -> int:
    with noted(id):
        return remote(model.sleep, id, SOME_S / 4).result()


@app.get("/batch/sleep")
async def batch_sleep(model: ToModel, id: Id = None) -> int:
    with noted(id):
        return await model.sleep_together(id)


@app.get("/batch/nap")
async def batch_nap(model: ToModel, id: Id = None) -> int:
    with noted(id):
        return await remote(model.nap_together, id)


@app.get("/batch/write", dependencies=[Depends(noted_request)])
async def batch_write(model: ToModel, id: Id = None) -> StreamingResponse:
    return StreamingResponse(model.write_together(id))


@app.get("/batch/at-both-ends", dependencies=[Depends(noted_request)])
@batch(batch_wait_timeout_s=0.05)
async def batch_at_both_ends(
    model: ToModel, ids: Annotated[list[str | None], Header(alias="x-ledger-id")]
) -> list[int]:
    return await asyncio.gather(*(model.sleep_together(id) for id in ids))


# Faults that the measurement must detect


@app.get("/leak/{size}")
async def leak(size: int) -> int:
    """Allocate this many bytes and never free them. Writing to them makes them resident."""
    _leaked.append(b"x" * size)
    return len(_leaked)


@app.post("/twice")
async def twice(id: Id = None) -> None:
    """Execute a transaction twice by mistake."""
    await transaction(id)
    await transaction(id)


@other.get("/pid")
def other_pid() -> int:
    return os.getpid()


@other.get("/sleep/{seconds}")
async def other_sleep(seconds: float, id: Id = None) -> int:
    return await sleep(seconds, id)


@other.get("/call/sleep/{seconds}")
async def other_call_sleep(seconds: float, model: ToModel, id: Id = None) -> int:
    return await call_sleep(seconds, model, id)


@other.websocket("/echo")
async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


app.include_router(other, deployment=DeploymentConfig(name="other", max_ongoing_requests=4, max_queued_requests=16))


# An app that serves one request at a time


narrow = Toolkit(title="Narrow", deployment=DeploymentConfig(name="app", max_ongoing_requests=1))
narrow.get("/sleep/{seconds}")(sleep)


# An app whose requests follow a deployment, each with a call that yields items


class Hub(Deployment, max_ongoing_requests=16, resources={"num_cpus": 0.1}):
    """Passes each message on to all that follow."""

    def __init__(self) -> None:
        self._followers: set[asyncio.Queue[str]] = set()

    async def follow(self) -> AsyncIterator[str]:
        messages: asyncio.Queue[str] = asyncio.Queue(10_000)
        self._followers.add(messages)
        try:
            yield "hello"
            while True:
                yield await messages.get()
        finally:
            self._followers.discard(messages)

    async def publish(self, message: str) -> int:
        for messages in self._followers:
            messages.put_nowait(message)
        return len(self._followers)


ToHub = Annotated[Hub, Depends(Hub.bind())]

hub = Toolkit(title="Hub", deployment=DeploymentConfig(name="app"))


@hub.get("/follow", response_class=EventSourceResponse)
async def follow(hub: ToHub) -> AsyncIterator[ServerSentEvent]:
    async for message in hub.follow():
        yield ServerSentEvent(raw_data=message)


@hub.post("/publish")
async def publish(hub: ToHub) -> int:
    return await hub.publish("message")


# Apps with one replica, for slow, flooding and impatient clients


crowded = Toolkit(title="Crowded", deployment=DeploymentConfig(name="app", max_ongoing_requests=4))
crowded.get("/sleep/{seconds}")(sleep)

lonely = Toolkit(title="Lonely", deployment=DeploymentConfig(name="app", health_check_period_s=0.5))
lonely.get("/")(ok)
lonely.post("/upload")(upload)


@lonely.websocket("/echo")
async def echo_as_lonely(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(f"lonely {text}")


@lonely.post("/no-more-files")
async def no_more_files() -> None:
    """Lower the limit of file descriptors, so that the process can open no more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))


# An app in several versions


WELL_S = 3.0
"""How long the health check of the version "sickens" succeeds."""


class Oracle(
    Deployment,
    num_replicas=2,
    health_check_period_s=0.5,
    health_check_failure_threshold=2,
    resources={"num_cpus": 0.1},
):
    """A model with a version. The version determines how it fails."""

    def __init__(self, version: str) -> None:
        if version == "raises":
            raise FileNotFoundError("there are no weights of this version")
        if version == "hangs":
            threading.Event().wait()
        self._version, self._began = version, time.monotonic()

    async def check_health(self) -> None:
        if self._version == "sickens" and time.monotonic() > self._began + WELL_S:
            raise RuntimeError("I have a cold")

    async def version(self) -> str:
        return self._version

    async def count(self, seconds: float) -> AsyncIterator[bytes]:
        for number in range(round(seconds * 10)):
            yield b"%d\n" % number
            await asyncio.sleep(0.1)


def version(name: str, startup_timeout_s: float = 60) -> Toolkit:
    """Return the app in this version. Each response names the versions of both deployments, as `APP/ORACLE`."""
    oracle = Oracle.options(startup_timeout_s=startup_timeout_s).bind(name)
    versioned = Toolkit(
        title="Versions", deployment=DeploymentConfig(name="app", num_replicas=2, health_check_period_s=0.5)
    )
    ToOracle = Annotated[Oracle, Depends(oracle)]

    async def versions(oracle: ToOracle) -> str:
        return f"{name}/{await oracle.version()}"

    Versions = Annotated[str, Depends(versions)]

    @versioned.get("/")
    async def ok(response: Response, versions: Versions, id: Id = None) -> dict[str, str | None]:
        response.headers["x-version"] = versions
        return {"id": id}

    @versioned.post("/tx")
    async def transaction(response: Response, versions: Versions, id: Id = None) -> dict[str, str | None]:
        response.headers["x-version"] = versions
        with noted(id):
            await asyncio.sleep(0.005)
        return {"id": id}

    @versioned.get("/count/{seconds}")
    async def count(seconds: float, versions: Versions, oracle: ToOracle) -> StreamingResponse:
        return StreamingResponse(oracle.count(seconds), headers={"x-version": versions})

    @versioned.websocket("/echo")
    async def echo(socket: WebSocket, oracle: ToOracle) -> None:
        await socket.accept()
        async for text in socket.iter_text():
            await socket.send_text(f"{await versions(oracle)} {text}")

    return versioned


one, two, three, four, five, raises, sickens = map(
    version, ("one", "two", "three", "four", "five", "raises", "sickens")
)
hangs = version("hangs", startup_timeout_s=4)
