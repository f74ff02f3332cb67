"""Calls where replicas die."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app_toolkit.core.status import Load
from tests.cluster import Cluster, Served
from tests.engines.chain import app as chain
from tests.engines.contract.ground import Ground
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
CALLERS = 8


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Served]:
    served = cluster.deploy(f"{chain.__name__}:app", ROOT)
    yield served
    served.delete()


def ids(served: Served) -> list[str]:
    """Of the replicas in front."""
    return [replica["id"] for replica in served.ingress("front")["replicas"]]


async def test_an_inner_replica_that_dies_costs_retryable_calls_nothing(served: Served, tmp_path: Path) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S) as client:
        outer = ids(served)
        told = await client.get("/die-once", params={"ground": str(tmp_path), "retry": True})
        assert told.json() == "alive"

        marked = tmp_path / "marked"
        marked.mkdir()
        told = await client.get("/die-once-idempotent", params={"ground": str(marked)})
        assert told.json() == "alive", "its method is marked as idempotent, and that is the default"

        lost = tmp_path / "lost"
        lost.mkdir()
        answer = await client.get("/die-once", params={"ground": str(lost), "retry": False})
        assert answer.status_code == 502
        assert answer.json()["error"] == "replica_lost"

        async with asyncio.timeout(PATIENCE_S):
            # Who else called it learns of its end by itself, and until then loses what it sends there.
            while (answer := await client.get("/more/5")).status_code == 502:
                assert answer.json()["error"] == "replica_lost"
        assert answer.json() == 16
        assert ids(served) == outer, "the replica in front is as it was"


async def test_calls_go_on_while_inner_replicas_are_killed(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S) as client:
        tried_again: list[int] = []
        tried_once: list[int] = []
        enough = asyncio.Event()

        async def call(retry: bool, answers: list[int]) -> None:
            while not enough.is_set():
                answers.append((await client.get("/pid", params={"retry": retry})).status_code)

        callers = [asyncio.create_task(call(True, tried_again)) for _ in range(CALLERS)]
        callers += [asyncio.create_task(call(False, tried_once)) for _ in range(CALLERS)]
        for _ in range(2):
            os.kill((await client.get("/pid", params={"retry": True})).json(), signal.SIGKILL)
            seen = len(tried_again), len(tried_once)
            async with asyncio.timeout(PATIENCE_S):
                while min(len(tried_again) - seen[0], len(tried_once) - seen[1]) < 25 * CALLERS:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        enough.set()
        await asyncio.gather(*callers)
    assert set(tried_again) == {200}
    lost = tried_once.count(502)
    assert tried_once.count(200) == len(tried_once) - lost
    assert lost <= 2 * CALLERS, "what it ran when it died is lost, and nothing else"


async def test_the_load_says_where_requests_are(served: Served, tmp_path: Path) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S) as client:
        asked = [
            asyncio.create_task(client.get(f"/direct/{number}", params={"ground": str(tmp_path)}))
            for number in range(6)
        ]
        name = f"{served.spec.name}/"
        wanted = {f"{name}front": Load(0, 0, 6, 0), f"{name}shared": Load(0, 2, 4, 0)}
        async with asyncio.timeout(PATIENCE_S):
            while not wanted.items() <= (await asyncio.to_thread(served.cluster.client.load)).items():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        Ground(tmp_path).open("hold")
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 6
    nobody = {Load(0, 0, 0, 0)}
    load = served.cluster.client.load  # the answers may arrive before the places of their requests are free
    await asyncio.to_thread(
        wait_until, lambda: {each for key, each in load().items() if key.startswith(name)} == nobody
    )
