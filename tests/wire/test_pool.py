"""Connections to a replica: where an answer ends, and when a connection may be used again."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app_toolkit.errors import ReplicaGone
from app_toolkit.types import Address
from app_toolkit.wire.pool import IDLE_S, Pool, PooledConnection, ResponseHead
from tests.patience import PATIENCE_S, until
from tests.wire.answering import SECRET, Answering

pytestmark = pytest.mark.anyio

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Notes:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.answer: ResponseHead | None = None
        self.body = b""
        self.over = asyncio.Event()

    def informed(self, answer: ResponseHead) -> None:
        self.events.append(answer.status)

    def response_started(self, answer: ResponseHead) -> None:
        self.answer = answer
        self.events.append(answer.status)

    def received(self, data: bytes) -> None:
        self.body += data

    def ended(self, reusable: bool) -> None:
        self.events.append("reusable" if reusable else "ended")
        self.over.set()

    def lost(self, error: ReplicaGone) -> None:
        self.events.append("lost")
        self.over.set()

    def writing_paused(self, paused: bool) -> None:
        self.events.append("paused" if paused else "resumed")


@asynccontextmanager
async def listening(folder: Path, script: Script) -> AsyncIterator[Address]:
    path = folder / "r.sock"
    server = await asyncio.start_unix_server(script, path)
    yield Address(f"unix:{path}")
    server.close()


async def dialled(pool: Pool, address: Address) -> PooledConnection:
    answer: asyncio.Future[PooledConnection] = asyncio.get_running_loop().create_future()
    pool.dial(address, answer.set_result, answer.set_exception)
    async with asyncio.timeout(PATIENCE_S):
        return await answer


async def met(pool: Pool, folder: Path) -> tuple[PooledConnection, socket.socket]:
    """A connection, and its other end in our hands."""
    path = str(folder / "r.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        return await dialled(pool, Address(f"unix:{path}")), listener.accept()[0]


async def the_loop_looks() -> None:
    """What lies in sockets by now has been read, and what was written has been sent."""
    for _ in range(5):
        await asyncio.sleep(0)


class Wire(asyncio.Transport):
    """A transport to a replica that reads everything."""

    closed = False

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: object) -> None: ...

    def close(self) -> None:
        self.closed = True

    abort = close


async def exchange(reply: bytes, *, decode: bool = False, close: bool = False) -> Notes:
    """What a listener hears of a reply. It must be the same byte by byte, and all at once."""
    heard = []
    for size in (len(reply), 1):
        connection, wire, notes = PooledConnection(Address("unix:/r"), lambda lost: None), Wire(), Notes()
        connection.connection_made(wire)
        connection.begin(notes, decode=decode)
        for start in range(0, len(reply), size):
            if not wire.closed:
                connection.data_received(reply[start : start + size])
        if close or wire.closed:
            connection.connection_lost(None)
        assert notes.over.is_set()
        heard.append(notes)
    whole, in_bytes = heard
    assert (whole.events, whole.body, whole.answer) == (in_bytes.events, in_bytes.body, in_bytes.answer)
    return whole


@pytest.mark.parametrize(
    ("reply", "events", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", [200, "reusable"], b"hi"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", [200, "reusable"], b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", [204, "reusable"], b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", [304, "reusable"], b""),
        (
            b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            [103, 200, "reusable"],
            b"",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", [200, "ended"], b""),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", [200, "ended"], b"hi"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            [200, "reusable"],
            b"2\r\nhi\r\n0\r\n\r\n",
        ),
    ],
)
async def test_a_response_ends_at_its_announced_end(reply: bytes, events: list[object], body: bytes) -> None:
    notes = await exchange(reply)
    assert notes.events == events
    assert notes.body == body


async def test_a_chunked_response_is_decoded_on_request() -> None:
    reply = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\nx: 1\r\n\r\n"
    notes = await exchange(reply, decode=True)
    assert (notes.body, notes.events) == (b"hi!", [200, "reusable"])


async def test_a_response_without_an_announced_end_ends_with_its_connection() -> None:
    notes = await exchange(b"HTTP/1.1 200 OK\r\n\r\nall of it", close=True)
    assert (notes.body, notes.events) == (b"all of it", [200, "ended"])


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n",
        b"SMTP ready\r\n\r\n",
    ],
)
async def test_a_response_that_breaks_off_is_lost(reply: bytes) -> None:
    notes = await exchange(reply, close=True)
    assert notes.events[-1] == "lost"


async def test_data_from_a_tunnel_is_read_although_a_write_failed(tmp_path: Path) -> None:
    pool, notes = Pool(), Notes()
    connection, replica = await met(pool, tmp_path)
    connection.begin(notes)
    with replica:
        replica.sendall(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        await the_loop_looks()
        connection.write(b"unread")
        await asyncio.sleep(0)
        replica.sendall(b"last words" * 10_000)
    connection.write(b"too late")
    async with asyncio.timeout(PATIENCE_S):
        await notes.over.wait()
    assert (notes.body, notes.events) == (b"last words" * 10_000, [101, "lost"])
    await pool.aclose()


async def test_fields_of_the_hop_are_sorted_out() -> None:
    notes = await exchange(
        b"HTTP/1.1 503 Busy\r\nX-App-Toolkit-Refused: busy\r\nx-app-toolkit-ongoing: 3\r\n"
        b"Connection: keep-alive\r\n"
        b"Keep-Alive: timeout=5\r\nX-Own: 1\r\ncontent-length: 0\r\n\r\n",
    )
    assert notes.answer is not None
    assert notes.answer.refusal == b"busy"
    assert notes.answer.status_line == b"HTTP/1.1 503 Busy"
    assert notes.answer.fields == [(b"x-own", b"1"), (b"content-length", b"0")]


@pytest.mark.parametrize("status", [b"200 OK", b"500 Oh", b"504 Late"])
async def test_only_a_503_is_a_refusal(status: bytes) -> None:
    notes = await exchange(b"HTTP/1.1 " + status + b"\r\nx-app-toolkit-refused: busy\r\ncontent-length: 0\r\n\r\n")
    assert notes.answer is not None
    assert notes.answer.refusal is None
    assert all(name != b"x-app-toolkit-refused" for name, _ in notes.answer.fields)


async def test_a_byte_after_the_response_ends_the_connection(tmp_path: Path) -> None:
    pool, notes = Pool(), Notes()
    connection, replica = await met(pool, tmp_path)
    pool.allow(connection.address, 1)
    connection.begin(notes)
    with replica:
        replica.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await until(notes.over.is_set)
        pool.give_back(connection)
        assert pool.idle == 1
        replica.sendall(b"H")
        await until(lambda: pool.idle == 0)
    assert pool.take(connection.address) is None
    await pool.aclose()


async def test_the_pool_keeps_limited_connections_and_none_of_removed_replicas(tmp_path: Path) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    pool = Pool()
    async with listening(tmp_path, say) as address:
        pool.allow(address, 2)
        connections = [await dialled(pool, address) for _ in range(4)]
        for connection in connections[:3]:
            pool.give_back(connection)
        assert pool.idle == 2
        assert pool.take(address) is connections[1]
        pool.give_back(connections[1])
        pool.expire(connections[0].idle_since + IDLE_S + 60)
        assert pool.idle == 0
        pool.forget(address)
        pool.give_back(connections[3])
        assert pool.idle == 0
    await pool.aclose()


async def test_a_pool_that_closes_leaves_no_connection_whose_replica_reads_nothing(tmp_path: Path) -> None:
    pool = Pool()
    connection, replica = await met(pool, tmp_path)
    with replica:
        connection.write(bytes(10_000_000))
        await the_loop_looks()
        connection.close()
        await the_loop_looks()
        assert connection.closing, "there are bytes to send"
        await pool.aclose()
        assert not connection.closing


@pytest.mark.parametrize("address", ["unix:/no/such.sock", "tcp:127.0.0.1:1", "carrier-pigeon"])
async def test_an_unreachable_replica_is_gone(address: str) -> None:
    pool = Pool()
    with pytest.raises(ReplicaGone, match=address):
        await dialled(pool, Address(address))
    await pool.aclose()


async def test_an_idle_connection_to_another_machine_is_probed() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answering(asyncio.Protocol()), "127.0.0.1", 0)
    pool = Pool(SECRET)
    connection = await dialled(pool, Address(f"tcp:127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    assert connection.transport is not None
    dialling = connection.transport.get_extra_info("socket")
    assert dialling.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    probing = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]
    assert [dialling.getsockopt(socket.IPPROTO_TCP, option) for option in probing] == [10, 5, 3]
    connection.abort()
    await pool.aclose()
    server.close()


@pytest.mark.parametrize("answered", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 413 No\r\ncontent-len"])
async def test_an_early_response_arrives_although_a_write_fails_first(tmp_path: Path, answered: bytes) -> None:
    answer = b"HTTP/1.1 413 No\r\ncontent-length: 8\r\nconnection: close\r\n\r\ntoo much"
    answer = answer if answered.startswith(b"HTTP/1.1 100") else answer[len(answered) :]
    pool, notes = Pool(), Notes()
    connection, replica = await met(pool, tmp_path)
    connection.begin(notes)
    connection.write(b"POST / HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n")
    await asyncio.sleep(0)
    with replica:
        replica.sendall(answered)
        await the_loop_looks()
        replica.sendall(answer)
    connection.write(bytes(500_000))  # before the loop has looked at what came
    await asyncio.wait_for(notes.over.wait(), PATIENCE_S)
    assert notes.events[-2:] == [413, "ended"]
    assert notes.body == b"too much"
    await pool.aclose()


async def test_a_response_that_is_not_whole_when_a_write_fails_is_lost(tmp_path: Path) -> None:
    pool, notes = Pool(), Notes()
    connection, replica = await met(pool, tmp_path)
    connection.begin(notes)
    with replica:
        replica.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf")
    connection.write(bytes(500_000))
    await asyncio.wait_for(notes.over.wait(), PATIENCE_S)
    assert notes.events == [200, "lost"]
    assert notes.body == b"half"
    await pool.aclose()
