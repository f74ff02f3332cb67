"""The caller's side of the wait queue of a replica."""

import asyncio
from pathlib import Path

import pytest

from app_toolkit.interfaces import Endpoint
from app_toolkit.types import Address, ReplicaId
from app_toolkit.wire.pool import Pool
from app_toolkit.wire.wait_queue import WaitQueues
from tests.patience import PATIENCE_S
from tests.wire.test_pool import listening

pytestmark = pytest.mark.anyio

STANDS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class World:
    """One caller in the wait queue at one address."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.queues = WaitQueues(self.pool, b"the-secret")
        self.events: asyncio.Queue[str] = asyncio.Queue()

    def join(self, address: Address) -> None:
        self.pool.allow(address, 1)
        endpoint = Endpoint(ReplicaId("a"), address, 1)
        self.position = self.queues.join(
            endpoint, lambda: self.events.put_nowait("offered"), lambda: self.events.put_nowait("ended")
        )

    async def event(self) -> str:
        async with asyncio.timeout(PATIENCE_S):
            return await self.events.get()

    async def close(self) -> None:
        self.queues.close()
        await self.pool.aclose()
        assert (len(self.queues), self.events.empty()) == (0, True)


class Replica:
    """What a replica hears, and what it says."""

    def __init__(self) -> None:
        self.heads: asyncio.Queue[bytes] = asyncio.Queue()
        self.gone: asyncio.Queue[bytes] = asyncio.Queue()
        self.writer: asyncio.StreamWriter | None = None

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        try:
            while True:
                self.heads.put_nowait(await reader.readuntil(b"\r\n\r\n"))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            self.gone.put_nowait(b"")
        writer.close()

    async def head(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.heads.get()

    def say(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)

    async def left(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.gone.get()


async def test_every_byte_of_the_response_is_a_reservation(tmp_path: Path) -> None:
    world, replica = World(), Replica()
    async with listening(tmp_path, replica) as address:
        world.join(address)
        lines = (await replica.head()).split(b"\r\n")
        assert lines[0] == b"GET / HTTP/1.1"
        assert lines[1].startswith(b"x-app-toolkit-hop: 1 the-secret ")
        name, _, caller = lines[2].partition(b": ")
        assert name == b"x-app-toolkit-queue"
        assert world.queues.redeem == (b"x-app-toolkit-redeem", caller)
        replica.say(STANDS + b"1\r\n.\r\n2\r\n.")
        assert [await world.event(), await world.event()] == ["offered", "offered"]
        replica.say(b".\r\n")
        assert await world.event() == "offered"
        world.position.leave()
        await replica.left()
        world.position.leave()
        await world.close()


async def test_a_position_that_the_replica_ends_returns_its_connection(tmp_path: Path) -> None:
    world, replica = World(), Replica()
    async with listening(tmp_path, replica) as address:
        world.join(address)
        await replica.head()
        replica.say(STANDS + b"1\r\n.\r\n" + END)
        assert [await world.event(), await world.event()] == ["offered", "ended"]
        assert world.pool.idle == 1
        world.join(address)
        await replica.head()
        assert world.pool.idle == 0, "the idle connection serves the next line"
        await world.close()
        await replica.left()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\nx-app-toolkit-refused: busy\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 5\r\n\r\nsorry",
        b"SMTP ready\r\n\r\n",
    ],
    ids=["refused", "failed", "not-http"],
)
async def test_an_invalid_response_ends_a_position_without_a_reservation(tmp_path: Path, answer: bytes) -> None:
    world, replica = World(), Replica()
    async with listening(tmp_path, replica) as address:
        world.join(address)
        await replica.head()
        replica.say(answer)
        assert await world.event() == "ended"
        await world.close()
        await replica.left()


async def test_a_position_ends_when_its_replica_dies(tmp_path: Path) -> None:
    world, replica = World(), Replica()
    async with listening(tmp_path, replica) as address:
        world.join(address)
        await replica.head()
        replica.say(STANDS)
        assert replica.writer is not None
        replica.writer.transport.abort()
        assert await world.event() == "ended"
        await world.close()
        await replica.left()


async def test_a_position_ends_if_its_replica_cannot_be_reached() -> None:
    world = World()
    world.join(Address("unix:/nowhere/at/all.sock"))
    assert await world.event() == "ended"
    await world.close()


async def test_a_connection_dialled_for_a_left_position_is_kept(tmp_path: Path) -> None:
    world, replica = World(), Replica()
    async with listening(tmp_path, replica) as address:
        world.join(address)
        world.position.leave()
        async with asyncio.timeout(PATIENCE_S):
            while not world.pool.idle:  # noqa: ASYNC110 the pool tells nobody
                await asyncio.sleep(0.005)
        assert replica.heads.empty()
        await world.close()
        await replica.left()
