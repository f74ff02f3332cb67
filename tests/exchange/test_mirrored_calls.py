"""Copies of calls over sockets: the mirrors of a split, and what their callers notice of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from math import sqrt
from random import Random
from typing import Any

import pytest

from app_toolkit.calls.remote import CallLoad, RemoteDataPlane
from app_toolkit.contract.mirror_counts import MirrorCounts
from app_toolkit.contract.snapshots import encode
from app_toolkit.contract.targets import members
from app_toolkit.declare.deployment import NamedDeployment
from app_toolkit.exchange.mirrored_requests import MOST_BODY, MOST_RESPONSE
from app_toolkit.interfaces import SPLITS, Call, DeploymentClient, Snapshot, Version, WeightedCallee
from app_toolkit.types import Address
from tests import published
from tests.exchange.deployments import Writer
from tests.keys import app, key
from tests.patience import PATIENCE_S, until
from tests.replica.client import SECRET, Serve, Served

pytestmark = pytest.mark.anyio

SOURCE = """
    from app_toolkit.observability.context import request_id, trace_context
    from app_toolkit.calls.served_calls import Calls
    from app_toolkit.calls.hosted_object import HostedObject

    IS_MIRROR = {is_mirror}

    class Model:
        async def echo(self, value):
            mark("called")
            return value

        async def size(self, value):
            return len(value)

        async def differ(self):
            return IS_MIRROR

        async def fail(self):
            if IS_MIRROR:
                raise ValueError("no")

        async def refuse(self):
            raise ValueError(IS_MIRROR)

        async def hold(self, who):
            mark("began")
            try:
                if IS_MIRROR == (who == "mirror"):
                    await hold_until("open")
            except asyncio.CancelledError:
                mark("was cancelled")
                raise
            mark("ended")

        async def zeros(self, size):
            return bytes(size) if IS_MIRROR else b""

        async def count(self, most):
            for number in range(most):
                yield bytes(1_000)
            mark("all items")

        async def endless(self):
            try:
                while IS_MIRROR:
                    yield bytes(1_000)
                    await asyncio.sleep(0)
                yield b""
            finally:
                mark("closed")

    app = Calls(HostedObject(Model, name="model"))
