"""What the kernel is told of the sockets between two of our processes."""

import asyncio
import socket

IDLE_S = 10
"""Silence before the first probe."""

BETWEEN_S = 5
PROBES = 3
"""Unanswered ones after which the connection is broken: 25 s after its last byte."""

SENT_AHEAD = 512 * 1024
"""Bytes that it is asked to hold on one machine (it counts twice as many, and has a limit of its own). With the usual
208 KiB the two wake each other twice as often while a large body goes over."""


def keep_alive(connection: socket.socket) -> None:
    """Let it probe a TCP connection on which nobody speaks, to learn that the other machine is gone.

    Those that a listening socket accepts are probed as it would be.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, BETWEEN_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def send_ahead(transport: asyncio.BaseTransport) -> None:
    """Let it hold more of what is sent over a Unix socket; for TCP it finds the right size by itself."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD)
