"""What the kernel is told of the sockets between two of our processes."""

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
"""Silence before the first probe."""

BETWEEN_S = 5
PROBES = 3
"""Unanswered ones after which the connection is broken: 25 s after its last byte."""

UNACKNOWLEDGED_S = IDLE_S + PROBES * BETWEEN_S
"""How long the other machine may leave unacknowledged what was sent: as long as it may be silent. The kernel does not
probe meanwhile, and would by itself go on trying for a quarter of an hour. It has sent it again six times by then."""

SENT_AHEAD = 512 * 1024
"""Bytes that it is asked to hold on one machine (it counts twice as many, and has a limit of its own). With the usual
208 KiB the two wake each other twice as often while a large body goes over."""

LAST_WORDS = 1024 * 1024
"""Bytes that are still read where a write has failed: what a socket holds, and not without end."""

CREDENTIALS = struct.Struct("iII")
"""A process, its user and its group."""


@runtime_checkable
class File(Protocol):
    """Whatever has a descriptor, -1 once it is closed."""

    def fileno(self) -> int: ...


_not_inherited: WeakSet[File | asyncio.BaseTransport] = WeakSet()


def close_in_children(ours: File | asyncio.BaseTransport) -> None:
    """Keep it out of processes that user code forks: whoever is at its other end would wait for them to end."""
    _not_inherited.add(ours)


def _close_inherited() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for ours in _not_inherited:
        inner = ours if isinstance(ours, File) else ours.get_extra_info("socket")
        if inner is not None and inner.fileno() >= 0:
            # Replaced, not closed: the objects that own these numbers live on in the child.
            os.dup2(nothing, inner.fileno(), inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):  # else nobody forks there
    os.register_at_fork(after_in_child=_close_inherited)


def check_peer(connection: socket.socket) -> None:
    """Raises `PermissionError` if another user is at the other end of a Unix socket, where the system can say so.

    Root may be there: it can read and change this process anyway.
    """
    if hasattr(socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        _, user, _ = CREDENTIALS.unpack(credentials)
        if user not in (0, os.geteuid()):
            raise PermissionError(f"user {user} is at the other end, and must be user {os.geteuid()} or root")


def keep_alive(connection: socket.socket) -> None:
    """Let it probe a TCP connection on which nobody speaks, to learn that the other machine is gone.

    Those that a listening socket accepts are probed as it would be.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, BETWEEN_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def expect_acknowledgement(transport: asyncio.BaseTransport, wanted: bool) -> None:
    """Break a TCP connection on which somebody speaks once the other machine is gone, where the system can; or do not.

    Wanted where the other end reads all that is sent: a reader that lives, and takes nothing for so long, is broken off
    with it.
    """
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
        patience = UNACKNOWLEDGED_S * 1_000 if wanted else 0
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)


def last_words(transport: asyncio.BaseTransport) -> Iterable[bytes]:
    """What the kernel still holds for a connection that was lost; at most `LAST_WORDS` bytes."""
    left = LAST_WORDS
    connection: socket.socket = transport.get_extra_info("socket")
    # No more came, or a reset behind it, or no descriptor is left to look with.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as rest:
        while left > 0:
            data = rest.recv(min(left, 65_536), socket.MSG_DONTWAIT)
            if not data:
                return
            left -= len(data)
            yield data


def send_ahead(transport: asyncio.BaseTransport) -> None:
    """Let it hold more of what is sent over a Unix socket; for TCP it finds the right size by itself."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD)


def check_descriptors() -> None:
    """Raises `NotWell` if this process cannot open another file: it accepts no connection then."""
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
