"""The memory of a proxy that gets floods of heads, targets and trailers."""

import contextlib
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.beside.corpus import CHUNKED, END, GET
from tests.edge.world import Raw
from tests.patience import PATIENCE_S

MIB = 1024**2
PIECE = 64 * 1024
TOTAL_MIB, MOST_MIB = 25, 10


@pytest.fixture(scope="module")
def proxy() -> Iterator[tuple[psutil.Process, int]]:
    """A proxy in a process of its own that has served some requests, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.beside.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    with process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with Raw(port) as raw:
            for _ in range(20):
                assert raw.send(GET + END).answer().status == 200
        yield psutil.Process(process.pid), port
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


def flood(port: int, begin: bytes, piece: bytes) -> tuple[int, int]:
    """Send on one connection until it is closed; gives how many bytes it took, and the status that it answered."""
    sent, status = 0, 0
    with Raw(port) as raw:
        raw.socket.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionError):
            raw.send(begin)
            while True:
                raw.send(piece)
                sent += len(piece)
                if not status and select.select([raw.socket], [], [], 0)[0]:
                    status = raw.answer().status
        return sent, status or raw.answer().status


@pytest.mark.parametrize(
    ("begin", "piece", "status"),
    [
        (GET, b"x: " + b"v" * (PIECE - 5) + b"\r\n", 431),
        (GET, b"x: 1\r\n" * (PIECE // 6), 431),
        (GET + b"x: ", b"v" * PIECE, 431),
        (GET, b"n" * PIECE, 431),
        (b"GET /", b"u" * PIECE, 414),
        (CHUNKED + END + b"0\r\nx: ", b"v" * PIECE, 431),
        (CHUNKED + END + b"5;", b"e" * PIECE, 431),
    ],
    ids=["fields", "short fields", "one value", "one name", "a target", "a trailer", "a chunk's extension"],
)
def test_a_flood_is_refused_and_costs_no_memory(
    proxy: tuple[psutil.Process, int], begin: bytes, piece: bytes, status: int
) -> None:
    """It is sent over as many connections as that takes."""
    process, port = proxy
    before = most = process.memory_info().rss
    sent = 0
    while sent < TOTAL_MIB * MIB:
        took, answered = flood(port, begin, piece)
        assert answered == status
        sent += took
        most = max(most, process.memory_info().rss)
    assert most - before <= MOST_MIB * MIB, f"{(most - before) / MIB:.1f} MiB for {sent / MIB:.0f}"
