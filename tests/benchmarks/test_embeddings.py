"""The load of the embeddings benchmark, and its comparison of contenders."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.embeddings import BOUNDS, CLIENTS, NAME, OURS, PEERS, ask, body, busy_s, report, sentences
from benchmarks.measures import Failed
from benchmarks.report import judge

VECTOR = [0.5] * 384


@asynccontextmanager
async def answering(busy: float | None) -> AsyncIterator[tuple[str, list[str]]]:
    """A server whose model reports `busy` more seconds with each response, and the sentences that it received."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
                asked.append(json.loads(await reader.readexactly(length))["text"])
                answer = {"vector": VECTOR} if busy is None else {"vector": VECTOR, "busy_s": busy * len(asked)}
                said = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said) + said)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/embed", asked


def bodies() -> Iterator[str]:
    texts = sentences(["one", "two", "three", "four", "five", "six", "seven"], random.Random(1))
    return (body(OURS, text) for text in texts)


@pytest.mark.anyio
async def test_each_sentence_is_sent_once_and_the_busy_share_is_computed_from_the_responses() -> None:
    async with answering(busy=0.001) as (url, asked):
        found = await ask(url, bodies(), 3, 0.3, time.process_time, warm_up_s=0.05)
    assert len(asked) > found["rps"] * 0.3 > 3
    assert len(set(asked)) == len(asked)
    # The model reports 1 ms per response, so its busy share in percent is a tenth of the requests per second.
    assert found["busy_percent"] == pytest.approx(found["rps"] / 10, rel=0.25)
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert found["cpu_ms"] > 0


@pytest.mark.anyio
async def test_a_response_without_a_busy_time_fails_the_measurement() -> None:
    async with answering(busy=None) as (url, _):
        with pytest.raises(Failed, match="no vector with a busy time"):
            await ask(url, bodies(), 1, 0.1, time.process_time, warm_up_s=0)


def test_a_response_without_a_complete_vector_is_rejected() -> None:
    assert busy_s(json.dumps([{"busy_s": 1.5, "vector": VECTOR}]).encode()) == 1.5
    with pytest.raises(Failed, match="no vector with a busy time"):
        busy_s(b'{"vector":[0.5],"busy_s":1.5}')


def test_only_requests_to_bentoml_contain_a_list() -> None:
    assert json.loads(body("bentoml", 'a "b"')) == {"texts": ['a "b"']}
    assert {body(name, "a") for name in (OURS, *PEERS) if name != "bentoml"} == {'{"text": "a"}'}


def test_app_toolkit_is_compared_with_the_best_peer_of_each_round() -> None:
    def of(rps: float, p99_ms: float, busy: float) -> dict[str, dict[str, list[float]]]:
        said = {"rps": rps, "p50_ms": 1.0, "p99_ms": p99_ms, "busy_percent": busy, "cpu_ms": 5.0, "others_percent": 1.0}
        return {NAME: {name: [value] for name, value in said.items()}}

    peers = {name: of(100.0 - number, 400.0 - number, 50.0) for number, name in enumerate(PEERS)}
    results = {
        "run": {"rounds": 1, "clients": CLIENTS},
        "figures": {OURS: of(120.0, 300.0, 95.0), **peers},
        "titles": {OURS: "ours", **{name: name for name in PEERS}},
    }
    busy, rps, p99 = judge(results, BOUNDS)
    assert (busy.value, busy.holds) == (95.0, True)
    assert (rps.value, rps.holds) == (1.2, True)
    assert (p99.value, p99.holds) == (pytest.approx(300 / 397), True)
    assert f"| {PEERS[0]} | 100 | 1.00 | 400 | 50.0 | 5.00 | 0.833 | 1.00 |" in report(results)
