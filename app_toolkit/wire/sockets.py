"""Options and checks of the sockets between callers and replicas."""

import asyncio
import contextlib
import errno
import os
import resource
import socket
import struct
from collections.abc import Iterable
from typing import Protocol, runtime_checkable
from weakref import WeakSet

from app_toolkit.errors import NotWell

IDLE_S = 10
"""Idle seconds before the first TCP keep-alive probe."""

PROBE_INTERVAL_S = 5
"""Seconds between two TCP keep-alive probes."""

PROBES = 3
"""Unanswered probes, `PROBE_INTERVAL_S` seconds apart, after which the connection breaks: 25 s after its last byte."""

UNACKNOWLEDGED_S = IDLE_S + PROBES * PROBE_INTERVAL_S
"""Seconds that sent bytes may remain unacknowledged, as long as a connection may be idle and not answer probes. While
bytes are unacknowledged, the kernel sends no probes, and by default retransmits for about 15 minutes. In this time, it
retransmits six times."""

SENT_AHEAD = 512 * 1024
"""The requested send buffer of a Unix socket, in bytes. The kernel doubles the value, and has a limit. With the default
of 208 KiB, the two processes wake each other twice as often during the transfer of a large body."""

LAST_WORDS = 1024 * 1024
"""The most bytes that are read after a write has failed. This is enough for the receive buffer of a socket."""

CREDENTIALS = struct.Struct("iII")
"""The kernel's `struct ucred`: process id, user id and group id."""


@runtime_checkable
class File(Protocol):
    """An object with a file descriptor, which is -1 once the object is closed."""

    def fileno(self) -> int: ...


_not_inherited: WeakSet[File | asyncio.BaseTransport] = WeakSet()


def close_in_children(ours: File | asyncio.BaseTransport) -> None:
    """Close a socket in processes that user code forks. Otherwise the connection would stay open until they end."""
    _not_inherited.add(ours)


def _close_inherited() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for ours in _not_inherited:
        inner = ours if isinstance(ours, File) else ours.get_extra_info("socket")
        if inner is not None and inner.fileno() >= 0:
            # Replaced, not closed, because objects in the child still refer to these descriptors.
            os.dup2(nothing, inner.fileno(), inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):  # missing on platforms without fork
    os.register_at_fork(after_in_child=_close_inherited)


def check_peer(connection: socket.socket) -> None:
    """Raise `PermissionError` if the process at the other end of a Unix socket belongs to another user.

    Root is allowed, because it can read and change this process anyway. Does nothing on systems without `SO_PEERCRED`.
    """
    if hasattr(socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        _, user, _ = CREDENTIALS.unpack(credentials)
        if user not in (0, os.geteuid()):
            raise PermissionError(f"user {user} is at the other end, and must be user {os.geteuid()} or root")


def keep_alive(connection: socket.socket) -> None:
    """Enable keep-alive probes on a TCP connection, to detect that the other machine is unreachable.

    Connections that a listening socket accepts inherit these options.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def expect_acknowledgement(transport: asyncio.BaseTransport, expected: bool) -> None:
    """Set whether a TCP connection breaks if sent bytes remain unacknowledged for `UNACKNOWLEDGED_S`.

    Enable this only if the other end reads all bytes without delay, because the connection also breaks if a running
    process reads nothing for this time. Does nothing on systems without `TCP_USER_TIMEOUT`.
    """
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
        timeout_ms = UNACKNOWLEDGED_S * 1_000 if expected else 0
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


def last_words(transport: asyncio.BaseTransport) -> Iterable[bytes]:
    """Read the bytes in the kernel's receive buffer of a lost connection, at most `LAST_WORDS` bytes."""
    left = LAST_WORDS
    connection: socket.socket = transport.get_extra_info("socket")
    # An OSError means: no more bytes, a reset, or no free file descriptor for `dup`.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as rest:
        while left > 0:
            data = rest.recv(min(left, 65_536), socket.MSG_DONTWAIT)
            if not data:
                return
            left -= len(data)
            yield data


def send_ahead(transport: asyncio.BaseTransport) -> None:
    """Enlarge the send buffer of a Unix socket. For TCP, the kernel adjusts the size itself."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD)


def check_descriptors() -> None:
    """Raise `NotWell` if this process cannot open another file, because it then cannot accept connections."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno != errno.EMFILE:
            return
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise NotWell(
            f"the process has used up its file descriptors: its limit (RLIMIT_NOFILE) is {limit}; raise it with "
            "`ulimit -n`, or lower max_open_websockets"
        ) from None
