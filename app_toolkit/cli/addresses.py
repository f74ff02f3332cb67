"""Addresses, looked at before anything is started: a mistake in one is told at once, in a sentence."""

import errno
import socket

from app_toolkit.config.models import HTTPOptions
from app_toolkit.errors import ConfigError
from app_toolkit.proxy import tls

ANSWER_S = 5.0
"""How long the head of a cluster may take to accept a connection."""


def check(http: HTTPOptions, address: str | None) -> None:
    """Raises `ConfigError` where a proxy could not serve as it is told to, or there is no cluster to join."""
    # On a cluster the proxies listen on its nodes, which need not be this machine.
    if address is not None:
        check_cluster_answers(address)
        return
    tls.context(http)
    check_port_is_free(http.host, http.port)


def check_cluster_answers(address: str) -> None:
    """Raises `ConfigError` for an address where nobody listens, and for one of Ray Client.

    `auto` is Ray's to find. At any other, Ray itself would try for minutes, and could not be interrupted.
    """
    if address == "auto":
        return
    if address.startswith("ray://"):
        raise ConfigError(
            f"the address {address!r} is one of Ray Client, which carries no requests: run this on a node of "
            "the cluster, with the address of its head (HOST:6379)"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"the address {address!r} is neither 'auto' nor of the form HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error.strerror or error}") from None


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
