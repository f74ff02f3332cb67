"""Two machines with a cable between them, and what a caller on one hears when the other is gone without a word.

Run as a script, in a network namespace of its own; it ends with 0 where the connection ended in time.
"""

import asyncio
import socket
import subprocess
import sys
import time

from app_toolkit.types import Address
from app_toolkit.wire import sockets
from app_toolkit.wire.pool import Pool, PooledConnection, ResponseHead
from app_toolkit.wire.preface import respond

HERE, THERE, PORT = "10.111.0.1", "10.111.0.2", 8000


class Asking:
    """A request that is never answered, and what is heard of it."""

    def __init__(self, connection: PooledConnection) -> None:
        self.over: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        connection.begin(self)
        connection.write(b"GET / HTTP/1.1\r\n\r\n")

    def informed(self, answer: ResponseHead) -> None: ...

    def response_started(self, answer: ResponseHead) -> None: ...

    def received(self, data: bytes) -> None: ...

    def ended(self, reusable: bool) -> None: ...

    def lost(self, error: Exception) -> None:
        self.over.set_result(time.monotonic())

    def writing_paused(self, paused: bool) -> None: ...


class Node:
    """The other machine: a process in a network of its own, which says a line for whatever it is sent."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["unshare", "--net", sys.executable, __file__, "listen"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.says()
        self.id = str(self._process.pid)

    def says(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline()

    def listen(self) -> None:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        self.says()

    def ip(self, *words: str) -> None:
        subprocess.run(["nsenter", "--net", "--target", self.id, "ip", *words], check=True)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def listen() -> None:
    print(flush=True)
    input()
    with socket.create_server((THERE, PORT)) as listener:
        print(flush=True)
        accepted, _ = listener.accept()
        with accepted:
            said, expected = respond(b"secret", accepted.recv(65_536), accepted.getsockname())
            accepted.sendall(said)
            assert accepted.recv(len(expected), socket.MSG_WAITALL) == expected
            while accepted.recv(65_536):
                pass


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


async def call(node: Node) -> None:
    ip("link", "add", "here", "type", "veth", "peer", "name", "there", "netns", node.id)
    ip("address", "add", f"{HERE}/24", "dev", "here")
    ip("link", "set", "here", "up")
    node.ip("address", "add", f"{THERE}/24", "dev", "there")
    node.ip("link", "set", "there", "up")
    await asyncio.to_thread(node.listen)

    pool = Pool(b"secret")
    address = Address(f"tcp:{THERE}:{PORT}")
    pool.allow(address, 10)
    reached: asyncio.Future[PooledConnection] = asyncio.get_running_loop().create_future()
    pool.dial(address, reached.set_result, reached.set_exception)
    connection = await reached

    node.ip("address", "flush", "dev", "there")  # what is sent there is dropped from now on
    assert connection.usable, "nobody knows yet"
    began = time.monotonic()
    asking = Asking(connection)
    async with asyncio.timeout(60):  # by itself the kernel tries for a quarter of an hour
        took = await asking.over - began
    assert took > 0.5, took
    assert not connection.usable
    await pool.aclose()


if __name__ == "__main__":
    if "listen" in sys.argv:
        listen()
    else:
        sockets.UNACKNOWLEDGED_S = 1
        node = Node()
        try:
            asyncio.run(call(node))
        finally:
            node.close()
