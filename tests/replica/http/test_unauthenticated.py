"""Over TCP anybody may connect to a replica: who does not prove to know the secret costs nothing, and gets nothing."""

import asyncio
import contextlib
import itertools
import select
import socket
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, cast

import pytest
import uvicorn
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from app_toolkit.replica.admission.replica import Replica
from app_toolkit.replica.http import unauthenticated
from app_toolkit.replica.http.unauthenticated import UNAUTHENTICATED, UnauthenticatedConnection, UnauthenticatedPeers
from app_toolkit.types import Address, Receive, Scope, Send
from app_toolkit.wire.pool import Pool
from app_toolkit.wire.preface import BEGINNING, NONCE, RESPONSE, first_line, introduce, prove, read_response
from tests.patience import PATIENCE_S, until
from tests.replica.client import SECRET, Serve, Served, field
from tests.replica.talking import Wire

pytestmark = pytest.mark.anyio

SOURCE = """
app = FastAPI()

@app.get("/")
async def hello():
    return "hello"
"""

NAME, VALUE = field()
ASKED = b"GET / HTTP/1.1\r\n%b: %b\r\nhost: a\r\n\r\n" % (NAME.encode(), VALUE)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    serving = Serve()
    yield serving(SOURCE, address="tcp:127.0.0.1:0")
    serving.close()


