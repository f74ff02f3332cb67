"""What a process has started and opened while it imported an app, and what therefore prevents a fork of it.

After a fork, threads do not exist in the child, and both processes use the same connections and the same event loop.
"""

import os
import socket
import threading
from contextlib import suppress


class Inheritance:
    """Finds what a process has started and opened since this object was created."""

    def __init__(self) -> None:
        self._before = _descriptors()

    def obstacles(self) -> list[str]:
        """Return why this process must not be forked, as parts of a sentence. Empty: it can be forked.

        Threads of native libraries do not count: libraries such as OpenBLAS start theirs again after a fork.
        """
        main = threading.main_thread()
        threads = [thread.name for thread in threading.enumerate() if thread is not main]
        opened = {
            obstacle
            for number, target in _descriptors().items()
            if self._before.get(number) != target and (obstacle := _obstacle(number, target)) is not None
        }
        return [*([f"it starts the threads {', '.join(threads)}"] if threads else []), *sorted(opened)]


def _descriptors() -> dict[int, str]:
    """Return what the open file descriptors of this process refer to."""
    sockets = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing
            sockets[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return sockets


def _obstacle(number: int, target: str) -> str | None:
    """Return why a fork must not inherit a file descriptor, as a part of a sentence; None: it can inherit it."""
    if target.startswith("/dev/nvidia"):
        return "it uses a GPU"
    if target == "anon_inode:[eventpoll]":
        return "it creates an event loop"
    if target.startswith("socket:"):
        with socket.socket(fileno=os.dup(number)) as opened:
            try:
                opened.getpeername()
            except OSError:  # it is not connected
                return None
            return "it opens a connection" if opened.type == socket.SOCK_STREAM else None
    return None
