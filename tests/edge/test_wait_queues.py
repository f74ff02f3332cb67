"""Several proxies in front of one replica that is full: they wait in its queue, and get reservations in turn."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.contract.snapshots import PublishedReplica
from app_toolkit.edge.server import ProxyServer
from app_toolkit.edge.state import ProxyState
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Snapshot, Version
from app_toolkit.replica.admission.wait_queue import PENDING_S
from tests import published
from tests.edge.app import SECRET
from tests.edge.world import CALM, RunningProxy, Served, World, eventually, on_both
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

CALLERS = 8
SECONDS = 1.2
ROUNDS = 6
"""The median of so many waits does not depend on one for which the machine stood still."""

HANDLER_S = 0.02


@asynccontextmanager
async def proxy_before(endpoint: PublishedReplica) -> AsyncIterator[ProxyServer]:
    async with ProxyServer(ProxyState(SECRET, Router), HTTPOptions(port=0), drain_timeout_s=0.0) as server:
        values = {
            "routes": published.routes(published.application()),
            "replicas/shop/web": published.replica_set(endpoint),
        }
        server.proxy.registry.update({key: Snapshot(Version(1, 1), value) for key, value in values.items()})
        yield server
        assert (server.statistics().waiting, server.statistics().ongoing) == (0, 0)


async def get(port: int, path: str, times: int = 1) -> Any:
    """The body of the last answer to so many requests, one after the other, on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(times):
        writer.write(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(length)
    writer.close()
    return json.loads(body)


async def test_eight_proxies_share_one_slot(world: World) -> None:
    clients = (8, *(1,) * (CALLERS - 1))
    [replica] = world.killable(1, most=1)
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(proxy_before(replica.endpoint())) for _ in range(CALLERS)]
        waits: list[list[float]] = [[] for _ in proxies]
        end = time.monotonic() + SECONDS

        async def client(number: int) -> None:
            while (asked := time.monotonic()) < end or min(map(len, waits)) < ROUNDS:
                await get(proxies[number].port, f"/nap/{HANDLER_S}")
                waits[number].append(time.monotonic() - asked)

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(client(number) for number, count in enumerate(clients) for _ in range(count)))
        naps = await get(proxies[0].port, "/naps")
        alike = [median(each) for each, count in zip(waits, clients, strict=True) if count == 1]
        assert all(began >= ended for (_, ended), (began, _) in pairwise(naps))
        assert max(alike) <= 2 * min(alike)
        await asyncio.gather(*(proxy.stop(0.0) for proxy in proxies))
    assert sum(len(proxy.proxy.wait_queues) for proxy in proxies) == 0


# Two proxies, of which the second is a test's own


GET = b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.fixture
def other(tmp_path: Path, put_away: Callable[[World], None]) -> Iterator[World]:
    world = World(RunningProxy(CALM), tmp_path)
    yield world
    put_away(world)


def one_slot(*worlds: World, **policy: Any) -> Served:
    """A replica with one slot behind all of them."""
    replica = worlds[0].replica(most=1)
    for world in worlds:
        world.route(replica.endpoint(), **policy)
    return replica


def lines(world: World) -> int:
    return len(world.edge.proxy.wait_queues)


def joined(world: World, replica: Served) -> None:
    """Wait until this proxy, and nobody else, waits in the queue."""
    eventually(lambda: (lines(world), replica.admission.statistics().waiting_callers) == (1, 1))


def is_quiet(replica: Served, *worlds: World) -> None:
    """Nobody is inside, waits, is in the queue or has a reservation."""
    eventually(lambda: all(world.settled() for world in worlds))
    eventually(lambda: not any(lines(world) for world in worlds))
    eventually(
        lambda: (replica.admission.statistics().ongoing, replica.admission.statistics().waiting_callers) == (0, 0)
    )
    eventually(lambda: replica.admission.wait_queue.admits_unreserved)


@on_both
def test_a_proxy_that_finds_the_replica_full_gets_the_next_free_slot(world: World, other: World) -> None:
    replica = one_slot(world, other)
    with world.raw() as first, other.raw() as second:
        first.send(GET % b"/wait")
        eventually(lambda: replica.journal.events)
        second.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nx-app-toolkit-redeem: me\r\n\r\nhi")
        joined(other, replica)
        assert other.edge.statistics().waiting == 1
        replica.release()
        assert first.answer().status == 200
        got = second.answer()
        assert (got.status, got.body) == (200, b"hi")
        assert not [name for name, _ in got.headers if name.startswith("x-app-toolkit")]
    is_quiet(replica, world, other)


@on_both
def test_a_single_proxy_never_joins_the_queue(world: World) -> None:
    replica = one_slot(world)
    with ThreadPoolExecutor(4) as pool:
        assert {got.status_code for got in pool.map(httpx.get, [world.url + "/hello"] * 20)} == {200}
    assert lines(world) == 0
    is_quiet(replica, world)


@on_both
def test_a_proxy_leaves_the_queue_if_its_client_disconnects(world: World, other: World) -> None:
    replica = one_slot(world, other)
    with world.raw() as first:
        first.send(GET % b"/wait")
        eventually(lambda: replica.journal.events)
        with other.raw() as second:
            second.send(GET % b"/hello")
            joined(other, replica)
        eventually(lambda: other.edge.statistics().waiting == 0)
        replica.release()
        assert first.answer().status == 200
    is_quiet(replica, world, other)


@on_both
def test_the_queue_of_a_draining_replica_goes_to_other_replicas(world: World, other: World) -> None:
    replica = one_slot(world, other)
    fresh = world.replica()
    with world.raw() as first, other.raw() as second:
        first.send(GET % b"/wait")
        eventually(lambda: replica.journal.events)
        second.send(GET % b"/hello")
        joined(other, replica)
        drained = replica.drain()
        eventually(lambda: lines(other) == 0)
        other.route(fresh.endpoint())
        assert second.answer().json() == {"replica": fresh.name}
        replica.release()
        assert first.answer().status == 200
        assert drained.result(PATIENCE_S)
    eventually(lambda: world.settled() and other.settled())
    assert replica.admission.statistics().waiting_callers == 0


@on_both
@pytest.mark.parametrize("size", [10, 1_000_000])
def test_an_early_request_behind_a_slow_one_is_not_lost(world: World, other: World, size: int) -> None:
    body = b"b" * size
    replica = one_slot(world, other)
    with ThreadPoolExecutor(8) as pool:
        slow = [
            pool.submit(httpx.get, f"{each.url}/nap/{2 * PENDING_S}", timeout=PATIENCE_S)
            for _ in range(3)
            for each in (world, other)
        ]
        uploads = [
            pool.submit(httpx.post, each.url + "/digest", content=body, timeout=PATIENCE_S) for each in (world, other)
        ]
        assert {each.result(PATIENCE_S).status_code for each in slow} == {200}
        assert {each.result(PATIENCE_S).json()["length"] for each in uploads} == {len(body)}
    assert len(replica.journal.naps) == 6
    is_quiet(replica, world, other)
