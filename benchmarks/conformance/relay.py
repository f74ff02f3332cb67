"""A relay that cuts connections, as a proxy that is replaced and a network that fails do."""

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK = 65_536
RESET = struct.pack("ii", 1, 0)
"""`SO_LINGER` for 0 s: closing the socket resets its connection."""


@contextmanager
def cutting(port: int, after: int) -> Iterator[int]:
    """Relay to a server on this machine until the end of the block, and yield the port of the relay.

    Parameters:
        port: Port of the server.
        after: Bytes of the server after which each connection is reset, in the middle of an event or not.
    """

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            with socket.create_connection(("127.0.0.1", port)) as upstream:
                reading = threading.Thread(target=_copy, args=(client, upstream))
                reading.start()
                with suppress(OSError):
                    _send(upstream, client, after)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                for each in (client, upstream):
                    with suppress(OSError):
                        each.shutdown(socket.SHUT_RD)  # closing a socket that another thread reads does nothing
                reading.join()
            client.close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as relay:
        thread = threading.Thread(target=relay.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield int(relay.server_address[1])
        finally:
            relay.shutdown()
            thread.join()


def _send(upstream: socket.socket, client: socket.socket, after: int) -> None:
    """Copy so many bytes, or fewer if the server ends first."""
    while after and (data := upstream.recv(min(after, CHUNK))):
        client.sendall(data)
        after -= len(data)


def _copy(client: socket.socket, upstream: socket.socket) -> None:
    with suppress(OSError):
        while data := client.recv(CHUNK):
            upstream.sendall(data)
        upstream.shutdown(socket.SHUT_WR)
