"""The slowest requests on processes, from the processes that served them."""

import asyncio

import httpx
import pytest

from app_toolkit.control.queries import GetStatus
from tests.cluster import Cluster
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.anyio


async def test_a_slow_request_is_shown_with_its_time_in_the_queue_and_its_calls(processes: Cluster) -> None:
    served = processes.deploy("traced:app")
    name = served.spec.name
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S) as client:
        for number in range(30):
            await client.get("/predict", headers={"x-request-id": f"fast-{number}"})
        await asyncio.gather(
            *(client.get("/wait?seconds=1", headers={"x-request-id": f"slow-{number}"}) for number in range(2))
        )
    first, second = processes.client.slow(name, 2)
    assert {first.request_id, second.request_id} == {"slow-0", "slow-1"}
    assert first.queued_s > 0.5, "one of both waits for the only slot"
    for each in (first, second):
        assert (each.deployment, each.path, each.status) == (f"{name}/web", f"/{name}/wait", 200)
        assert each.app_s >= 1
        (call,) = each.calls
        assert (call.deployment, call.method, call.kind) == (f"{name}/model", "wait", "call")
        assert 1 <= call.app_s <= each.app_s
    (slowest,) = processes.client.slow(f"{name}/model", 1)
    assert (slowest.method, slowest.calls) == ("wait", ())
    served.delete()
    wait_until(lambda: name not in {each.name for each in processes.client.execute(GetStatus()).applications})
