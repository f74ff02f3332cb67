"""One port for the proxies of one instance on one host, and for nobody else."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app_toolkit import private
from app_toolkit.config.models import HTTPOptions
from app_toolkit.proxy.server import bind


class SharedPort:
    """A listening place that others of the same instance may have as well.

    The kernel shares a port among all of one user who ask for it (`SO_REUSEPORT`), also with another instance. So
    the first of ours asks for the port alone, which is refused where anybody has it, and then shares it with those
    who know the folder: each holds a lock on a file there, which ends with its process, however that ends.

    Between the two questions of the first another instance may take the port, if it shares, too. Nothing but that
    moment is left open.
    """

    def __init__(self, options: HTTPOptions, folder: Path) -> None:
        """`folder` is the own one of the instance on this host.

        Raises `StartupError`, and `InsecurePath` if other users could change what is in it.
        """
        folder = private.folder(folder)
        if not options.port:
            with bind(options) as free:
                options = options.model_copy(update={"port": free.getsockname()[1]})
        place = folder / f"port-{options.port}"
        with _turn(place.with_suffix(".turn")):
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
def _turn(path: Path) -> Iterator[None]:
    """One of ours at a time; a moment each."""
    turn = private.open_file(path, os.O_RDWR)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
    finally:
        os.close(turn)


def _is_free(file: int) -> bool:
    """Whether nobody holds the lock; if so, we do."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
