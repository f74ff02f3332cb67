"""Two models over a shared one. Each request names the ground on which its test stands."""

import asyncio
import math
import os
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request, WebSocket
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse

from app_toolkit import (
    Deployment,
    DeploymentConfig,
    Toolkit,
    batch,
    call_many,
    idempotent,
    on_disconnect,
    options,
    remote,
    replica_context,
    request_id,
    split,
    trace_context,
)
from app_toolkit.observability.context import ReplicaContext
from tests.engines.contract.ground import Ground

SMALL = {"num_cpus": 0.1}


class Refusal(Exception):
    """An error with a shape of its own."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: {code}")
        self.what = what
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return Refusal, (self.what, self.code)


class Traveller:
    """Keeps a diary of the processes in which it was unpickled."""

    def __init__(self, diary: list[int]) -> None:
        self.diary = diary

    def __reduce__(self) -> tuple[Callable[[list[int]], "Traveller"], tuple[list[int]]]:
        return arrived, (self.diary,)


def arrived(diary: list[int]) -> Traveller:
    return Traveller([*diary, os.getpid()])


class Source(Deployment):
    """What the members of the split have in common."""

    async def member(self) -> str:
        return replica_context().deployment

    async def noted(self, folder: str) -> str:
        Ground(Path(folder)).note(f"{replica_context().deployment} was called")
        return replica_context().deployment

    def endless(self, folder: str) -> AsyncIterator[int]:
        raise NotImplementedError


class Shared(Source, max_ongoing_requests=4, max_queued_requests=2, resources=SMALL):
    def __init__(self, factor: int) -> None:
        self.factor = factor

    async def times(self, number: int) -> int:
        return self.factor * number

    async def hold(self, folder: str, name: str) -> str:
        ground = Ground(Path(folder))
        ground.note(f"{name} began")
        try:
            await ground.opened("hold")
        except asyncio.CancelledError:
            ground.note(f"{name} was cancelled")
            raise
        ground.note(f"{name} ended")
        return name

    async def noted(self, folder: str) -> str:
        await super().noted(folder)
        await self.hold(folder, "copy")
        raise Refusal("nobody gets this", 9)

    async def tell(self) -> str | None:
        return request_id()

    async def trace(self) -> dict[str, str]:
        return trace_context()

    async def where(self) -> ReplicaContext:
        return replica_context()

    async def refuse(self) -> None:
        raise Refusal("not today", 7)

    async def numbers(self, most: int) -> AsyncIterator[int]:
        for number in range(most):
            yield number * self.factor

    async def endless(self, folder: str) -> AsyncIterator[int]:
        ground = Ground(Path(folder))
        try:
            for number in range(1_000_000_000):
                yield number
                await asyncio.sleep(0.001)
        finally:
            ground.note("the stream was closed")

    @idempotent
    async def die_once_idempotent(self, folder: str) -> str:
        return await self.die_once(folder)

    async def die_once(self, folder: str) -> str:
        """Takes its process with it, the first time that anybody asks."""
        died = Path(folder) / "died"
        if not died.exists():
            died.touch()
            os._exit(1)
        return "alive"


class Left(Source, resources=SMALL):
    """Calls as coroutines do."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.mark = uuid.uuid4().hex

    async def which(self) -> str:
        """Tells this object from every other one."""
        return self.mark

    async def more(self, number: int) -> int:
        return await self.shared.times(number) + 1

    async def hold(self, folder: str, name: str) -> str:
        return await self.shared.hold(folder, name)

    async def tell(self) -> str | None:
        return await self.shared.tell()

    async def trace(self) -> dict[str, str]:
        return await self.shared.trace()

    async def travel(self) -> Traveller:
        return Traveller([])

    async def refuse_to_travel(self) -> Traveller:
        raise Refusal("no journey", 8)

    async def pid(self) -> int:
        return os.getpid()

    async def refuse(self) -> None:
        await self.shared.refuse()

    async def numbers(self, most: int) -> AsyncIterator[int]:
        async for number in self.shared.numbers(most):
            yield number + 1

    async def endless(self, folder: str) -> AsyncIterator[int]:
        async for number in self.shared.endless(folder):
            yield number


class Right(Deployment, resources=SMALL):
    """Has `def` methods, and one of them calls."""

    def __init__(self, shared: Shared, source: Source, name: str) -> None:
        self.shared = shared
        self.source = source
        self.name = name

    async def members(self, times: int) -> list[str]:
        return [await self.source.member() for _ in range(times)]

    def trace(self) -> dict[str, str]:
        return remote(self.shared.trace).result(10)

    def less(self, number: int) -> int:
        return number - 1

    async def read(self, traveller: Traveller, folder: str) -> tuple[int, list[int]]:
        Ground(Path(folder)).note("read")
        return os.getpid(), traveller.diary

    async def wheres(self) -> list[ReplicaContext]:
        return [replica_context(), await self.shared.where(), replica_context()]

    def halves(self, number: int) -> Iterator[int]:
        while number:
            number //= 2
            yield number

    async def through(self, number: int) -> int:
        return await remote(self.shared.times, number)


