"""What systemd passes to a service, and what the service reports: see `sd_listen_fds(3)` and `sd_notify(3)`."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress

from app_toolkit.errors import ConfigError

FIRST = 3
"""The file descriptor of the first socket that systemd passes."""


def listener() -> socket.socket | None:
    """Return the listening socket of the unit, also if it was returned before. None: systemd has passed none.

    Raises `ConfigError` if there are several sockets, or it is not one at which TCP clients connect.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):  # the variables may be those of another process
        return None
    number = os.environ.get("LISTEN_FDS", "")
    if number != "1":
        raise ConfigError(
            f"systemd passes {number or 'no'} sockets (LISTEN_FDS), and must pass 1: use one ListenStream"
        )
    passed = socket.socket(fileno=os.dup(FIRST))
    is_tcp = passed.family in (socket.AF_INET, socket.AF_INET6) and passed.type == socket.SOCK_STREAM
    if not is_tcp or not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        passed.close()
        raise ConfigError("the socket that systemd passes must listen on a TCP port: set ListenStream to HOST:PORT")
    return passed


def take() -> tuple[socket.socket | None, Callable[[str], None]]:
    """Return the listening socket of the unit, and a function that reports a state, such as `READY=1`.

    Other processes of this instance do not see that systemd has started it. Raises as `listener` does.
    """
    passed = listener()
    if passed is not None:
        os.close(FIRST)
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    address = os.environ.pop("NOTIFY_SOCKET", "")

    def notify(state: str) -> None:
        if address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)

    return passed, notify
