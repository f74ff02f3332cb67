"""Calls whose payloads do not cross the socket, between a real caller and a real replica; the other way is a test's."""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app_toolkit import Deployment, Toolkit, trace_context
from app_toolkit.calls.remote import CallLoad, RemoteDataPlane, RemoteDeploymentClient
from app_toolkit.config.models import ClassConfig
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.errors import DeadlineExceeded, ReplicaGone, ReplicaLost
from app_toolkit.host.replica_server import ReplicaServer
from app_toolkit.interfaces import REPLICAS, Call, ReloadableOptions, Snapshot, Version
from app_toolkit.observability.context import TRACE
from app_toolkit.replica.admission.replica import ReplicaStatistics
from app_toolkit.types import Address, ReplicaId
from app_toolkit.wire import calls
from app_toolkit.wire.calls import Piece
from tests import published
from tests.keys import key
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

NOBODY = ReplicaStatistics(0, 0, 0, draining=False)
ID = ReplicaId("shop/writer-1-1")
SECRET = b"0123456789abcdef"
SWITCH = 100_000
LARGE = np.arange(SWITCH, dtype=np.float64)
SMALL = np.arange(10, dtype=np.float64)

Array = np.ndarray[Any, np.dtype[np.float64]]


class Writer(Deployment, name="writer", max_ongoing_requests=100):
    async def total(self, numbers: Array) -> float:
        return float(numbers.sum())

    async def grow(self, size: int) -> Array:
        return np.arange(size, dtype=np.float64)

    async def echo(self, numbers: Array) -> Array:
        return numbers

    async def traced(self, numbers: Array) -> dict[str, str]:
        return trace_context()

    async def each(self, sizes: list[int]) -> AsyncIterator[Array]:
        for size in sizes:
            if size < 0:
                raise KeyError(size)
            yield np.arange(size, dtype=np.float64)


writer = Writer.bind()
app = Toolkit(deployments=[writer])


class Way:
    """The other way, which a test can close and break; it brings things from thread to thread."""

    def __init__(self, server: ReplicaServer) -> None:
        self._server = server
        self.log: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.broken = 0

    async def put(self, replica: ReplicaId, key: str, pieces: Sequence[Piece]) -> None:
        await self._pass("put", replica)
        await asyncio.to_thread(self._server.payloads.put, key, list(pieces))

    async def get(self, replica: ReplicaId, key: str) -> Sequence[memoryview]:
        await self._pass("get", replica)
        pieces = await asyncio.to_thread(self._server.payloads.take, key)
        if pieces is None:
            raise ReplicaGone("it keeps nothing")
        return list(map(memoryview, pieces))

    async def _pass(self, what: str, replica: ReplicaId) -> None:
        assert replica == ID
        self.log.append(what)
        await self.open.wait()
        if self.broken:
            self.broken -= 1
            raise ReplicaGone("nobody came through")


class World:
    def __init__(self, server: ReplicaServer, way: Way, callers: RemoteDataPlane) -> None:
        self.server = server
        self.way = way
        self.callers = callers
        self.caller: RemoteDeploymentClient = callers.client_of(writer)

    async def call(self, method: str, *args: Any, **options: Any) -> Any:
        return await self.caller.call(Call(method, args, {}, **options))

    async def until(self, what: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while what not in self.way.log:  # noqa: ASYNC110 - a list tells nobody
                await asyncio.sleep(0.001)

    async def until_nobody_is_left(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not (  # noqa: ASYNC110 - it is about another thread, too
                self.server.statistics() == NOBODY
                and self.callers.call_loads() == {key("shop/writer"): CallLoad(0, 0)}
                and len(self.server.payloads) == 0
            ):
                await asyncio.sleep(0.005)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[ReplicaServer, Address]]:
    server = ReplicaServer()
    with tempfile.TemporaryDirectory(prefix="atk") as folder:
        spec = ReplicaSpec(
            id=ID,
            application="shop",
            config=ClassConfig(name="writer"),
            target=f"{__name__}:app",
            app_dir=str(Path(__file__).parents[2]),
            root_path="",
            reloadable=ReloadableOptions(100),
        )
        yield server, server.start(spec, SECRET, Address(f"unix:{folder}/r.sock"))
        server.stop(0)


@asynccontextmanager
async def world(server: tuple[ReplicaServer, Address]) -> AsyncIterator[World]:
    serving, address = server
    way = Way(serving)
    callers = RemoteDataPlane(SECRET, "shop", ["writer"], payloads=way)
    value = published.replica_set(published.replica(ID, address))
    callers.registry.update({f"{REPLICAS}shop/writer": Snapshot(Version(1, 1), value)})
    there = World(serving, way, callers)
    try:
        yield there
        way.open.set()
        await there.until_nobody_is_left()
    finally:
        await callers.aclose()


@pytest.fixture(autouse=True)
def _switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "OUT_OF_BAND_BYTES", SWITCH)


async def test_only_large_values_go_through_the_object_store(server: tuple[ReplicaServer, Address]) -> None:
    async with world(server) as there:
        assert await there.call("total", SMALL) == SMALL.sum()
        assert np.array_equal(await there.call("echo", SMALL), SMALL)
        assert there.way.log == []
        assert await there.call("total", LARGE) == LARGE.sum()
        assert there.way.log == ["put"]
        assert np.array_equal(await there.call("grow", SWITCH), LARGE)
        assert there.way.log == ["put", "get"]
        assert np.array_equal(await there.call("echo", LARGE), LARGE)
        assert there.way.log == ["put", "get"] * 2


