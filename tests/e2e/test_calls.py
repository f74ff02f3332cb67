"""Calls while replicas die."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app_toolkit.control.status import Load
from tests.cluster import Cluster, Served
from tests.engines.chain import app as chain
from tests.engines.contract.ground import Ground
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
CALLERS = 8


@pytest.fixture(scope="module")
def served(processes: Cluster) -> Iterator[Served]:
    served = processes.deploy(f"{chain.__name__}:app", ROOT)
    yield served
    served.delete()


def ids(served: Served) -> list[str]:
    """Of the replicas in front."""
    return [replica["id"] for replica in served.ingress("front")["replicas"]]


async def test_an_inner_replica_that_dies_costs_retryable_calls_nothing(served: Served, tmp_path: Path) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S) as client:
        outer = ids(served)
        response = await client.get("/die-once", params={"ground": str(tmp_path), "retry": True})
        assert response.json() == "alive"

        marked = tmp_path / "marked"
        marked.mkdir()
        response = await client.get("/die-once-idempotent", params={"ground": str(marked)})
        assert response.json() == "alive", "its method is marked as idempotent, and that is the default"

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


async def test_load_command_shows_the_requests_of_each_replica(served: Served, tmp_path: Path) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S) as client:
        asked = [
            asyncio.create_task(client.get(f"/direct/{number}", params={"ground": str(tmp_path)}))
            for number in range(6)
        ]
        name = f"{served.spec.name}/"
        expected = {f"{name}front": Load(0, 0, 6, 0), f"{name}shared": Load(0, 2, 4, 0)}
        async with asyncio.timeout(PATIENCE_S):
            while not expected.items() <= (await asyncio.to_thread(served.cluster.client.load)).items():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        reached = (await asyncio.to_thread(served.cluster.client.load))[f"{name}shared"].reached
        assert sorted(reached.values()) == ["2 of 2 max_queued_requests", "4 of 4 max_ongoing_requests"]
        Ground(tmp_path).open("hold")
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 6
    nobody = {Load(0, 0, 0, 0)}
    load = served.cluster.client.load  # the answers may arrive before the places of their requests are free
    await asyncio.to_thread(
        wait_until, lambda: {each for key, each in load().items() if key.startswith(name)} == nobody
    )
