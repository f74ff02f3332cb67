"""The comparison with plain uvicorn, frame by frame."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from benchmarks.conformance.echo import app
from benchmarks.conformance.servers import behind_proxy, plain

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


def frame(opcode: int, payload: bytes = b"", end: bool = True, reserved: int = 0, masked: bool = True) -> bytes:
    first = (0x80 if end else 0) | reserved << 4 | opcode
    mask, key = (0x80, bytes(4)) if masked else (0, b"")
    if len(payload) < 126:
        head = bytes((first, mask | len(payload)))
    elif len(payload) < 65_536:
        head = bytes((first, mask | 126)) + len(payload).to_bytes(2, "big")
    else:
        head = bytes((first, mask | 127)) + len(payload).to_bytes(8, "big")
    return head + key + payload


def closing(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason)


DONE = closing(1000, b"done")

ANSWERED = {
    **{f"a text of {length}": (frame(TEXT, b"x" * length), 1) for length in (0, 1, 125, 126, 127, 65_535, 65_536)},
    **{f"a binary of {length}": (frame(BINARY, b"\xfe" * length), 1) for length in (0, 126, 65_536, 300_000)},
    "a ping": (frame(PING), 1),
    "the longest ping": (frame(PING, b"\xff" * 125), 1),
    "a pong that nobody asked for": (frame(PONG, b"hi") + frame(TEXT, b"x"), 1),
    "two pings": (frame(PING, b"1") + frame(PING, b"2"), 2),
    "two pieces": (frame(TEXT, b"ab", end=False) + frame(CONTINUATION, b"cd"), 1),
    "a ping between two pieces": (frame(TEXT, b"ab", end=False) + frame(PING, b"p") + frame(CONTINUATION, b"cd"), 2),
    "a letter in two pieces": (frame(TEXT, "ü".encode()[:1], end=False) + frame(CONTINUATION, "ü".encode()[1:]), 1),
    "empty pieces": (frame(TEXT, end=False) + frame(CONTINUATION, end=False) + frame(CONTINUATION), 1),
}
"""What is sent, and how many frames come back before the client closes."""

CLOSED = {
    **{f"the reserved bit {bit}": frame(TEXT, b"x", reserved=bit) for bit in (1, 2, 4)},
    **{f"the opcode {opcode}": frame(opcode) for opcode in (3, 7, 0xB, 0xF)},
    "a ping that is too long": frame(PING, b"x" * 126),
    "a ping in pieces": frame(PING, b"x", end=False),
    "a continuation of nothing": frame(CONTINUATION, b"x"),
    "a message within another": frame(TEXT, b"a", end=False) + frame(TEXT, b"b"),
    "a text that is not UTF-8": frame(TEXT, b"\xff\xfe"),
    "a surrogate": frame(TEXT, b"\xed\xa0\x80"),
    "a frame without a mask": frame(TEXT, b"x", masked=False),
    "a close without a code": frame(CLOSE),
    "a close of one byte": frame(CLOSE, b"\x03"),
    **{f"the code {code}": closing(code, b"why") for code in (999, 1000, 1005, 1006, 1011, 3000, 4999, 5000)},
    "a reason that is not UTF-8": closing(1000, b"\xff"),
    "a text after the close": closing(1000) + frame(TEXT, b"x"),
}
"""What ends the connection by itself."""

SENT = {
    **{name: (sent, 0, b"") for name, sent in CLOSED.items()},
    **{name: (*each, DONE) for name, each in ANSWERED.items()},
}


@pytest.fixture(scope="module")
def uvicorn_port() -> Iterator[int]:
    with plain(app) as port:
        yield port


@pytest.fixture(scope="module")
def our_port() -> Iterator[int]:
    with behind_proxy(app) as port:
        yield port


def seen(port: int, sent: bytes, answers: int, last: bytes) -> bytes:
    """All that comes back after the handshake, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection, connection.makefile("rb") as stream:
        connection.sendall(HANDSHAKE)
        while stream.readline() != b"\r\n":
            pass
        connection.sendall(sent)
        back = b"".join(next_frame(stream) for _ in range(answers))
        connection.sendall(last)
        return back + stream.read()


def next_frame(stream: Any) -> bytes:
    head = stream.read(2)
    more = {126: 2, 127: 8}.get(head[1], 0)
    length = stream.read(more)
    return bytes(head + length + stream.read(int.from_bytes(length, "big") if more else head[1]))


@pytest.mark.parametrize("name", SENT)
def test_frames_are_answered_as_by_plain_uvicorn(name: str, uvicorn_port: int, our_port: int) -> None:
    expected = seen(uvicorn_port, *SENT[name])
    assert expected
    assert seen(our_port, *SENT[name]) == expected


def test_a_request_is_answered_as_by_plain_uvicorn(uvicorn_port: int, our_port: int) -> None:
    expected, found = (httpx.get(f"http://127.0.0.1:{port}/openapi.json") for port in (uvicorn_port, our_port))
    assert expected.status_code == 200
    assert (found.status_code, found.content) == (expected.status_code, expected.content)
