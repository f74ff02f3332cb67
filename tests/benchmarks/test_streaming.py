"""How token streams are read, and how their kinds are compared."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.measures import Failed
from benchmarks.report import judge
from benchmarks.streaming import BOUNDS, KINDS, MEASURES, RESULTS, document, follow

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


def results(**events_s: float) -> dict[str, Any]:
    """Figures of one round."""
    figures = {
        name: {
            "first": {"p50_ms": [2.0], "p99_ms": [3.0]},
            "gaps": {"p99_ms": [25.0], "events_s": [2_500.0]},
            "saturated": {"events_s": [events_s.get(name, 1_000.0)], "p50_ms": [10.0]},
        }
        for name in KINDS
    }
    return {"run": {"rounds": 1}, "figures": figures}


def test_bound_names_its_comparison() -> None:
    missed = {
        "bare": (2_000.0, "against uvicorn"),
        "memory": (400.0, "log in memory"),
        "deployment": (200.0, "in another process"),
        "ray-serve": (500.0, "defaults"),
        "ray-serve-best-1": (1_100.0, "at its best"),
    }
    fine: dict[str, float] = {"ray-serve": 300.0}
    assert all(verdict.holds for verdict in judge(results(**fine), BOUNDS))
    for name, (value, says) in missed.items():
        (verdict,) = [each for each in judge(results(**{**fine, name: value}), BOUNDS) if not each.holds]
        assert says in verdict.bound.says


def test_page_has_the_measurements() -> None:
    page = document(json.loads(RESULTS.read_text()))
    for measure in MEASURES.values():
        assert f"### {measure.title}" in page
    for kind in KINDS.values():
        assert f"| {kind.title} |" in page
