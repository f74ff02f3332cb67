"""The behavior of `breakpoint()` in a replica: a warning, or a debugger that only this user can connect to."""

import contextlib
import logging
import pdb
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from app_toolkit import private

logger = logging.getLogger("app_toolkit.replica")

MOST_PLACES = 1_000
"""Maximum number of code lines that are remembered, so that each line logs only one warning."""


class Breakpoints:
    """Replaces Ray's own debugger, which waits without limit and listens on the node's network address."""

    def __init__(self, address: Path | None) -> None:
        """`address`: the path of the socket on which a `breakpoint()` is debugged; None: it only logs a warning."""
        self._address = address
        self._seen: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def install(self) -> None:
        sys.breakpointhook = self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        frame = sys._getframe(1)
        place = frame.f_code.co_filename, frame.f_lineno
        if self._address is not None:
            with self._lock:  # one at a time
                debug(frame, self._address)
            return
        with self._lock:
            if place in self._seen or len(self._seen) >= MOST_PLACES:
                return
            self._seen.add(place)
        logger.warning(
            "breakpoint() at %s:%d does nothing in a replica: use `app-toolkit dev`, or set APP_TOOLKIT_DEBUGGER=1",
            *place,
        )


def debug(frame: FrameType, address: Path) -> None:
    """Wait for a client on a socket in a private folder, and run the Python debugger for it from the next line on."""
    private.folder(address.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        address.unlink(missing_ok=True)
        listener.bind(str(address))
        address.chmod(0o600)
        listener.listen(1)
        logger.warning(
            "breakpoint() at %s:%d waits: connect with `nc -U %s`", frame.f_code.co_filename, frame.f_lineno, address
        )
        try:
            client, _ = listener.accept()
        finally:
            address.unlink(missing_ok=True)
    Session(client).set_trace(frame)


class Session(pdb.Pdb):
    """The debugger for one client. It ends on `continue`, `quit` or a disconnect, and the code continues."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        # Two file objects: a single one for both directions discards what it has read ahead when it is written to.
        self._input, self._shown = client.makefile("r"), client.makefile("w")
        super().__init__(stdin=self._input, stdout=self._shown, nosigint=True, readrc=False)

    def interaction(self, frame: Any, traceback: Any) -> None:
        try:
            super().interaction(frame, traceback)
        except OSError:  # the client has disconnected
            self.do_continue("")

    def do_continue(self, arg: str) -> bool | None:
        for each in (self._input, self._shown, self._client):
            with contextlib.suppress(OSError):
                each.close()
        self.set_continue()
        return True

    do_c = do_cont = do_quit = do_q = do_exit = do_EOF = do_continue