class Batched(Deployment, resources=SMALL):
    """Works on lists."""

    def __init__(self) -> None:
        self.threads = {threading.get_ident()}

    @batch(max_batch_size=8, batch_wait_timeout_s=60)
    async def lengths(self, texts: list[str]) -> list[tuple[int, int]]:
        """Of each text its length, and how many were in the batch."""
        return [(len(text), len(texts)) for text in texts]

    @batch(max_batch_size=4, batch_wait_timeout_s=0.005)
    def roots(self, numbers: list[int]) -> list[float | Exception]:
        self.threads.add(threading.get_ident())
        return [math.sqrt(number) if number >= 0 else ValueError(f"{number} has no root") for number in numbers]

    @batch(max_batch_size=2, batch_wait_timeout_s=0.005)
    def wheres(self, numbers: list[int]) -> list[ReplicaContext]:
        return [replica_context() for _ in numbers]

    async def threads_used(self) -> int:
        return len(self.threads)


class Hub(Deployment, max_ongoing_requests=2, max_open_streams=8, max_queue_wait_s=0.5, resources=SMALL):
    """Passes messages on to all that follow."""

    def __init__(self) -> None:
        self.queues: set[asyncio.Queue[str]] = set()

    async def subscribe(self) -> AsyncIterator[str]:
        queue = asyncio.Queue[str]()
        self.queues.add(queue)
        try:
            yield "subscribed"
            while True:
                yield await queue.get()
        finally:
            self.queues.discard(queue)

    async def publish(self, text: str) -> int:
        for queue in self.queues:
            queue.put_nowait(text)
        return len(self.queues)


shared = Shared.bind(3)
hub = Hub.bind()
batched = Batched.bind()
left = Left.bind(shared.handle)
source = split({left: 0.9, shared: 0.1}, name="source")
right = Right.bind(shared.handle, source.handle, name="right")

ToShared = Annotated[Shared, Depends(shared)]
ToLeft = Annotated[Left, Depends(left)]
ToSource = Annotated[Source, Depends(source)]
ToBatched = Annotated[Batched, Depends(batched)]
ToHub = Annotated[Hub, Depends(hub)]
ToRight = Annotated[Right, Depends(right)]

app = Toolkit(title="Chain", deployment=DeploymentConfig(name="front"))


@app.get("/more/{number}")
async def more(number: int, model: ToLeft) -> int:
    return await model.more(number)


@app.get("/members/{times}")
async def members(times: int, source: ToSource, key: str | None = None) -> list[str]:
    """The members of the split that these calls go to."""
    model = options(source, shard_key=key) if key is not None else source
    return [await model.member() for _ in range(times)]


@app.get("/inner-members/{times}")
async def inner_members(times: int, model: ToRight, key: str | None = None) -> list[str]:
    """The same for the calls of another process."""
    return await options(model, shard_key=key).members(times) if key is not None else await model.members(times)


@app.get("/noted-source")
async def noted_source(ground: str, source: ToSource) -> str:
    return await source.noted(ground)


@app.get("/endless-source")
async def endless_source(ground: str, source: ToSource) -> StreamingResponse:
    return StreamingResponse(f"{number}\n" async for number in source.endless(ground))


@app.get("/which")
async def which(model: ToLeft) -> str:
    return await model.which()


@app.get("/less/{number}")
async def less(number: int, model: ToRight) -> int:
    return await remote(model.less, number)


@app.get("/blocking/{number}")
def blocking(number: int, one: ToLeft, other: ToRight) -> list[int]:
    return [remote(one.more, number).result(10), other.less(number), *other.halves(number)]


@app.get("/passed/{number}")
async def passed(number: int, one: ToLeft, other: ToRight) -> int:
    """What one answers is the other's argument, and is not fetched here."""
    return await remote(other.through, remote(one.more, number).later())


@app.get("/travels")
async def travels(ground: str, one: ToLeft, other: ToRight) -> dict[str, list[int]]:
    """What the diary says of one that is passed on at once, is awaited here twice, and is passed on once more."""
    journey = remote(one.travel)
    reader, at_once = await remote(other.read, journey.later(), folder=ground)
    here = (await journey).diary
    again = (await journey).diary
    _, afterwards = await other.read(journey.later(), ground)
    return {
        "who": [os.getpid(), reader],
        "at once": at_once,
        "here": here,
        "again": again,
        "afterwards": afterwards,
    }


@app.get("/stays")
async def stays(ground: str, one: ToLeft, other: ToRight) -> list[str]:
    journey = remote(one.refuse_to_travel)
    try:
        await remote(other.read, journey.later(), ground)
    except Refusal as refusal:
        return [refusal.what]
    return []


