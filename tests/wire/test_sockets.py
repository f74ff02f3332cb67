"""What the sockets between two processes are told."""

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from app_toolkit.errors import ReplicaGone
from app_toolkit.types import Address
from app_toolkit.wire.pool import SMALL, Pool, PooledConnection, ResponseHead, connect
from app_toolkit.wire.preface import respond
from tests.forked import forked_child
from tests.patience import PATIENCE_S
from tests.wire.answering import SECRET, Answering


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_a_forked_child_keeps_no_connection_to_a_replica(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def caller() -> None:
        pool, in_use, accepted = Pool(SECRET), list[PooledConnection](), list[socket.socket]()
        for family, place in (socket.AF_UNIX, str(tmp_path / "r.sock")), (socket.AF_INET, ("127.0.0.1", 0)):
            with socket.socket(family) as listener:
                listener.bind(place)
                listener.listen()
                at = f"unix:{place}" if family == socket.AF_UNIX else f"tcp:127.0.0.1:{listener.getsockname()[1]}"
                address = Address(at)
                pool.allow(address, 10)
                used, idle = [await connection(pool, address, listener, accepted) for _ in range(2)]
                pool.give_back(idle)
                in_use.append(used)
        with forked_child():
            for used in in_use:
                used.abort()
            await pool.aclose()
            for each in accepted:
                with each:
                    each.settimeout(PATIENCE_S)
                    assert each.recv(1024) == b""

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(caller())


async def connection(
    pool: Pool, address: Address, listener: socket.socket, accepted: list[socket.socket]
) -> PooledConnection:
    """A connection of the pool, whose other end is added to `accepted`."""
    reached: asyncio.Future[PooledConnection] = asyncio.get_running_loop().create_future()
    pool.dial(address, reached.set_result, reached.set_exception)
    there, _ = await asyncio.to_thread(listener.accept)
    accepted.append(there)
    if listener.family == socket.AF_INET:
        response, proof = respond(SECRET, await asyncio.to_thread(there.recv, 65_536), there.getsockname())
        there.sendall(response)
        assert await asyncio.to_thread(there.recv, len(proof), socket.MSG_WAITALL) == proof
    return await reached


@pytest.mark.anyio
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system tries for as long as it likes")
async def test_a_small_request_has_to_be_acknowledged_in_time_and_a_large_one_may_be_read_slowly() -> None:
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: Answering(asyncio.Protocol()), "127.0.0.1", 0) as server:
        address = Address("tcp:{}:{}".format(*server.sockets[0].getsockname()))
        transport, connection = await connect(address, lambda: PooledConnection(address, lambda lost: None), SECRET)

        def patience() -> int:
            return transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

        for _ in range(2):
            connection.begin(Unheard())
            connection.write(b"small")
            assert patience() == 25_000
            connection.write_all([bytes(SMALL)])
            assert patience() == 0
        connection.abort()


class Unheard:
    """A listener that no answer comes to."""

    def informed(self, answer: ResponseHead) -> None: ...

    def response_started(self, answer: ResponseHead) -> None: ...

    def received(self, data: bytes) -> None: ...

    def ended(self, reusable: bool) -> None: ...

    def lost(self, error: ReplicaGone) -> None: ...

    def writing_paused(self, paused: bool) -> None: ...


def may_make_networks() -> bool:
    if any(shutil.which(tool) is None for tool in ("ip", "nsenter", "unshare")):
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not may_make_networks(), reason="needs a Linux that lets this user make networks")
def test_a_connection_to_a_machine_that_is_gone_without_a_word_ends() -> None:
    script = Path(__file__).with_name("cut_off.py")
    done = subprocess.run(["unshare", "--net", sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
