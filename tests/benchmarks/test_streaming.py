"""How token streams are read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.measures import Failed
from benchmarks.streaming import follow

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Number: 0\r\n\r\n"
EVENT = b"15\r\ndata: {'token': 10}\n\n\r\n"
LAST = b"0\r\n\r\n"


@asynccontextmanager
async def sending(*pieces: bytes, every_s: float = 0.0) -> AsyncIterator[str]:
    """A server whose responses come in these pieces."""

    serving: set[asyncio.Task[Any] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):  # the client has read enough
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(every_s)
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/tokens"
        finally:
            await asyncio.gather(*filter(None, serving))


@pytest.mark.anyio
async def test_events_are_counted_across_chunk_borders() -> None:
    body = HEAD + 4 * EVENT + LAST
    for size in (1, 3, 7, len(body)):
        ends = [*range(0, len(body), size), len(body)]
        async with sending(*(body[start:end] for start, end in pairwise(ends))) as url:
            assert (await follow(url, streams=2, rate=4, seconds=1))["events_s"] > 0


@pytest.mark.anyio
async def test_a_missing_event_fails_the_measure() -> None:
    async with sending(HEAD + EVENT + LAST) as url:
        with pytest.raises(Failed, match="1 of 2 events"):
            await follow(url, streams=1, rate=2, seconds=1)
