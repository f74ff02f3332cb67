"""Calls where replicas die."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.cluster import Cluster, Served
from tests.engines.chain import app as chain

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0
CALLERS = 8


def ids(served: Served) -> list[str]:
    """Of the replicas in front."""
    return [replica["id"] for replica in served.ingress("front")["replicas"]]


async def test_an_inner_replica_that_dies_costs_retryable_calls_nothing(cluster: Cluster, tmp_path: Path) -> None:
    served = cluster.deploy(f"{chain.__name__}:app", ROOT)
    try:
        async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S) as client:
            outer = ids(served)
            told = await client.get("/die-once", params={"ground": str(tmp_path), "retry": True})
            assert told.json() == "alive"

            lost = tmp_path / "lost"
            lost.mkdir()
            answer = await client.get("/die-once", params={"ground": str(lost), "retry": False})
            assert answer.status_code == 502
            assert answer.json()["error"] == "replica_lost"

            assert (await client.get("/more/5")).json() == 16
            assert ids(served) == outer, "the replica in front is as it was"
    finally:
        served.delete()


@pytest.mark.parametrize("retry", [True, False])
async def test_calls_go_on_while_inner_replicas_are_killed(cluster: Cluster, retry: bool) -> None:
    served = cluster.deploy(f"{chain.__name__}:app", ROOT)
    try:
        async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S) as client:
            answers: list[int] = []
            enough = asyncio.Event()

            async def call() -> None:
                while not enough.is_set():
                    answers.append((await client.get("/pid", params={"retry": retry})).status_code)

            callers = [asyncio.create_task(call()) for _ in range(CALLERS)]
            for _ in range(2):
                os.kill((await client.get("/pid", params={"retry": True})).json(), signal.SIGKILL)
                seen = len(answers)
                async with asyncio.timeout(PATIENCE_S):
                    while len(answers) < seen + 50 * CALLERS:  # noqa: ASYNC110 - they tell nobody
                        await asyncio.sleep(0.01)
            enough.set()
            await asyncio.gather(*callers)
        lost = answers.count(502)
        assert answers.count(200) == len(answers) - lost
        assert lost == 0 if retry else lost <= 2 * CALLERS, "what it ran when it died is lost, and nothing else"
    finally:
        served.delete()
