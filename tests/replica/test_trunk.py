"""A caller's pool and a replica, over one trunk."""

import asyncio
import fcntl
import socket
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app_toolkit.errors import ReplicaGone
from app_toolkit.transport.pool import IDLE_S, Answer, Connection, Pool
from app_toolkit.transport.preface import beginning, first_line
from app_toolkit.transport.trunk import FRAME
from app_toolkit.types import Address
from tests.patience import PATIENCE_S, until

from .client import SECRET, Serve, dial, field, wait_until

pytestmark = pytest.mark.anyio

OPENING = first_line("trunk")

SOURCE = """
import asyncio
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

app = FastAPI()

@app.get("/number/{number}")
async def number(number: int):
    return number

@app.get("/large/{size}")
async def large(size: int):
    return StreamingResponse(b"x" * 65_536 for _ in range(size))

@app.get("/wait")
async def wait():
    await asyncio.Event().wait()

@app.post("/length")
async def length(request: Request):
    return len(await request.body())
"""


class Asking:
    """One exchange."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.connection: Connection | None = None
        self.answer: Answer | None = None
        self.body = bytearray()
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def begin(self, address: Address, head: bytes, *, small: bool = True) -> "Asking":
        self._head = head
        taken = self._pool.take(address, small=small)
        if taken is not None:
            self._reached(taken)
        else:
            self._pool.dial(address, self._reached, self.lost, small=small)
        return self

    def _reached(self, connection: Connection) -> None:
        self.connection = connection
        connection.begin(self)
        connection.write(self._head)

    def informed(self, answer: Answer) -> None: ...

    def answered(self, answer: Answer) -> None:
        self.answer = answer

    def received(self, data: bytes | memoryview) -> bool:
        self.body += data
        return True

    def ended(self, reusable: bool) -> None:
        assert self.connection is not None
        if reusable:
            self._pool.give_back(self.connection)
        self.over.set_result("ended")

    def lost(self, error: ReplicaGone) -> None:
        self.over.set_result("lost")

    def writing_paused(self, paused: bool) -> None: ...


def get(path: str) -> bytes:
    name, value = field()
    return b"GET %b HTTP/1.1\r\n%b: %b\r\nhost: a\r\n\r\n" % (path.encode(), name.encode(), value)


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    found = Pool(SECRET)
    yield found
    await found.aclose()


def open_sockets(address: Address) -> int:
    """Connections to it that this process and the replica have between them; the replica is in this process."""
    path = address.removeprefix("unix:")
    return sum(
        line.endswith(path) and line.split()[5] == "03" for line in Path("/proc/net/unix").read_text().splitlines()
    )


async def test_requests_at_the_same_time_share_one_connection(serve: Serve, pool: Pool) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool.allow(served.address, 100, trunks=True)
    before = open_sockets(served.address)
    for _ in range(3):
        asked = [Asking(pool).begin(served.address, get(f"/number/{number}")) for number in range(50)]
        assert await asyncio.gather(*(each.over for each in asked)) == ["ended"] * 50
        assert [each.body for each in asked] == [b"%d" % number for number in range(50)]
    assert open_sockets(served.address) - before == 1
    assert pool.idle == 50


async def test_what_is_not_small_has_a_connection_of_its_own(serve: Serve, pool: Pool) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool.allow(served.address, 100, trunks=True)
    small = Asking(pool).begin(served.address, get("/number/1"))
    large = Asking(pool).begin(served.address, get("/number/2"), small=False)
    await small.over
    await large.over
    assert small.connection is not None
    assert large.connection is not None
    assert (small.connection.is_circuit, large.connection.is_circuit) == (True, False)
    assert pool.take(served.address) is large.connection
    assert pool.take(served.address, small=True) is small.connection
    pool.give_back(large.connection)
    pool.give_back(small.connection)


async def test_where_nobody_said_that_a_replica_takes_trunks_there_are_none(serve: Serve, pool: Pool) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool.allow(served.address, 100)
    asking = Asking(pool).begin(served.address, get("/number/1"))
    assert await asking.over == "ended"
    assert asking.connection is not None
    assert not asking.connection.is_circuit


async def test_an_answer_of_any_size_passes_while_others_are_served(serve: Serve, pool: Pool) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool.allow(served.address, 100, trunks=True)
    large = [Asking(pool).begin(served.address, get("/large/200")) for _ in range(4)]
    await until(lambda: all(each.body for each in large))
    assert await Asking(pool).begin(served.address, get("/number/1")).over == "ended"
    async with asyncio.timeout(30):
        assert await asyncio.gather(*(each.over for each in large)) == ["ended"] * 4
    assert all(each.body.count(b"x") == 200 * 65_536 for each in large)


async def test_one_that_is_not_read_stops_its_handler_and_no_other(serve: Serve, pool: Pool) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool.allow(served.address, 100, trunks=True)
    stuck = Asking(pool).begin(served.address, get("/large/1000"))
    await until(lambda: stuck.answer is not None)
    assert stuck.connection is not None
    stuck.connection.pause_reading()
    for number in range(20):
        assert await Asking(pool).begin(served.address, get(f"/number/{number}")).over == "ended"
    assert len(stuck.body) < 5_000_000
    assert not stuck.over.done()
    stuck.connection.resume_reading()
    async with asyncio.timeout(30):
        assert await stuck.over == "ended"
    assert stuck.body.count(b"x") == 1_000 * 65_536


async def test_who_gives_an_exchange_up_is_noticed_by_its_handler_alone(serve: Serve, pool: Pool) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool.allow(served.address, 100, trunks=True)
    leaving, staying = (Asking(pool).begin(served.address, get("/wait")) for _ in range(2))
    await until(lambda: served.server.statistics().ongoing == 2)
    assert leaving.connection is not None
    leaving.connection.abort()
    await until(lambda: served.server.statistics().ongoing == 1)
    assert not staying.over.done()
    assert staying.connection is not None
    staying.connection.abort()
    await until(lambda: served.server.statistics().ongoing == 0)


async def test_a_trunk_that_was_lost_is_dialled_anew(serve: Serve, pool: Pool) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool.allow(served.address, 100, trunks=True)
    waiting = Asking(pool).begin(served.address, get("/wait"))
    await until(lambda: served.server.statistics().ongoing == 1)
    await asyncio.to_thread(served.close)
    assert await waiting.over == "lost"
    await asyncio.to_thread(serve, SOURCE, address=served.address)
    assert await Asking(pool).begin(served.address, get("/number/1")).over == "ended"


async def test_who_waits_for_a_trunk_that_cannot_be_had_is_told(pool: Pool) -> None:
    nowhere = Address("unix:/nowhere/at/all.sock")
    pool.allow(nowhere, 100, trunks=True)
    asked = [Asking(pool).begin(nowhere, get("/number/1")) for _ in range(3)]
    assert await asyncio.gather(*(each.over for each in asked)) == ["lost"] * 3
    assert pool.idle == 0


ODD = """
from array import array

