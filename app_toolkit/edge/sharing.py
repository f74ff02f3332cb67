"""A port that the proxies of one instance on one host share exclusively."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app_toolkit import private
from app_toolkit.config.models import HTTPOptions
from app_toolkit.edge.server import bind


class SharedPort:
    """A listening socket whose port is shared with other processes of the same instance.

    The kernel shares a port among all processes of one user that set `SO_REUSEPORT`, even those of different instances.
    So the first process of an instance binds the port exclusively, which fails if the port is in use. Then it binds the
    port again, shared with the processes that use the same folder. Each process holds a lock on a file there, which the
    kernel releases when the process ends.

    Between the two calls of bind, another instance may bind the port if it also sets `SO_REUSEPORT`. This race remains.
    """

    def __init__(self, options: HTTPOptions, folder: Path) -> None:
        """Bind the port.

        Parameters:
            options: The address. Port 0: any free port.
            folder: The folder of the instance on this host.

        Raises:
            StartupError: The address cannot be bound.
            InsecurePath: Other users could change the content of the folder.
        """
        folder = private.folder(folder)
        if not options.port:
            with bind(options) as free:
                options = options.model_copy(update={"port": free.getsockname()[1]})
        place = folder / f"port-{options.port}"
        with _exclusive_lock(place.with_suffix(".turn")):
            self._held = private.open_file(place, os.O_RDWR)
            try:
                if _is_free(self._held):
                    bind(options).close()
                self.socket: socket.socket = bind(options, shared=True)
                try:
                    fcntl.flock(self._held, fcntl.LOCK_SH)
                except BaseException:
                    self.socket.close()
                    raise
            except BaseException:
                os.close(self._held)
                raise

    def close(self) -> None:
        self.socket.close()
        os.close(self._held)


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, so that the processes of the instance bind one after another."""
    turn = private.open_file(path, os.O_RDWR)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
    finally:
        os.close(turn)


def _is_free(file: int) -> bool:
    """Try to acquire the exclusive lock on a file. Return whether it was free."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
