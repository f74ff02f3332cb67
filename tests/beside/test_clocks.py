"""Clients that take their time are answered 408, and closed."""

import itertools
from contextlib import suppress

import pytest

from tests.beside.app import build
from tests.beside.corpus import CHUNKED, END, GET, HIDDEN, KEY, POST, UPGRADE
from tests.edge.world import World, eventually, has_read, later

LENGTH = b"content-length: 1000000\r\n\r\n"

SLOW = {
    "silent": (b"", b"", ()),
    "only empty lines": (b"\r\n", b"\r\n", ()),
    "half a head": (GET + b"x: ", b"", (408,)),
    "a head byte by byte": (GET + b"x: ", b"v", (408,)),
    "half a handshake": (GET + UPGRADE + b"websocket\r\n" + KEY, b"", (408,)),
    "half of the next head": (GET + END + GET, b"", (200, 408)),
    "no body": (POST + LENGTH, b"", (408,)),
    "a body byte by byte": (POST + LENGTH, b"x", (408,)),
    "chunks byte by byte": (CHUNKED + END, b"1\r\nx\r\n", (408,)),
    "trailers without end": (CHUNKED + END + b"0\r\n", b"x: 1\r\n", (408,)),
    "an upgrade whose body does not come": (POST + UPGRADE + b"h2c\r\n" + HIDDEN, b"", (408,)),
}
"""The bytes that a client sends first, those that it sends every ten seconds, and the statuses that it receives."""


@pytest.mark.parametrize(("first", "then", "statuses"), SLOW.values(), ids=SLOW)
def test_a_slow_client_is_answered_408_and_closed(
    world: World, first: bytes, then: bytes, statuses: tuple[int, ...]
) -> None:
    replica = world.one(app=build())
    with world.raw() as raw:
        raw.send(first)
        eventually(lambda: world.edge.statistics().connections == 1 and has_read(world, raw))
        for status in statuses[:-1]:
            assert raw.answer().status == status
        passed = itertools.count(10, 10)

        def is_closed_as_time_passes() -> bool:
            with suppress(ConnectionError):
                raw.send(then)
            later(world, next(passed))
            return world.edge.statistics().connections == 0

        eventually(is_closed_as_time_passes)
        for status in statuses[-1:]:
            assert raw.answer().status == status
    eventually(lambda: replica.admission.statistics().running == 0)