async def odd(scope, receive, send):
    status, headers, body = {
        "text": (200, [(b"content-length", b"2")], "hi"),
        "numbers": (200, [(b"content-length", b"2")], memoryview(array("d", [1.0, 2.0]))),
        "interim": (103, [], b""),
        "twice": (200, [(b"content-length", b"2"), (b"content-length", b"9")], b"hi"),
        "both": (200, [(b"transfer-encoding", b"chunked"), (b"content-length", b"99")], b"hi"),
        "digits": (200, [(b"content-length", "\u0662".encode())], b"hi"),
        "underscore": (200, [(b"content-length", b"1_0")], b"x" * 10),
        "negative": (200, [(b"content-length", b"-2")], b""),
    }[scope["path"].rpartition("/")[2]]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

app.mount("/odd", odd)
"""


@pytest.mark.parametrize("odd", ["text", "numbers", "interim", "twice", "both", "digits", "underscore", "negative"])
async def test_what_an_app_does_wrong_harms_no_exchange_but_its_own_and_ends_as_over_a_connection(
    serve: Serve, pool: Pool, odd: str
) -> None:
    served = await asyncio.to_thread(serve, SOURCE + ODD)
    pool.allow(served.address, 100, trunks=True)
    waiting = Asking(pool).begin(served.address, get("/wait"))
    await until(lambda: served.server.statistics().ongoing == 1)
    own = Asking(pool).begin(served.address, get(f"/odd/{odd}"), small=False)
    paths = f"/odd/{odd}", "/number/1", "/number/2"
    ours, *others = (Asking(pool).begin(served.address, get(path)) for path in paths)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*(other.over for other in others)) == ["ended"] * 2
        outcome = await ours.over
        assert outcome == await own.over
    if outcome == "ended":
        assert (ours.answer, ours.body) == (own.answer, own.body)
    assert not waiting.over.done()
    assert waiting.connection is not None
    waiting.connection.abort()


BODYLESS = """
from fastapi.responses import JSONResponse, Response

