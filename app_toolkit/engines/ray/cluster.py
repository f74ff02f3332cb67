"""Looks for a Ray cluster, and whether it answers, before Ray connects to it. Imports no Ray.

If nobody answers at an address, Ray itself tries for minutes, in code that a Ctrl-C does not interrupt, and fills the
terminal with its log.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from app_toolkit.config import settings
from app_toolkit.errors import ConfigError

ANSWER_S = 8.0
"""Seconds within which the head of a cluster has to answer a connection, and then a question."""

CURRENT = Path("/tmp/ray/ray_current_cluster")
"""The address of the last cluster that `ray start` started on this machine."""

# What we know of HTTP/2 (RFC 9113) and HPACK (RFC 7541): enough to ask one question.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 0x1, 0x4
POST, HTTP, AUTHORITY, PATH = b"\x83", b"\x86", b"\x01", b"\x04"
QUESTION = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""A call of Ray's control store that takes no arguments, and that Ray's own clients begin with."""


def find(address: str) -> str:
    """`HOST:PORT` of a cluster that answers. `auto` stands for the one that this machine is a node of.

    Raises `ConfigError` if the address is none, nobody answers there within `ANSWER_S`, the access token is refused, or
    this machine is not a node of the cluster.
    """
    if address.startswith("ray://"):
        raise ConfigError(
            f"the address {address!r} is one of Ray Client, which carries no requests: run this on a node of "
            "the cluster, with the address of its head (HOST:6379)"
        )
    nodes = list(_nodes())
    if address == "auto":
        if not nodes:
            raise ConfigError("no Ray cluster runs on this machine: start one with `ray start --head`")
        address = max(nodes, key=_preference).cluster
    host, port = _parsed(address)
    _ask(address, host, port)
    if not any(node.cluster.rpartition(":")[2] == str(port) for node in nodes):
        raise ConfigError(f"this machine is not a node of the Ray cluster at {address}: run the command on one")
    return address


@dataclass(frozen=True, slots=True)
class _Node:
    """A raylet on this machine."""

    cluster: str
    is_mine: bool
    started: float


def _nodes() -> Iterator[_Node]:
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "raylet":
            with suppress(psutil.Error):
                for argument in process.cmdline():
                    name, _, cluster = argument.partition("=")
                    if name == "--gcs-address":
                        yield _Node(cluster, process.uids().effective == os.geteuid(), process.create_time())


def _preference(node: _Node) -> tuple[bool, bool, float]:
    current = ""
    with suppress(OSError):
        current = CURRENT.read_text().strip()
    return node.cluster == current, node.is_mine, node.started


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"the address {address!r} is neither 'auto' nor of the form HOST:PORT")
    return host.strip("[]"), int(port)


def _ask(address: str, host: str, port: int) -> None:
    """Whether Ray answers there, and accepts our token."""
    token = settings.ray_token()
    try:
        with socket.create_connection((host, port), timeout=ANSWER_S) as connection:
            if settings.ray_uses_tls():
                return
            connection.sendall(PREFACE + _frame(SETTINGS, 0, 0, b"") + _question(address, token))
            kind = _answer(connection)
    except TimeoutError:
        raise ConfigError(f"no Ray cluster answers at {address} within {ANSWER_S:g} s") from None
    except OSError as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error.strerror or error}") from None
    if kind is None:
        raise ConfigError(f"no Ray cluster answers at {address}: something else listens there")
    if kind == HEADERS and settings.ray_decides_by_token():
        if token is None:
            raise ConfigError(
                f"the Ray cluster at {address} asks for an access token: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or "
                "copy the file ~/.ray/auth_token of its head"
            )
        raise ConfigError(
            f"the Ray cluster at {address} refuses our access token: it should be that of its head "
            "(RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token)"
        )


def _answer(connection: socket.socket) -> int | None:
    """`DATA`: a result. `HEADERS`: an error. None: this is not gRPC."""
    with connection.makefile("rb") as stream:
        while len(head := stream.read(9)) == 9:
            size, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            if size > 16_384 or kind in (RST_STREAM, GOAWAY):
                return None
            stream.read(size)
            if kind == DATA or (kind == HEADERS and flags & END_STREAM):
                return kind
    return None


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
    """A string literal of HPACK: its length in seven bits and more, and its bytes."""
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
