"""More open streams than a deployment has request slots, and requests beside them."""

import asyncio
import socket
from contextlib import AsyncExitStack
from functools import partial
from random import Random

from benchmarks.chaos.client import OK, Client, connected, hang_up, latency_ms, new_id, open_loop
from benchmarks.chaos.ledger import unended
from benchmarks.chaos.report import Row
from benchmarks.chaos.shared import capacity_of, lost, ratio
from benchmarks.chaos.system import System, seconds_until

SLOTS = 300
"""Of the victim: three replicas of a hundred."""

HUB = "hub"
"""An application whose requests follow a class deployment with sixteen request slots."""
FOLLOWERS = 20

BEGIN_S = 10.0
SEED = 1


async def idle_streams(system: System, short: bool) -> list[Row]:
    count, seconds = (SLOTS + 100, 3) if short else (3 * SLOTS, 30)
    rng = Random(SEED)
    async with system.client() as client, AsyncExitStack() as stack:
        rate = 0.3 * await capacity_of(client, short)
        before = await open_loop(client.get, rate, seconds)
        ids = [new_id() for _ in range(count)]
        streams = await asyncio.gather(*(_begin(system, client, id) for id in ids))
        for stream in streams:
            stack.callback(stream.close)
        begun = [await _first(stream) for stream in streams]
        during = await open_loop(client.get, rate, seconds)
        broken = sum(_has_ended(stream) for stream in streams)
        for stream in streams:
            hang_up(stream, rng.random() < 0.5)
        over = await seconds_until(lambda: unended(system.ledger.of(ids).values()) == 0, 15)
        quiet = await seconds_until(system.is_quiet, 15)
        after = await open_loop(client.get, rate, 1)
    return [
        Row("event streams open at the same time", sum(begun), count, at_least=True, saw=f"{SLOTS} request slots"),
        lost("GET beside them", during),
        Row("GET beside them: maximum latency", latency_ms(during, 100), 5_000, "ms", clocked=True),
        Row(
            "GET beside them: median latency, relative to the one before",
            ratio(latency_ms(during, 50), latency_ms(before, 50)),
            2,
            "×",
            clocked=True,
        ),
        Row("streams that ended before their clients disconnected", broken, 0),
        Row("time until every handler of a stream had ended", over, 5, "s", clocked=True),
        Row("handlers whose end is not in the ledger", unended(system.ledger.of(ids).values()), 0),
        Row("time until nothing was open or ongoing", quiet, 5, "s", clocked=True),
        lost("GET afterwards", after),
    ]


async def followers_of_a_hub(system: System, short: bool) -> list[Row]:
    seconds = 3 if short else 20
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(system.deployed(HUB, HUB))
        client = await stack.enter_async_context(app.client())
        streams = [await _begin(app, client, new_id(), "/follow") for _ in range(FOLLOWERS)]
        for stream in streams:
            stack.callback(stream.close)
        begun = [await _first(stream) for stream in streams]
        published = await open_loop(partial(client.post, path="/publish"), 20, seconds)
        count = sum(done.outcome == OK for done in published)
        complete = [await _received(stream, count) for stream in streams]
    return [
        Row("followers at the same time", sum(begun), FOLLOWERS, at_least=True, saw="16 request slots"),
        lost("POST that publishes a message", published),
        Row("POST: maximum latency", latency_ms(published, 100), 1_000, "ms", clocked=True),
        Row("followers that received every message", sum(complete), FOLLOWERS, at_least=True, saw=f"{count} messages"),
    ]


async def _received(stream: socket.socket, count: int) -> bool:
    """Return whether so many messages come in time."""
    got = b""
    try:
        async with asyncio.timeout(BEGIN_S):
            while got.count(b"data: message") < count:
                piece = await asyncio.get_running_loop().sock_recv(stream, 65_536)
                if not piece:
                    return False
                got += piece
    except (TimeoutError, ConnectionError):
        return False
    return got.count(b"data: message") == count


async def _begin(system: System, client: Client, id: str, path: str = "/idle") -> socket.socket:
    connection = await connected(system.address)
    await asyncio.get_running_loop().sock_sendall(connection, client.head("GET", path, id))
    return connection


async def _first(stream: socket.socket) -> bool:
    """Whether the first event comes in time."""
    got = b""
    try:
        async with asyncio.timeout(BEGIN_S):
            while b"data: hello" not in got:
                piece = await asyncio.get_running_loop().sock_recv(stream, 4_096)
                if not piece:
                    return False
                got += piece
    except (TimeoutError, ConnectionError):
        return False
    return got.startswith(b"HTTP/1.1 200")


def _has_ended(stream: socket.socket) -> bool:
    """Whether the server has closed it. Nothing is sent after the first event."""
    try:
        return stream.recv(4_096) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