async def test_the_trace_goes_with_small_and_large_calls(server: tuple[ReplicaServer, Address]) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with world(server) as there:
        outer = TRACE.set(f"{parent} a=1,b=x y")
        try:
            for numbers in (SMALL, LARGE):
                assert await there.call("traced", numbers) == {"traceparent": parent, "tracestate": "a=1,b=x y"}
        finally:
            TRACE.reset(outer)
        for numbers in (SMALL, LARGE):
            assert await there.call("traced", numbers) == {}


async def test_values_from_the_object_store_are_read_only_and_not_copied(
    server: tuple[ReplicaServer, Address],
) -> None:
    async with world(server) as there:
        came = await there.call("echo", LARGE)
        assert np.shares_memory(came, LARGE), "there and back, in this one process"
        assert not came.flags.writeable


async def test_each_item_of_a_stream_takes_the_path_of_its_size(server: tuple[ReplicaServer, Address]) -> None:
    sizes = [10, SWITCH, 20, SWITCH, SWITCH]
    async with world(server) as there:
        found = [each.size async for each in there.caller.stream(Call("each", (sizes,), {}))]
        assert found == sizes
        assert there.way.log == ["get"] * 3


async def test_an_error_after_a_large_item_is_still_an_error(server: tuple[ReplicaServer, Address]) -> None:
    async with world(server) as there:
        with pytest.raises(KeyError):
            async for _ in there.caller.stream(Call("each", ([SWITCH, -1],), {})):
                pass
        assert there.way.log == ["get"]


async def test_a_stream_that_is_left_while_an_item_waits_is_closed(server: tuple[ReplicaServer, Address]) -> None:
    async with world(server) as there:
        async with aclosing(there.caller.stream(Call("each", ([SWITCH] * 9,), {}))) as items:
            async for _ in items:
                break
        assert there.way.log == ["get"]


@pytest.mark.parametrize(("method", "argument", "what"), [("total", LARGE, "put"), ("grow", SWITCH, "get")])
async def test_a_call_cancelled_during_a_payload_leaves_nothing_behind(
    server: tuple[ReplicaServer, Address], method: str, argument: object, what: str
) -> None:
    async with world(server) as there:
        there.way.open.clear()
        task = asyncio.create_task(there.call(method, argument))
        await there.until(what)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await there.until_nobody_is_left()


@pytest.mark.parametrize(("method", "argument"), [("total", LARGE), ("grow", SWITCH)])
async def test_a_deadline_applies_to_large_values(
    server: tuple[ReplicaServer, Address], method: str, argument: object
) -> None:
    async with world(server) as there:
        there.way.open.clear()
        with pytest.raises(DeadlineExceeded):
            await there.call(method, argument, timeout_s=0.1)
        await there.until_nobody_is_left()


async def test_the_deadline_of_a_stream_holds_while_an_item_is_collected(server: tuple[ReplicaServer, Address]) -> None:
    async with world(server) as there:
        items = there.caller.stream(Call("each", ([10, SWITCH],), {}, timeout_s=2.0))
        assert (await anext(items)).size == 10
        there.way.open.clear()
        with pytest.raises(DeadlineExceeded):
            await anext(items)
        await there.until_nobody_is_left()


@pytest.mark.parametrize(("method", "argument"), [("total", LARGE), ("grow", SWITCH)])
async def test_a_lost_payload_is_a_lost_replica_and_retried_if_allowed(
    server: tuple[ReplicaServer, Address], method: str, argument: object
) -> None:
    async with world(server) as there:
        there.way.broken = 1
        with pytest.raises(ReplicaLost):
            await there.call(method, argument)
        await there.until_nobody_is_left()
        there.way.broken = 1
        await there.call(method, argument, retry="all")
        assert len(there.way.log) == 3


async def test_a_call_is_ongoing_until_its_caller_has_the_result(server: tuple[ReplicaServer, Address]) -> None:
    async with world(server) as there:
        there.way.open.clear()
        task = asyncio.create_task(there.call("grow", SWITCH))
        await there.until("get")
        assert there.server.statistics().ongoing == 1
        assert len(there.server.payloads) == 1
        there.way.open.set()
        assert (await task).size == SWITCH


@pytest.mark.parametrize("seed", range(3))
async def test_calls_cancelled_at_random_leave_nothing_behind(server: tuple[ReplicaServer, Address], seed: int) -> None:
    dice = random.Random(seed)
    async with world(server) as there:

        async def ask() -> None:
            match dice.choice(("total", "grow", "echo", "each")):
                case "grow":
                    await there.call("grow", SWITCH)
                case "each":
                    async with aclosing(there.caller.stream(Call("each", ([SWITCH, 10, SWITCH],), {}))) as items:
                        async for _ in items:
                            pass
                case method:
                    await there.call(method, LARGE)

        tasks = [asyncio.create_task(ask()) for _ in range(60)]
        for task in dice.sample(tasks, len(tasks)):
            if dice.random() < 0.6:
                task.cancel()
            await asyncio.sleep(dice.random() / 500)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {type(None), asyncio.CancelledError}
        await there.until_nobody_is_left()
