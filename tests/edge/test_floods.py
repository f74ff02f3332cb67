"""A client that floods a WebSocket with frames: it is closed, and nobody else's requests wait for it."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator

import pytest
from fastapi import FastAPI, WebSocket

from tests.edge.world import Raw, World, eventually, on_both
from tests.patience import PATIENCE_S

GET = b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n"
HANDSHAKE = (
    b"GET %s HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
TEXT, CONTINUATION, CLOSE, PING = 0x1, 0x0, 0x8, 0x9
POLICY_VIOLATION = 1008


def frame(opcode: int, payload: bytes = b"", *, last: bool = True) -> bytes:
    assert len(payload) < 126
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    return bytes(((0x80 if last else 0) | opcode, 0x80 | len(payload))) + mask + masked


FLOODS = {
    "pings": (b"", frame(PING)),
    "fragments of one byte": (frame(TEXT, b"x", last=False), frame(CONTINUATION, b"x", last=False)),
}


def talking(world: World, stack: contextlib.ExitStack, path: bytes = b"/ws") -> Raw:
    raw = stack.enter_context(world.raw())
    assert raw.send(HANDSHAKE % path).answer().status == 101
    return raw


def close_code(raw: Raw) -> int:
    """Of the server's close frame, behind the pongs."""
    while True:
        opcode, length = raw.exactly(2)
        payload = raw.exactly(length)
        if opcode & 0x0F == CLOSE:
            return int.from_bytes(payload[:2], "big")


@contextlib.contextmanager
def sending(raw: Raw, data: bytes, seconds: float) -> Iterator[None]:
    """Send it again and again, from another thread, until the server has enough."""
    over = threading.Event()

    def send() -> None:
        until = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while time.monotonic() < until and not over.is_set():
                raw.send(data)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


@on_both
@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_is_closed_with_1008_and_other_requests_are_served_meanwhile(own: World, kind: str) -> None:
    replica = own.one()
    first, again = FLOODS[kind]
    with contextlib.ExitStack() as stack:
        raw, other, asking = talking(own, stack), talking(own, stack), stack.enter_context(own.raw())
        raw.send(first)
        with sending(raw, again * 5_000, seconds=60):
            assert asking.send(GET % b"/hello").answer().status == 200
            assert close_code(raw) == POLICY_VIOLATION
        other.send(frame(TEXT, b"hi"))
        assert other.exactly(2 + len(b"ws:hi"))[2:] == b"ws:hi"
    eventually(lambda: replica.admission.statistics().websockets == 0)
    assert sorted(replica.journal.events) == ["ws closed DISCONNECTED", "ws closed DISCONNECTED"]


def test_an_app_that_closes_reads_the_clients_close_behind_unread_messages(own: World) -> None:
    app = FastAPI()

    @app.websocket("/first")
    async def first(ws: WebSocket) -> None:
        await ws.accept()
        await ws.receive_text()
        await ws.close()

    own.one(app=app)
    with contextlib.ExitStack() as stack:
        raw = talking(own, stack, b"/first")
        began = time.monotonic()
        raw.send(frame(TEXT, b"x" * 120) * 100 + frame(CLOSE, (1000).to_bytes(2, "big")))
        assert close_code(raw) == 1000
        assert raw.closed()
        assert time.monotonic() - began < 9, "uvicorn gives up after 10 s"


def test_a_message_of_some_thousand_short_fragments_is_no_flood(own: World) -> None:
    app = FastAPI()

    @app.websocket("/size")
    async def size(ws: WebSocket) -> None:
        await ws.accept()
        await ws.send_text(str(len(await ws.receive_text())))

    own.one(app=app)
    with contextlib.ExitStack() as stack:
        raw = talking(own, stack, b"/size")
        more = frame(CONTINUATION, b"row", last=False) * 5_000
        raw.send(frame(TEXT, last=False) + more + frame(CONTINUATION))
        assert raw.exactly(2 + 5)[2:] == b"15000"


def counting() -> FastAPI:
    app = FastAPI()

    @app.websocket("/count/{number}")
    async def count(ws: WebSocket, number: int) -> None:
        await ws.accept()
        for _ in range(number):
            await ws.receive_text()
        await ws.send_text("all")

    return app


def test_50_000_short_messages_as_fast_as_they_are_taken_are_no_flood(own: World) -> None:
    own.one(app=counting())
    with contextlib.ExitStack() as stack:
        raw = talking(own, stack, b"/count/50000")
        messages = frame(TEXT, b"") * 1_000
        for _ in range(50):
            raw.send(messages)
        assert raw.exactly(5)[2:] == b"all"


@on_both
def test_a_flood_of_messages_lets_others_be_served_in_between(own: World) -> None:
    own.one(app=_with_hello(counting()))
    with contextlib.ExitStack() as stack:
        raw, asking = talking(own, stack, b"/count/10000000"), stack.enter_context(own.raw())
        with sending(raw, frame(TEXT, b"") * 10_000, seconds=60):
            took = []
            for _ in range(20):
                began = time.monotonic()
                assert asking.send(GET % b"/hello").answer().status == 200
                took.append(time.monotonic() - began)
        assert sorted(took)[-3] < 10, "a machine that stands still delays one or two"


def _with_hello(app: FastAPI) -> FastAPI:
    @app.get("/hello")
    async def hello() -> None: ...

    return app


def test_a_large_message_in_large_fragments_is_no_flood(own: World) -> None:
    app = FastAPI()

    @app.websocket("/size")
    async def size(ws: WebSocket) -> None:
        await ws.accept()
        await ws.send_text(str(len(await ws.receive_bytes())))

    own.one(app=app)
    fragments, length = 4_000, 1_000
    mask = bytes(4)
    body = b"\xfe" + length.to_bytes(2, "big") + mask + bytes(length)
    with contextlib.ExitStack() as stack:
        raw = talking(own, stack, b"/size")
        raw.send(b"\x02" + body + (b"\x00" + body) * (fragments - 2) + b"\x80" + body)
        assert raw.exactly(2 + 7)[2:] == b"%d" % (fragments * length)