@app.get("/tell")
async def tell(model: ToLeft) -> list[str | None]:
    return [request_id(), await model.tell()]


@app.get("/trace")
async def trace(one: ToLeft, other: ToRight) -> list[dict[str, str]]:
    return [trace_context(), await one.trace(), await remote(other.trace)]


@app.get("/fields")
async def fields(request: Request) -> list[tuple[str, str]]:
    return request.headers.items()


@app.get("/refuse")
async def refuse(model: ToLeft) -> dict[str, object]:
    try:
        await model.refuse()
    except Refusal as refusal:
        return {"what": refusal.what, "code": refusal.code}
    return {}


@app.get("/numbers/{most}")
async def numbers(most: int, model: ToLeft) -> StreamingResponse:
    return StreamingResponse((f"{number}\n" async for number in model.numbers(most)), media_type="text/plain")


@app.get("/news/{followers}")
async def news(followers: int, ground: str, hub: ToHub) -> list[str]:
    """Return what followers receive of one message, which is published once the gate is open."""
    async with AsyncExitStack() as stack:
        following = [await stack.enter_async_context(aclosing(hub.subscribe())) for _ in range(followers)]
        for each in following:
            await anext(each)
        await Ground(Path(ground)).opened("hold")
        await hub.publish("news")
        return [await anext(each) for each in following]


@app.get("/endless")
async def endless(ground: str, model: ToLeft) -> StreamingResponse:
    return StreamingResponse((f"{number}\n" async for number in model.endless(ground)), media_type="text/plain")


@app.get("/hold/{name}")
async def hold(name: str, ground: str, model: ToLeft) -> str:
    return await model.hold(ground, name)


@app.post("/order/{name}")
async def order(name: str, ground: str, model: ToShared) -> str:
    """Has effects before and after its call."""
    Ground(Path(ground)).note(f"{name} was accepted")
    answer = await model.hold(ground, name)
    Ground(Path(ground)).note(f"{name} was recorded")
    return answer


@app.post("/ask/{name}")
@on_disconnect("cancel")
async def ask(name: str, ground: str, model: ToShared) -> str:
    return await model.hold(ground, name)


@app.get("/direct/{name}")
async def direct(name: str, ground: str, model: ToShared) -> str:
    return await model.hold(ground, name)


@app.get("/late")
async def late(ground: str, seconds: float, model: ToShared) -> str:
    return await options(model, timeout_s=seconds).hold(ground, "late")


@app.get("/pid")
async def pid(model: ToLeft, retry: bool = False) -> int:
    return await options(model, retry="all" if retry else "none").pid()


@app.get("/die-once")
async def die_once(ground: str, model: ToShared, retry: bool) -> str:
    return await options(model, retry="all" if retry else "none").die_once(ground)


@app.get("/die-once-idempotent")
async def die_once_idempotent(ground: str, model: ToShared) -> str:
    return await model.die_once_idempotent(ground)


@app.get("/lengths/{text}")
async def lengths(text: str, model: ToBatched) -> tuple[int, int]:
    return await model.lengths(text)


@app.get("/all-lengths/{texts}")
async def all_lengths(texts: str, model: ToBatched) -> list[tuple[int, int]]:
    return await call_many(model.lengths, texts.split(","))


@app.get("/all-roots/{numbers}")
async def all_roots(numbers: str, model: ToBatched) -> list[float] | str:
    try:
        return await call_many(model.roots, [int(number) for number in numbers.split(",")])
    except ValueError as error:
        return str(error)


@app.get("/roots/{number}")
async def roots(number: int, model: ToBatched) -> float | str:
    try:
        return await model.roots(number)
    except ValueError as error:
        return str(error)


@app.get("/threads")
async def threads(model: ToBatched) -> int:
    return await model.threads_used()


@app.get("/wheres")
async def wheres(one: ToRight, other: ToBatched) -> list[ReplicaContext]:
    full = await asyncio.gather(other.wheres(1), other.wheres(2))
    return [replica_context(), *await one.wheres(), *full, await other.wheres(3), replica_context()]


@app.get("/where-in-a-thread")
def where_in_a_thread() -> ReplicaContext:
    return replica_context()


@app.get("/where-batched")
@batch(max_batch_size=8, batch_wait_timeout_s=0.005)
async def where_batched(ground: list[str]) -> list[ReplicaContext]:
    return [replica_context() for _ in ground]


@app.websocket("/where")
async def where_by_websocket(ws: WebSocket) -> None:
    await ws.accept()
    await ws.send_json(asdict(replica_context()))
    await ws.close()


@app.get("/scaled/{number}")
@batch(max_batch_size=8, batch_wait_timeout_s=0.02)
async def scaled(numbers: Annotated[list[int], PathParameter(alias="number")], model: ToShared) -> list[int]:
    return [await model.times(number) for number in numbers]
