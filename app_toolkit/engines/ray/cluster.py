"""Finds a Ray cluster and checks that it answers, before Ray connects to it. Does not import Ray.

If nothing answers at an address, Ray itself tries for minutes, in code that Ctrl-C does not interrupt, and writes many
log lines to the terminal.
"""

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from app_toolkit.engines.ray import environment
from app_toolkit.errors import ConfigError

ADVICE = "start one with `ray start --head`, or set another address"
"""What to do if no cluster answers at an address."""

ACCEPT_S = 1.0
"""Seconds to connect to a cluster, if there are several."""

ANSWER_S = 8.0
"""Seconds to resolve the name of a cluster's head, to connect to it and to read its answer, all together."""

# The part of HTTP/2 (RFC 9113) and HPACK (RFC 7541) that one request needs.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 0x1, 0x4
POST, HTTP, AUTHORITY, PATH = b"\x83", b"\x86", b"\x01", b"\x04"
QUESTION = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""A call of Ray's control store without arguments. It is the first call of Ray's own clients."""


def refuse_url(address: str) -> None:
    """Raise `ConfigError` if the address is a URL."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"the address {address!r} is for Ray Client, which app_toolkit does not support: run this on a node of "
            "the cluster, with the address of its head (HOST:6379)"
        )
    if "://" in address:
        raise ConfigError(f"the address {address!r} is a URL: use HOST:6379 of the cluster's head")


def find(address: str, advice: str = ADVICE) -> str:
    """Return the `HOST:PORT` of a cluster that answers. `auto` means the only one of which this machine is a node.

    `advice`: what to do if no cluster answers.

    Raises `ConfigError` if the address is invalid, if it is `auto` and there are several clusters, if no cluster
    answers within `ANSWER_S`, if the cluster refuses the access token, or if no raylet of this user or root makes this
    machine a node of the cluster.

    The access token is sent only if there is such a raylet, because any user of this machine can start a process named
    `raylet`, or listen on a port.
    """
    refuse_url(address)
    nodes = list(live_raylets())
    trusted = [node for node in nodes if node.user in _trusted_users()]
    if address == "auto":
        if not nodes:
            raise ConfigError(
                "neither an instance nor a Ray cluster runs on this machine: start one with `app-toolkit up` or "
                "`ray start --head`"
            )
        if not trusted:
            raise ConfigError(
                f"the Ray cluster on this machine belongs to user {nodes[0].user}: run the command as this user, or "
                "start a cluster of your own with `ray start --head`"
            )
        address = only_cluster(trusted)
    host, port = _parsed(address)
    of_port = [node for node in nodes if node.cluster.rpartition(":")[2] == str(port)]
    is_node = any(node in trusted for node in of_port)
    try:
        _ask(address, host, port, environment.token() if is_node else None, is_node=is_node)
    except OSError as error:
        raise ConfigError(f"no Ray cluster answers at {address}{_reason(error)}; {advice}") from None
    if is_node:
        return address
    if of_port:
        raise ConfigError(
            f"the node of the Ray cluster at {address} on this machine belongs to user {of_port[0].user}: run the "
            "command as this user"
        )
    raise ConfigError(f"this machine is not a node of the Ray cluster at {address}: run the command on one")


def check(address: str) -> None:
    """Raise as `find` does, before Ray is imported, which takes time. For `auto`, do nothing: the engine calls it."""
    if address != "auto":
        find(address)


@dataclass(frozen=True, slots=True)
class Raylet:
    """A raylet on this machine."""

    cluster: str
    user: int
    """The user that started it."""


def _trusted_users() -> set[int]:
    return {0, os.geteuid()}


def live_raylets() -> Iterator[Raylet]:
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "raylet":
            with suppress(psutil.Error):
                for argument in process.cmdline():
                    name, _, cluster = argument.partition("=")
                    if name == "--gcs-address":
                        # Not the effective user: any user can start a program that runs as root, such as `su`.
                        yield Raylet(cluster, process.uids().real)


