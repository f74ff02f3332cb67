"""Addresses, looked at before anything is started: a mistake in one is told at once, in a sentence."""

import errno
import socket

from app_toolkit.config.models import HTTPOptions
from app_toolkit.engines.ray import cluster
from app_toolkit.errors import ConfigError
from app_toolkit.proxy import tls


def check(http: HTTPOptions, address: str | None) -> None:
    """Raises `ConfigError` where a proxy could not serve as it is told to, or there is no cluster to join."""
    # On a cluster the proxies listen on its nodes, which need not be this machine.
    if address is not None:
        if address != "auto":  # which the engine looks for
            cluster.find(address)
        return
    tls.context(http)
    check_port_is_free(http.host, http.port)


def check_port_is_free(host: str, port: int) -> None:
    """Raises `ConfigError` where nobody could listen there; port 0 is always free."""
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