def stranger(served: Served) -> socket.socket:
    host, _, port = served.address.removeprefix("tcp:").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def rest(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            found += data
    return found


@pytest.mark.parametrize(
    "said",
    [
        ASKED,
        b"G",
        b"\x16\x03\x01",
        b"app-toolkit  ",
        b"app-toolkit http 1 " + SECRET + b"\n" + ASKED,
        first_line()[:-1] + b"\r\n",
        first_line() + ASKED,
    ],
    ids=["http", "a byte", "tls", "no word", "another version", "another end", "does not wait"],
)
def test_a_peer_that_sends_no_preface_is_refused_at_once(served: Served, said: bytes) -> None:
    with stranger(served) as connection:
        connection.sendall(said)
        assert rest(connection) == UNAUTHENTICATED


def readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def answered(connection: socket.socket, asked: bytes) -> bytes:
    """The replica's line, on the first line of a caller."""
    connection.sendall(asked)
    return connection.recv(RESPONSE, socket.MSG_WAITALL)


def test_a_peer_that_proves_to_know_the_secret_is_served(served: Served) -> None:
    with stranger(served) as connection:
        said = answered(connection, asked := first_line())
        connection.sendall(read_response(SECRET, asked, connection.getpeername(), said) + ASKED)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_wrong_proof_is_refused(served: Served) -> None:
    with stranger(served) as connection:
        nonce = answered(connection, asked := first_line())[:NONCE]
        proof = prove(b"x" * len(SECRET), "caller", asked, connection.getpeername(), nonce)
        connection.sendall(proof + b"\n" + ASKED)
        assert rest(connection) == UNAUTHENTICATED


def test_the_proof_of_the_replica_sent_back_is_refused(served: Served) -> None:
    with stranger(served) as connection:
        said = answered(connection, first_line())
        connection.sendall(said[NONCE + 1 :] + ASKED)
        assert rest(connection) == UNAUTHENTICATED


def test_a_recorded_proof_opens_no_other_connection(served: Served) -> None:
    with stranger(served) as known:
        said = answered(known, asked := first_line())
        known.sendall(proof := read_response(SECRET, asked, known.getpeername(), said))
        with stranger(served) as replaying:
            again = answered(replaying, asked)
            assert again != said
            replaying.sendall(proof + ASKED)
            assert rest(replaying) == UNAUTHENTICATED


def test_the_proof_for_another_replica_is_refused(served: Served) -> None:
    """A process that listens where a replica was could pass on what a real one asks."""
    with stranger(served) as connection:
        nonce = answered(connection, asked := first_line())[:NONCE]
        elsewhere = connection.getpeername()[0], connection.getpeername()[1] - 1
        connection.sendall(prove(SECRET, "caller", asked, elsewhere, nonce) + b"\n" + ASKED)
        assert rest(connection) == UNAUTHENTICATED


def test_a_peer_without_a_proof_that_sends_without_end_is_not_read(served: Served) -> None:
    with stranger(served) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.sendall(bytes(100_000_000))


class Door:
    """Where unauthenticated peers arrive, on TCP."""

    def __init__(self, unauthenticated: UnauthenticatedPeers) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

        replica = Replica(app, name="r", max_ongoing_requests=1, secret=SECRET)
        config = uvicorn.Config(replica, lifespan="off", log_config=None)
        config.load()
        self.state = ServerState()
        self.arrive = partial(
            UnauthenticatedConnection,
            config,
            self.state,
            {},
            None,
            replica=replica,
            secret=SECRET,
            unauthenticated=unauthenticated,
        )

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self.arrive, "127.0.0.1", 0)
        self.address = self.server.sockets[0].getsockname()

    async def knock(self, said: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(said)
        return reader, writer

    async def enter(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As a caller."""
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, self.address)
        await introduce(connection, SECRET)
        return await asyncio.open_connection(sock=connection)


@contextlib.asynccontextmanager
async def door(unauthenticated: UnauthenticatedPeers) -> AsyncIterator[Door]:
    made = Door(unauthenticated)
    await made.open()
    try:
        yield made
    finally:
        made.server.close()
    await until(lambda: not made.state.connections)
    assert len(unauthenticated) == 0


async def test_a_peer_without_a_proof_is_closed_after_a_short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unauthenticated, "MOMENT_S", 0.1)
    async with door(UnauthenticatedPeers(shown_s=0.05)) as at:
        for said, answered in (b"", 0), (BEGINNING, 0), (first_line(), RESPONSE):
            reader, writer = await at.knock(said)
            with contextlib.suppress(ConnectionResetError):
                assert len(await reader.read()) == answered
            writer.close()


async def test_the_oldest_unauthenticated_peer_is_closed_if_there_are_too_many() -> None:
    unauthenticated = UnauthenticatedPeers(shown_s=60.0, most=2)
    async with door(unauthenticated) as at:
        caller = await at.enter()
        await until(lambda: bool(at.state.connections) and not unauthenticated)
        knocked = []
        for _ in range(5):
            knocked.append(await at.knock())
        for reader, _ in knocked[:3]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        assert len(unauthenticated) == 2
        assert not caller[0].at_eof()
        for _, writer in (*knocked, caller):
            writer.close()


async def test_callers_that_come_all_at_once_come_in() -> None:
    unauthenticated = UnauthenticatedPeers(shown_s=60.0, most=2)
    async with door(unauthenticated) as at:
        callers = await asyncio.gather(*(at.enter() for _ in range(50)))
        await until(lambda: len(at.state.connections) == 50 and not unauthenticated)
        for _, writer in callers:
            writer.close()


@pytest.mark.parametrize(("shown_s", "most"), [(0.05, 64), (60.0, 0)], ids=["late", "one too many"])
def test_a_loop_that_is_kept_from_listening_does_not_take_callers_for_unauthenticated_peers(
    shown_s: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unauthenticated, "MOMENT_S", 0.1)

    async def keep() -> None:
        unauthenticated = UnauthenticatedPeers(shown_s, most)
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        async with door(unauthenticated) as at:
            with here, there, socket.create_connection(at.address) as caller:
                asked = first_line()
                says = [lambda: asked, lambda: read_response(SECRET, asked, at.address, caller.recv(RESPONSE))]

                def handle() -> None:
                    here.recv(1)
                    caller.sendall(says.pop(0)())
                    time.sleep(2 * unauthenticated.MOMENT_S + 0.1)  # longer than an unauthenticated peer has

                await until(lambda: bool(unauthenticated))
                loop.add_reader(here, handle)
                there.send(b"x")
                await until(lambda: not says or readable(caller))
                there.send(b"x")
                await until(lambda: not unauthenticated)
                assert len(at.state.connections) == 1
                loop.remove_reader(here)

    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(keep())


async def test_a_pool_proves_to_know_the_secret_on_idle_connections() -> None:
    unauthenticated = UnauthenticatedPeers(shown_s=60.0)
    async with door(unauthenticated) as at:
        pool = Pool(SECRET)
        address = Address("tcp:{}:{}".format(*at.address))
        pool.allow(address, 1)
        pool.dial(address, pool.give_back, cast(Any, pytest.fail))
        await until(lambda: pool.idle == 1)
        await until(lambda: len(at.state.connections) == 1 and not unauthenticated)
        await pool.aclose()


@given(
    change=st.none() | st.tuples(st.integers(0, 114), st.integers(1, 255)),
    cuts=st.lists(st.integers(1, 130), max_size=4),
)
def test_only_the_unchanged_proof_opens_a_connection(change: tuple[int, int] | None, cuts: list[int]) -> None:
    """`change`: which byte of the two lines, and how; `cuts`: where the pieces of both end."""

    async def become() -> str:
        unauthenticated = UnauthenticatedPeers()
        wire = Wire()
        talking = Door(unauthenticated).arrive()
        wire.protocol = talking
        talking.connection_made(wire)

        def say(line: bytes, begin: int) -> None:
            said = bytearray(line)
            if change is not None and 0 <= change[0] - begin < len(said):
                said[change[0] - begin] ^= change[1]
            at = sorted({0, len(said), *(cut - begin for cut in cuts if 0 < cut - begin < len(said))})
            for one, other in itertools.pairwise(at):
                if not wire.ended:
                    wire.protocol.data_received(bytes(said[one:other]))

        asked = first_line()
        say(asked, 0)
        if not wire.ended:
            nonce = wire.said[:NONCE]
            say(prove(SECRET, "caller", asked, wire.get_extra_info("sockname"), nonce) + b"\n", len(asked))
        became = "stranger" if wire.protocol is talking else "known"
        talking.connection_lost(None)
        assert len(unauthenticated) == 0
        return "refused" if wire.ended else became

    assert asyncio.run(become()) == ("known" if change is None else "refused")
