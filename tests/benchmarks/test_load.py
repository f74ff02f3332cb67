import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.load import asyncio_load, parse_wrk
from tests.patience import PATIENCE_S

SAID = """Running 2s test @ http://127.0.0.1:8000/
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     4.46ms    1.06ms  21.17ms   94.11%
    Req/Sec     7.23k   421.09     7.93k    70.00%
  Latency Distribution
     50%  850.00us
     75%    4.50ms
     90%    5.12ms
     99%    1.02s
  14426 requests in 2.01s, 2.09MB read
Requests/sec:   7180.11
Transfer/sec:      1.04MB
"""


def test_the_output_of_wrk_is_parsed_to_milliseconds() -> None:
    found = parse_wrk(SAID)
    assert (found.requests, found.seconds, found.failed) == (14_426, 2.01, 0)
    assert (found.p50_ms, found.p99_ms) == pytest.approx((0.85, 1_020))
    assert found.rps == pytest.approx(7_177.1, abs=0.1)


def test_rejected_requests_and_lost_connections_are_failures() -> None:
    said = SAID + "  Socket errors: connect 1, read 2, write 3, timeout 4\n  Non-2xx or 3xx responses: 5\n"
    assert parse_wrk(said).failed == 15


def test_text_that_is_not_the_output_of_wrk_raises() -> None:
    with pytest.raises(ValueError, match="not the output of wrk"):
        parse_wrk("unable to connect to 127.0.0.1:8000 Connection refused\n")


@asynccontextmanager
async def answering(answer: bytes, then_close: bool = False) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if b"Content-Length: 2" in head:
                    assert await reader.readexactly(2) == b"{}"
                writer.write(answer)
                if then_close:
                    break
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


@pytest.mark.anyio
@pytest.mark.parametrize("body", [None, "{}"])
async def test_without_wrk_each_client_sends_its_next_request_after_a_response(body: str | None) -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n") as url:
        seconds = 0.1
        while (found := await asyncio_load(url, 4, seconds, body)).requests <= 4:
            seconds *= 4  # none of them came so far in the time, or none ever will
            assert seconds < PATIENCE_S
    assert found.failed == 0
    assert 0 < found.p50_ms <= found.p99_ms
