"""Sends a probe to a replica through the socket that its callers use."""

import socket
import time

from app_toolkit.wire import hop
from app_toolkit.wire.sockets import check_peer

AGAIN_S = 0.01
"""Delay in seconds before a new attempt to connect while the accept queue is full."""

PEERS = hop.peers(None, None, "http")


def ask(path: str, secret: bytes, timeout: float) -> None:
    """Connect to the socket and read the response to a probe. No user code runs. Blocks for at most `timeout` seconds.

    Raises `TimeoutError` if there is no response in time, and another `OSError` if the path does not lead to the
    replica. If a process of another user listens there, nothing is sent to it.
    """
    until = time.monotonic() + timeout
    head = b"HEAD / HTTP/1.1\r\n%b: %b\r\n%b: 1\r\nhost: replica\r\nconnection: close\r\n\r\n" % (
        hop.HOP,
        hop.encode(hop.token(secret), b"probe", b"1.1", PEERS),
        hop.PROBE,
    )
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(timeout)
        _connect(asking, path, until)
        check_peer(asking)
        asking.sendall(head)
        received = b""
        while b"\r\n" not in received:
            asking.settimeout(max(until - time.monotonic(), 0.001))
            data = asking.recv(1_024)
            if not data:
                raise ConnectionError("the connection ended without an answer")
            received += data
    status = received.partition(b"\r\n")[0]
    if not status.startswith(b"HTTP/1.1 204"):
        raise ConnectionError(f"the answer was {status!r}")


def _connect(asking: socket.socket, path: str, until: float) -> None:
    while True:
        try:
            return asking.connect(path)
        except BlockingIOError:  # the accept queue is full
            if time.monotonic() + AGAIN_S > until:
                raise TimeoutError(f"nothing was accepted at {path}") from None
            time.sleep(AGAIN_S)
