"""Several proxies in front of one replica that is full: they stand in line there, and are called in turn."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.interfaces import Snapshot, Version
from app_toolkit.proxy.server import Proxy, ProxyServer
from app_toolkit.router.router import Router

from .app import SECRET
from .world import World, eventually

pytestmark = pytest.mark.anyio

CALLERS = 8
SECONDS = 2.0


@asynccontextmanager
async def proxy_before(endpoint: dict[str, Any]) -> AsyncIterator[ProxyServer]:
    async with ProxyServer(Proxy(SECRET, Router), HTTPOptions(port=0), drain_timeout_s=0.0) as server:
        values = {
            "routes": {"applications": [{"name": "shop", "prefix": "/", "default": "web", "routes": []}]},
            "replicas/shop/web": {"policy": {}, "replicas": [endpoint]},
        }
        server.proxy.update({key: Snapshot(Version(1, 1), value) for key, value in values.items()})
        yield server
        assert (server.statistics().waiting, server.statistics().ongoing) == (0, 0)


async def get(port: int, path: str, times: int = 1) -> Any:
    """The body of the last answer to so many requests, one after the other, on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(times):
        writer.write(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(length)
    writer.close()
    return json.loads(body)


@pytest.mark.parametrize("clients", [(1,) * CALLERS, (8, *(1,) * (CALLERS - 1))], ids=["alike", "one-with-many"])
async def test_eight_callers_keep_one_slot_busy_and_share_it(world: World, clients: tuple[int, ...]) -> None:
    [replica] = world.killable(1, most=1)
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(proxy_before(replica.endpoint())) for _ in range(CALLERS)]
        waits: list[list[float]] = [[] for _ in proxies]
        end = time.monotonic() + SECONDS

        async def client(number: int) -> None:
            while (asked := time.monotonic()) < end:
                await get(proxies[number].port, "/nap/0.01")
                waits[number].append(time.monotonic() - asked)

        await asyncio.gather(*(client(number) for number, count in enumerate(clients) for _ in range(count)))
        naps = await get(proxies[0].port, "/naps")
        busy = sum(end - began for began, end in naps) / (naps[-1][1] - naps[0][0])
        by_caller = [mean(each) * min(1, clients[0] / count) for each, count in zip(waits, clients, strict=True)]
        print(
            f"\nbusy {busy:.1%}, requests {[len(w) for w in waits]}, mean waits",
            [f"{w * 1e3:.0f} ms" for w in by_caller],
        )
        gaps = sorted(b - e for (_, e), (b, _) in zip(naps, naps[1:]))
        print(
            "GAPS ms",
            [round(gaps[int(len(gaps) * q)] * 1e3, 2) for q in (0, 0.1, 0.5, 0.9, 0.99)],
            "nap",
            mean(e - b for b, e in naps) * 1e3,
        )
        assert all(began >= ended for (_, ended), (began, _) in zip(naps, naps[1:], strict=False))
        assert busy >= 0.9
        alike = [mean(each) for each, count in zip(waits, clients, strict=True) if count == 1]
        assert max(alike) <= 2 * min(alike)
        assert sum(len(proxy.proxy.lines) for proxy in proxies) == 0
