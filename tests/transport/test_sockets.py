"""What the sockets between two processes are told."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest

from app_toolkit.errors import ReplicaGone
from app_toolkit.transport.pool import SMALL, PooledConnection, ResponseHead, connect
from app_toolkit.transport.preface import respond
from app_toolkit.types import Address
from tests.patience import PATIENCE_S
from tests.transport.answering import SECRET, Answering

CALLER = """
    import asyncio, os, sys, time
    import uvloop
    from app_toolkit.transport.pool import Pool

    async def dialled(pool, address):
        reached = asyncio.get_running_loop().create_future()
        pool.dial(address, reached.set_result, reached.set_exception)
        return await reached

    async def main(*addresses):
        pool = Pool(b"secret")
        kept = []
        for address in addresses:
            pool.allow(address, 10)
            used, idle = await dialled(pool, address), await dialled(pool, address)
            pool.give_back(idle)
            kept.append(used)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=getattr(sys.modules[sys.argv[1]], "new_event_loop")) as runner:
        runner.run(main(*sys.argv[2:]))
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_forked_child_keeps_no_connection_to_a_replica(tmp_path: Path, loop: str) -> None:
    with ExitStack() as stack:
        unix, tcp = (stack.enter_context(socket.socket(family)) for family in (socket.AF_UNIX, socket.AF_INET))
        unix.bind(str(tmp_path / "r.sock"))
        tcp.bind(("127.0.0.1", 0))
        unix.listen()
        tcp.listen()
        addresses = f"unix:{tmp_path}/r.sock", f"tcp:127.0.0.1:{tcp.getsockname()[1]}"
        caller = subprocess.Popen([sys.executable, "-c", dedent(CALLER), loop, *addresses], stdout=subprocess.PIPE)
        child = None
        try:
            assert caller.stdout is not None
            connections = [stack.enter_context(listener.accept()[0]) for listener in (unix, unix)]
            for _ in range(2):
                connections.append(connection := stack.enter_context(tcp.accept()[0]))
                said, expected = respond(SECRET, connection.recv(65_536), connection.getsockname())
                connection.sendall(said)
                assert connection.recv(len(expected), socket.MSG_WAITALL) == expected
            child = int(caller.stdout.readline())
            caller.kill()
            caller.wait(PATIENCE_S)
            for connection in connections:
                connection.settimeout(PATIENCE_S)
                assert connection.recv(1024) == b""
        finally:
            if child is not None:
                os.kill(child, signal.SIGKILL)
            caller.kill()
            caller.communicate()


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
