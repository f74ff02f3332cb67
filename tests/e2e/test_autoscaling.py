"""Replicas follow the load on processes: from zero, up, down, and to zero, and no request is lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.cluster import Cluster, Served
from tests.patience import PATIENCE_S

from . import scaled

pytestmark = pytest.mark.anyio

CLIENTS = 8
PATHS = ("/front", "/worker")


def running(served: Served) -> dict[str, int]:
    """Replicas that are there, whatever they do, by deployment."""
    return {group["name"].rpartition("/")[2]: len(group["replicas"]) for group in served.status()["deployments"]}


async def until_there_are(served: Served, *, front: int, worker: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(running, served) != {"app": 1, "front": front, "worker": worker}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def with_an_average(served: Served, deployment: str) -> Mapping[str, Any]:
    """Its scaling, once the average is not zero: at a single moment all clients may be between two requests."""
    scaling: Mapping[str, Any] = {"average": 0.0}
    async with asyncio.timeout(PATIENCE_S):
        while not scaling["average"]:
            await asyncio.sleep(0.05)
            scaling = (await asyncio.to_thread(served.ingress, deployment))["scaling"]
    return scaling


@asynccontextmanager
async def load(client: httpx.AsyncClient) -> AsyncIterator[list[int]]:
    """Requests one after another from several clients for each path; gives how each was answered, as it comes."""
    answers: list[int] = []
    enough = asyncio.Event()

    async def ask(path: str) -> None:
        while not enough.is_set():
            answers.append((await client.get(path)).status_code)

    asking = [asyncio.create_task(ask(path)) for path in PATHS for _ in range(CLIENTS)]
    try:
        yield answers
    finally:
        enough.set()
        await asyncio.gather(*asking)


async def test_replicas_follow_the_load_of_clients_and_of_handles(processes: Cluster) -> None:
    served = await asyncio.to_thread(processes.deploy, "scaled:app")
    await until_there_are(served, front=0, worker=0)
    limits = httpx.Limits(max_connections=2 * len(PATHS) * CLIENTS)
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S, limits=limits) as client:
        began = time.monotonic()
        first = await asyncio.gather(*map(client.get, PATHS))
        print(f"first answers from zero after {time.monotonic() - began:.2f} s")
        assert [answer.json() for answer in first] == ["done", "done"]
        async with load(client) as answers:
            await until_there_are(served, front=scaled.MOST, worker=scaled.MOST)
            for group in ("front", "worker"):
                scaling = await with_an_average(served, group)
                assert (scaling["min_replicas"], scaling["max_replicas"]) == (0, scaled.MOST)
        async with connect(f"{served.url.replace('http', 'ws')}/front/quiet", proxy=None):
            await until_there_are(served, front=1, worker=0)
            await asyncio.sleep(scaled.FOLLOWS.look_back_period_s + scaled.FOLLOWS.downscale_delay_s + 0.5)
            assert running(served)["front"] == 1, "an open WebSocket keeps the last replica"
        await until_there_are(served, front=0, worker=0)
        assert served.status()["status"] == "healthy"
        again = await asyncio.gather(*map(client.get, PATHS))
    assert [answer.json() for answer in again] == ["done", "done"]
    assert set(answers) == {200}
    await asyncio.to_thread(served.delete)
