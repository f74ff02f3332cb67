"""Checks of the address that a proxy will listen on, before any process is started."""

import errno
import socket

from app_toolkit.config.models import HTTPOptions
from app_toolkit.edge import tls
from app_toolkit.errors import ConfigError


def check(http: HTTPOptions, *, is_bound: bool = False) -> None:
    """Raise `ConfigError` if a proxy on this machine could not listen with these options.

    `is_bound`: the proxy inherits a socket, which is bound already.
    """
    tls.context(http)
    if not is_bound:
        check_port_is_free(http.host, http.port)


def check_port_is_free(host: str, port: int) -> None:
    """Raise `ConfigError` if the port cannot be bound. Port 0 is always free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"the host {host!r} has no address: {error.strerror}") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"port {port} on {host} is in use") from None
            raise ConfigError(f"port {port} on {host} cannot be bound: {error.strerror}") from None