def only_cluster(nodes: Iterable[Raylet]) -> str:
    """Return the address of the cluster of these nodes. Raises `ConfigError` if they belong to several."""
    clusters = sorted({node.cluster for node in nodes})
    if len(clusters) > 1:  # a raylet goes on for a minute if the head of its cluster has ended
        clusters = [cluster for cluster in clusters if _accepts(cluster)] or clusters
    if len(clusters) > 1:
        raise ConfigError(
            f"this machine is a node of several Ray clusters, at {', '.join(clusters)}: name one of them with "
            "--address or RAY_ADDRESS"
        )
    return clusters[0]


def _accepts(cluster: str) -> bool:
    with suppress(OSError, ConfigError), socket.create_connection(_parsed(cluster), timeout=ACCEPT_S):
        return True
    return False


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"the address {address!r} is neither 'auto' nor of the form HOST:PORT")
    return host.strip("[]"), int(port)


def _ask(address: str, host: str, port: int, token: str | None, *, is_node: bool) -> None:
    """Raise `OSError` if no Ray cluster answers, or with `is_node`, `ConfigError` if it does not accept the token."""
    deadline = time.monotonic() + ANSWER_S
    with _connected(host, port, deadline) as connection:
        if environment.uses_tls():
            return
        connection.sendall(PREFACE + _frame(SETTINGS, 0, 0, b"") + _question(address, token))
        kind = _answer(connection, deadline)
    if kind is None:
        raise OSError("something else listens there")
    if is_node and kind == HEADERS and environment.decides_by_token():
        if token is None:
            raise ConfigError(
                f"the Ray cluster at {address} asks for an access token: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or "
                "copy the file ~/.ray/auth_token of its head"
            )
        raise ConfigError(
            f"the Ray cluster at {address} refuses the access token of this process: use that of its head "
            "(RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token)"
        )


def _reason(error: OSError) -> str:
    return f" within {ANSWER_S:g} s" if isinstance(error, TimeoutError) else f": {error.strerror or error}"


def _connected(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first address of the host that accepts a connection. Raises `OSError`."""
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, address in _resolved(host, port, deadline):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_left(deadline))
            connection.connect(address)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


def _resolved(host: str, port: int, deadline: float) -> list[Any]:
    """Resolve a host in a thread, because `socket.getaddrinfo` has no timeout.

    The thread continues if the deadline passes. Raises `OSError`.
    """
    entries: list[Any] = []

    def resolve() -> None:
        try:
            entries.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            entries.append(error)

    thread = threading.Thread(target=resolve, name="resolve the address of a Ray cluster", daemon=True)
    thread.start()
    thread.join(_left(deadline))
    if not entries:
        raise TimeoutError
    (result,) = entries
    if isinstance(result, UnicodeError):
        raise OSError("the host name is invalid")
    if isinstance(result, OSError):
        raise result
    return list(result)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _answer(connection: socket.socket, deadline: float) -> int | None:
    """Return the kind of the response: `DATA` for a result, `HEADERS` for an error, None if it is not gRPC."""
    while len(head := _read(connection, 9, deadline)) == 9:
        size, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
        if size > 16_384 or kind in (RST_STREAM, GOAWAY):
            return None
        _read(connection, size, deadline)
        if kind == DATA or (kind == HEADERS and flags & END_STREAM):
            return kind
    return None


def _read(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Read `size` bytes, or fewer if the connection ends."""
    data = b""
    while len(data) < size:
        connection.settimeout(_left(deadline))
        part = connection.recv(size - len(data))
        if not part:
            break
        data += part
    return data


def _question(address: str, token: str | None) -> bytes:
    fields = {"te": "trailers", "content-type": "application/grpc"}
    if token is not None:
        fields["authorization"] = f"Bearer {token}"
    block = POST + HTTP + PATH + _text(QUESTION) + AUTHORITY + _text(address)
    block += b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    empty_message = bytes(5)
    return _frame(HEADERS, END_HEADERS, 1, block) + _frame(DATA, END_STREAM, 1, empty_message)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _text(text: str) -> bytes:
    """Encode a string literal of HPACK: the length as an integer with a 7-bit prefix, then the bytes."""
    data = text.encode("latin-1", "replace")
    size, length = len(data), bytearray()
    if size < 127:
        return bytes((size,)) + data
    size -= 127
    length.append(127)
    while size >= 128:
        length.append(size % 128 + 128)
        size //= 128
    length.append(size)
    return bytes(length) + data