"""


SHARES = {"main": 1.0, "mirror": 0.0}

MARKS = {"called", "began", "open", "ended", "was cancelled", "all items", "closed"}


class Pair(WeightedCallee):
    """A split of two classes without code."""

    name = "writer"
    cls = Writer

    def __init__(self) -> None:
        self.members = {each: NamedDeployment("shop", each, {}) for each in ("main", "mirror")}
        self.shares = SHARES


class Process:
    """A process that calls the split."""

    def __init__(self) -> None:
        self.plane = RemoteDataPlane(SECRET, "shop", ("main", "mirror"), draw=Random(3).random)
        self._number = 0

    def publish(self, key: str, value: Any) -> None:
        self._number += 1
        self.plane.registry.update({key: Snapshot(Version(1, self._number), value)})

    def weigh(self, share: float, **shares: float) -> None:
        self.publish(f"{SPLITS}shop/writer", encode(members(app("shop"), shares or SHARES, {"mirror": share})))

    def at(self, name: str, *addresses: Address, slots: int = 100, **policy: Any) -> None:
        replicas = [published.replica(f"{name}-{each}", each, slots) for each in addresses]
        self.publish(f"replicas/shop/{name}", published.replica_set(*replicas, **policy))

    @property
    def client(self) -> DeploymentClient:
        return self.plane.client_of(Pair())

    @property
    def load(self) -> CallLoad:
        return self.plane.call_loads()[key("shop/mirror")]

    @property
    def counts(self) -> MirrorCounts:
        return self.load.mirrored

    async def call(self, method: str, *args: Any, **options: Any) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await self.client.call(Call(method, args, {}, **options))

    async def stream(self, method: str, *args: Any) -> list[Any]:
        async with asyncio.timeout(PATIENCE_S):
            return [item async for item in self.client.stream(Call(method, args, {}))]

    async def ended(self, number: int = 1) -> MirrorCounts:
        """Return the counts once this number of copies has ended, and nothing is held."""
        await until(lambda: sum(self._outcomes()) == number and not self.load.ongoing and not self.load.streams)
        assert not self.plane.mirroring.mirrors.live
        assert self.load.waiting == 0
        return self.counts

    def _outcomes(self) -> tuple[int, ...]:
        found = self.counts
        return found.completed, found.failed, found.dropped, found.too_large


@pytest.fixture(scope="module")
def replicas() -> Iterator[dict[str, Served]]:
    """The replicas of the members, which all tests share."""
    serve = Serve()
    yield {name: serve(SOURCE.format(is_mirror=name == "mirror")) for name in ("main", "mirror")}
    serve.close()


@pytest.fixture
async def process(replicas: dict[str, Served]) -> AsyncIterator[Process]:
    """Everything is published. The mirror gets copies of all calls."""
    process = Process()
    process.weigh(1.0)
    for name, replica in replicas.items():
        process.at(name, replica.address)
        for mark in replica.folder.iterdir():
            if mark.name in MARKS:
                mark.unlink()
    yield process
    await process.plane.aclose()


@pytest.fixture
def main(replicas: dict[str, Served]) -> Served:
    return replicas["main"]


@pytest.fixture
def mirror(replicas: dict[str, Served]) -> Served:
    return replicas["mirror"]


async def test_mirror_gets_a_copy_whose_result_is_compared(process: Process, mirror: Served) -> None:
    assert await process.call("echo", "tea") == "tea"
    assert await process.call("echo", bytes(MOST_BODY // 2)) == bytes(MOST_BODY // 2)
    found = await process.ended(2)
    assert (found.completed, found.same, found.different) == (2, 2, 0)
    assert mirror.marked("called")
    assert found.primary_s > 0 < found.mirror_s


async def test_copy_is_no_call_of_a_client(process: Process, mirror: Served) -> None:
    records = []
    process.plane.records.subscribe(records.append)
    await process.call("echo", 1)
    await process.ended()
    assert [each.deployment for each in records] == ["shop/main"]
    assert process.plane.counters.copy().keys() == {"shop/main"}


async def test_different_results_and_errors_are_differences(process: Process, mirror: Served) -> None:
    assert await process.call("differ") is False
    assert await process.call("fail") is None
    with pytest.raises(ValueError, match="False"):
        await process.call("refuse")
    found = await process.ended(3)
    assert (found.same, found.different_body, found.different_status) == (1, 1, 1)
    assert {(each.request, each.primary_status, each.mirror_status) for each in found.differences} == {
        ("differ", "ok", "ok"),
        ("fail", "ok", "ValueError"),
    }


async def test_share_of_the_calls_is_copied_and_mirrors_are_sampled_independently(process: Process) -> None:
    both = members(app("shop"), {"main": 0.5, "mirror": 0.5}, {"main": 0.4, "mirror": 0.4})
    process.publish(f"{SPLITS}shop/writer", encode(both))
    for _ in range(500):
        await process.call("size", b"")
    await until(lambda: not process.plane.mirroring.mirrors.live)
    copied = sum(each.mirrored.completed for each in process.plane.call_loads().values())
    assert abs(copied - 200) <= 3 * sqrt(500 * 0.4 * 0.6), "each is the mirror of the other, and not of itself"


async def test_change_applies_at_once(process: Process, mirror: Served) -> None:
    process.weigh(0.0)
    await process.call("echo", 1)
    process.weigh(1.0, main=0.0, mirror=1.0)
    await process.call("echo", 1)  # the mirror serves the caller
    process.publish(f"{SPLITS}shop/writer", None)  # the split was removed
    await process.call("echo", 1)
    process.weigh(1.0)
    await process.call("echo", 1)
    assert (await process.ended()).completed == 1


async def test_nobody_waits_for_a_mirror_that_sleeps(process: Process, mirror: Served) -> None:
    await process.call("hold", "mirror")
    await until(lambda: mirror.marked("began"))
    assert process.load.ongoing == 1
    mirror.release("open")
    assert (await process.ended()).same == 1


async def test_copy_ends_with_the_process(process: Process, mirror: Served) -> None:
    await process.call("hold", "mirror")
    await until(lambda: mirror.marked("began"))
    await process.plane.aclose()
    await until(lambda: mirror.marked("was cancelled"))
    assert (await process.ended()).failed == 1


async def test_deadline_of_the_mirror_may_be_shorter(process: Process, mirror: Served) -> None:
    process.at("mirror", mirror.address, request_timeout_s=0.1)
    await process.call("hold", "mirror")
    assert (await process.ended()).failed == 1
    await until(lambda: mirror.marked("was cancelled"))


async def test_mirror_without_room_gets_no_copy(process: Process, mirror: Served) -> None:
    process.at("mirror", mirror.address, slots=1)
    await process.call("hold", "mirror")
    await until(lambda: mirror.marked("began"))
    assert await process.call("echo", 1) == 1
    await until(lambda: process.counts.dropped == 1)
    assert process.load.waiting == 0
    mirror.release("open")
    assert (await process.ended(2)).completed == 1


async def test_mirror_without_replicas_is_not_started(process: Process) -> None:
    process.at("mirror")
    assert await process.call("echo", 1) == 1
    assert (await process.ended()).dropped == 1


async def test_dead_mirror_is_a_failure_that_nobody_sees(process: Process) -> None:
    process.at("mirror", Address("unix:/nowhere.sock"))
    assert await process.call("echo", 1) == 1
    assert (await process.ended()).failed == 1


async def test_mirror_that_is_lost_with_a_copy_is_a_failure_that_nobody_sees(process: Process) -> None:
    serve = Serve()
    try:
        lost = serve(SOURCE.format(is_mirror=True))
        process.at("mirror", lost.address)
        await process.call("hold", "mirror")
        await until(lambda: lost.marked("began"))
        await asyncio.to_thread(lost.server.stop, 0)
        assert (await process.ended()).failed == 1
        assert await process.call("echo", 1) == 1
    finally:
        serve.close()


async def test_large_arguments_are_counted_and_not_copied(process: Process, mirror: Served) -> None:
    assert await process.call("size", bytes(MOST_BODY)) == MOST_BODY
    assert (await process.ended()).too_large == 1


async def test_large_result_of_a_mirror_is_cut(process: Process, mirror: Served) -> None:
    assert await process.call("zeros", 2 * MOST_RESPONSE) == b""
    found = await process.ended()
    assert (found.completed, found.compared) == (1, 0)


async def test_items_of_a_mirror_are_read_and_thrown_away(process: Process, mirror: Served) -> None:
    assert len(await process.stream("count", 100)) == 100
    found = await process.ended()
    assert (found.completed, found.same) == (1, 1)
    assert mirror.marked("all items")


async def test_endless_items_of_a_mirror_are_cut(process: Process, mirror: Served) -> None:
    assert await process.stream("endless") == [b""]
    found = await process.ended()
    assert (found.completed, found.compared) == (1, 0)
    await until(lambda: mirror.marked("closed"))


async def test_copy_goes_on_if_the_caller_leaves(process: Process, main: Served, mirror: Served) -> None:
    call = asyncio.create_task(process.call("hold", "main"))
    await until(lambda: mirror.marked("ended"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    found = await process.ended()
    assert (found.completed, found.compared) == (1, 0)
    await until(lambda: main.marked("was cancelled"))


async def test_call_that_is_sent_again_is_copied_once(process: Process, mirror: Served) -> None:
    serve = Serve()
    try:
        small = serve(SOURCE.format(is_mirror=False), max_ongoing_requests=1)
        process.at("main", small.address, slots=2)
        first = asyncio.create_task(process.call("hold", "main"))
        await until(lambda: small.marked("began"))
        second = asyncio.create_task(process.call("echo", 1))
        await until(lambda: process.plane.call_loads()[key("shop/main")].waiting == 1)
        small.release("open")
        await asyncio.gather(first, second)
        assert (await process.ended(2)).completed == 2
    finally:
        serve.close()


async def test_call_that_was_not_sent_is_not_copied(process: Process, mirror: Served) -> None:
    process.at("main")
    call = asyncio.create_task(process.call("echo", 1))
    await until(lambda: process.plane.call_loads()[key("shop/main")].waiting == 1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert process.counts == MirrorCounts()
