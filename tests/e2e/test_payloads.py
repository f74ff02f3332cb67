"""Large arguments and results, which go through Ray's store and leave nothing there."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import ray

from tests.cluster import Cluster
from tests.e2e.payloads import LARGE, pattern
from tests.engines.contract.served import InInstance
from tests.engines.contract.visit import Visit, visiting
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

SMALL = 1_000


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[InInstance]:
    before = in_the_store()
    with InInstance.running(cluster, "tests.e2e.payloads") as served:
        yield served
    assert in_the_store() <= before


@pytest.fixture
async def visit(served: InInstance, tmp_path: Path) -> AsyncIterator[Visit]:
    before = in_the_store()
    async with visiting(served, tmp_path, "hold") as visit:
        yield visit
    await until_nothing_is_left(before)


def in_the_store() -> float:
    """Bytes."""
    return ray.cluster_resources()["object_store_memory"] - ray.available_resources()["object_store_memory"]


async def until_nothing_is_left(before: float) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (left := in_the_store()) > before:
        assert time.monotonic() < deadline, f"{left - before} bytes were left in the store"
        await asyncio.sleep(0.05)


def seen(size: int, seed: int, *, in_the_store: bool) -> dict[str, object]:
    return {
        "sum": int(pattern(size, seed).sum(dtype=np.int64)),
        "size": size,
        "writeable": False,
        "in the store": in_the_store,
    }


@pytest.mark.parametrize("way", ["there", "back", "passed"])
async def test_large_array_is_read_in_the_store_and_a_small_one_is_not_stored(visit: Visit, way: str) -> None:
    assert (await visit.get(f"/{way}/{LARGE}")).json() == seen(LARGE, 1, in_the_store=True)
    assert (await visit.get(f"/{way}/{SMALL}")).json() == seen(SMALL, 1, in_the_store=False)


async def test_long_bytes_arrive_as_the_bytes_that_they_were(visit: Visit) -> None:
    assert (await visit.get(f"/bytes/{LARGE}")).json() == [True, "bytes", LARGE]


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_large_items_of_a_stream_are_as_large_results(visit: Visit, size: int) -> None:
    items = (await visit.get(f"/stream/{size}/5")).json()
    assert items == [seen(size, seed, in_the_store=size == LARGE) for seed in range(5)]


async def test_a_large_error_arrives_as_itself(visit: Visit) -> None:
    found = (await visit.get(f"/fail/{LARGE}")).json()
    assert (found["said"], found["sum"]) == ("not this one", seen(LARGE, 3, in_the_store=False)["sum"])


async def test_method_with_a_large_argument_is_cancelled_if_its_client_disconnects(visit: Visit) -> None:
    call = visit.get(f"/hold/{LARGE}")
    await visit.noted("began")
    call.cancel()
    await visit.noted("was cancelled")


async def test_clients_that_drop_while_payloads_are_on_their_way_leave_nothing(visit: Visit) -> None:
    calls = [visit.get(f"/{way}/{LARGE}") for _ in range(8) for way in ("there", "back", "bytes")]
    for call in calls:
        await asyncio.sleep(0.02)
        call.cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert any(isinstance(outcome, asyncio.CancelledError) for outcome in done)


async def test_many_payloads_leave_the_store_as_empty_as_it_was(visit: Visit) -> None:
    assert (await visit.get(f"/many/24/{LARGE}")).json() == 24
