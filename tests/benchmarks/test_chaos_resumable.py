"""The client of resumable streams, which finds what is missing, double or not in order."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest

from benchmarks.chaos.resumable import Reader

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
GONE = b"HTTP/1.1 204 No Content\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def events(*numbers: int) -> bytes:
    """Each event in two chunks."""
    found = b"".join(b"id: s:%d\ndata: %d\n\n" % (number, number) for number in numbers)
    return chunk(found[:5]) + chunk(found[5:])


@asynccontextmanager
async def answering(answers: Sequence[bytes]) -> AsyncIterator[tuple[tuple[str, int], list[str]]]:
    """A server that gives one answer for each connection, and the positions that it was asked for."""
    asked: list[str] = []
    left = iter(answers)
    serving: set[asyncio.Task[Any] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.partition("last-event-id: ")[2].partition("\r\n")[0])
        writer.write(next(left))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname(), asked
        finally:
            await asyncio.gather(*filter(None, serving))


async def follow(*answers: bytes, leaves: float = 0.0) -> tuple[Reader, list[str]]:
    async with answering(answers) as (address, asked):
        reader = Reader(address, "/numbers", 4, Random(1), leaves)
        await reader.follow()
    return reader, asked


async def test_a_client_comes_back_until_it_has_all_events() -> None:
    reader, asked = await follow(b"", UNAVAILABLE, OK + events(1, 2), OK, OK + events(3, 4) + END)
    assert (reader.numbers, reader.errors, reader.connections) == ([1, 2, 3, 4], [], 5)
    assert asked == ["", "", "", "s:2", "s:2"]


async def test_a_client_that_leaves_ignores_what_it_has_not_read() -> None:
    reader, asked = await follow(*(OK + events(*range(number, 5)) for number in (1, 2, 3, 4)), leaves=1.0)
    assert reader.numbers == [1, 2, 3, 4]
    assert asked == ["", "s:1", "s:2", "s:3"]


async def test_duplicate_event_is_recorded() -> None:
    reader, _ = await follow(OK + events(1, 2), OK + events(2, 3) + END)
    assert reader.numbers == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (OK + chunk(b'event: error\ndata: {"error": "stream_lost"}\n\n') + END, "stream_lost"),
        (GONE, "status 204"),
    ],
)
async def test_a_stream_that_ends_too_early_is_an_error(answer: bytes, error: str) -> None:
    reader, _ = await follow(OK + events(1), answer)
    assert (reader.numbers, reader.errors) == ([1], [error])
