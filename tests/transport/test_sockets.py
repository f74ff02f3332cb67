"""What the sockets between two processes are told."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest

CALLER = """
    import asyncio, os, sys, time
    import uvloop
    from app_toolkit.transport.pool import Pool

    async def dialled(pool, address, **options):
        reached = asyncio.get_running_loop().create_future()
        pool.dial(address, reached.set_result, reached.set_exception, **options)
        return await reached

    async def main(*addresses):
        pool = Pool(b"secret")
        kept = []
        for address in addresses:
            pool.allow(address, 10, trunks=True)
            used, idle = await dialled(pool, address), await dialled(pool, address)
            circuit = await dialled(pool, address, small=True)
            pool.give_back(idle)
            kept += [used, circuit]
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
def test_what_user_code_forks_keeps_no_connection_to_a_replica(tmp_path: Path, loop: str) -> None:
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
            child = int(caller.stdout.readline())
            connections = [stack.enter_context(listener.accept()[0]) for listener in (unix, tcp) for _ in range(3)]
            caller.kill()
            caller.wait(5)
            for connection in connections:
                connection.settimeout(1)
                while connection.recv(1024):
                    pass  # how a trunk begins
        finally:
            if child is not None:
                os.kill(child, signal.SIGKILL)
            caller.kill()
            caller.communicate()