@app.get("/bodyless/{kind}/{status}")
async def bodyless(kind: str, status: int):
    etag = {"etag": '"1"'}
    if kind == "body":
        return JSONResponse({"deleted": 1}, status, etag)
    if kind == "announced":
        return Response(b"HTTP/1.1 200 OK", status, {**etag, "Content-Length": "15"})
    if kind == "not sent":
        return Response(b"", status, {**etag, "content-length": "15"})
    if kind == "stream":
        return StreamingResponse(iter([b"a", b"b"]), status, etag)
    return StreamingResponse(iter([b"a", b"b"]), status, {**etag, "transfer-encoding": "chunked"})
"""


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("kind", ["body", "announced", "not sent", "stream", "chunked"])
async def test_a_body_that_must_not_be_there_is_not_sent_and_the_connection_serves_the_next(
    serve: Serve, pool: Pool, kind: str, status: int, small: bool, caplog: pytest.LogCaptureFixture
) -> None:
    served = await asyncio.to_thread(serve, SOURCE + BODYLESS)
    pool.allow(served.address, 100, trunks=True)
    head = get(f"/bodyless/{kind.replace(' ', '%20')}/{status}")
    empty = Asking(pool).begin(served.address, head, small=small)
    async with asyncio.timeout(PATIENCE_S):
        assert await empty.over == "ended"
    assert empty.answer is not None
    assert (empty.answer.status, bytes(empty.body)) == (status, b"")
    assert (b"etag", b'"1"') in empty.answer.fields
    assert not {b"content-length", b"transfer-encoding"} & {name for name, _ in empty.answer.fields}
    following = Asking(pool).begin(served.address, get("/number/1"), small=small)
    async with asyncio.timeout(PATIENCE_S):
        assert await following.over == "ended"
    assert following.body == b"1"
    assert following.connection is empty.connection
    await until(lambda: served.server.statistics().ongoing == 0)  # the first app may end behind the second answer
    assert not [each for each in caplog.records if each.name != "asyncio"]  # which tells of others, once collected


async def test_a_circuit_of_who_left_while_the_trunk_was_dialled_serves_the_next(serve: Serve, pool: Pool) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool.allow(served.address, 100, trunks=True)
    failed: list[ReplicaGone] = []
    pool.dial(served.address, pool.give_back, failed.append, small=True)
    assert await Asking(pool).begin(served.address, get("/number/1")).over == "ended"
    assert (pool.idle, failed) == (2, [])
    both = [Asking(pool).begin(served.address, get("/number/2")) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*(each.over for each in both)) == ["ended"] * 2


async def test_a_pool_that_closes_while_a_trunk_is_dialled_calls_nobody(serve: Serve) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool = Pool(SECRET)
    pool.allow(served.address, 100, trunks=True)
    asking = Asking(pool).begin(served.address, get("/number/1"))
    await pool.aclose()
    assert not asking.over.done()


async def test_a_replica_that_leaves_while_its_trunk_is_dialled_still_serves_who_waited(
    serve: Serve, pool: Pool
) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool.allow(served.address, 100, trunks=True)
    asking = Asking(pool).begin(served.address, get("/number/1"))
    pool.forget(served.address)
    assert await asking.over == "ended"
    assert pool.idle == 0
    before = open_sockets(served.address)
    await until(lambda: open_sockets(served.address) <= before)


async def test_who_comes_to_a_replica_that_stops_is_told_before_anything_is_sent(serve: Serve, pool: Pool) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool.allow(served.address, 100, trunks=True)
    waiting = Asking(pool).begin(served.address, get("/wait"))
    await until(lambda: served.server.statistics().ongoing == 1)
    assert await Asking(pool).begin(served.address, get("/number/1")).over == "ended"
    stopping = asyncio.create_task(asyncio.to_thread(served.server.stop, 5.0))
    await until(lambda: pool.idle == 0)
    late = Asking(pool).begin(served.address, get("/number/2"))
    assert await late.over == "lost"
    assert late.connection is None, "it may be handed to another one"
    assert not waiting.over.done()
    assert waiting.connection is not None
    waiting.connection.abort()
    assert await stopping


async def test_circuits_expire_and_are_given_up_as_connections_are(serve: Serve, pool: Pool) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    pool.allow(served.address, 2, trunks=True)
    asked = [Asking(pool).begin(served.address, get("/number/1")) for _ in range(4)]
    await asyncio.gather(*(each.over for each in asked))
    assert pool.idle == 2
    pool.allow(served.address, 1, trunks=True)
    assert pool.idle == 1
    pool.expire(asyncio.get_running_loop().time() + IDLE_S + 1)
    assert pool.idle == 0
    await Asking(pool).begin(served.address, get("/number/1")).over
    pool.distrust(served.address)
    assert pool.idle == 0
    await until(lambda: len(pool._ways[served.address].trunk or ()) == 0)


@pytest.mark.parametrize(
    "said",
    [OPENING[:-1] + b"?", OPENING.replace(b" 2 ", b" 1 "), OPENING.replace(b"trunk", b"tunnel")],
    ids=["no end of line", "another version", "another purpose"],
)
async def test_a_trunk_opens_with_its_first_line_only(serve: Serve, said: bytes) -> None:
    served = await asyncio.to_thread(serve, SOURCE)

    def ask() -> bytes:
        with dial(served.address) as connection:
            connection.sendall(said + FRAME.pack(1, len(get("/number/1"))) + get("/number/1"))
            return read_to_the_end(connection)

    answer = await asyncio.to_thread(ask)
    assert answer.startswith((b"HTTP/1.1 503 ", b"HTTP/1.1 400 "))


def unread(connection: socket.socket) -> bool:
    """Whether something of what was sent still waits for the other end."""
    return fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4) != b"\0" * 4


def read_to_the_end(connection: socket.socket) -> bytes:
    found = b""
    try:
        while data := connection.recv(65_536):
            found += data
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize(
    "cut", [1, 5, len(beginning("trunk")), len(beginning("trunk")) + 3, len(OPENING), len(OPENING) + 4]
)
async def test_a_preface_may_come_in_pieces(serve: Serve, cut: int) -> None:
    served = await asyncio.to_thread(serve, SOURCE)
    said = OPENING + FRAME.pack(1, len(get("/number/7"))) + get("/number/7")

    def ask() -> bytes:
        with dial(served.address) as connection:
            connection.sendall(said[:cut])
            wait_until(lambda: not unread(connection), "the replica has read it")
            connection.sendall(said[cut:])
            return connection.recv(65_536)

    answer = await asyncio.to_thread(ask)
    number, size = FRAME.unpack_from(answer)
    assert (number, size) == (1, len(answer) - FRAME.size)
    assert answer.endswith(b"\r\n\r\n7")


async def test_http_may_come_in_pieces_as_well(serve: Serve) -> None:
    served = await asyncio.to_thread(serve, SOURCE)

    def ask() -> bytes:
        with dial(served.address) as connection:
            connection.sendall(b"G")
            wait_until(lambda: not unread(connection), "the replica has read it")
            connection.sendall(get("/number/7")[1:])
            return connection.recv(65_536)

    assert (await asyncio.to_thread(ask)).endswith(b"\r\n\r\n7")
