"""Deployments with autoscaling in one process and in several. What Ray does for them is in `test_contract.py`."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.engines.contract import following
from tests.engines.contract.served import Served, serving
from tests.engines.contract.visit import Visit, visiting

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["embedded", "processes"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    yield from serving(request, following)


@pytest.fixture
async def visit(served: Served, tmp_path: Path) -> AsyncIterator[Visit]:
    async with visiting(served, tmp_path) as visit:
        yield visit


@pytest.mark.parametrize("path", ["/auto", "/asleep"])
async def test_an_ingress_that_follows_its_load_answers_its_first_requests_as_one_replica(
    visit: Visit, path: str
) -> None:
    answers = [await visit.client.get(path) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert len({answer.json() for answer in answers}) == 1


async def test_a_class_that_follows_its_load_takes_its_first_calls_as_one_replica_within_its_limits(
    visit: Visit,
) -> None:
    answers = await asyncio.gather(*(visit.client.get("/writer") for _ in range(12)))
    assert [answer.status_code for answer in answers] == [200] * 12
    assert len({process for process, _ in (answer.json() for answer in answers)}) == 1
    assert max(most for _, most in (answer.json() for answer in answers)) == 2
