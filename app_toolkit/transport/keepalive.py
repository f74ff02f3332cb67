"""How a TCP connection on which nobody speaks learns that the other machine is gone."""

import socket

IDLE_S = 10
"""Silence before the first probe."""

BETWEEN_S = 5
PROBES = 3
"""Unanswered ones after which the connection is broken: 25 s after its last byte."""


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel probe it; those that a listening socket accepts are probed as it would be."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, BETWEEN_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
