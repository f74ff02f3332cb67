"""One timer for the deadlines of many requests."""

import asyncio
import time

import pytest

from app_toolkit.proxy.deadlines import Deadlines
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


class Request:
    def __init__(self) -> None:
        self.expired = asyncio.Event()
        self.told: list[float] = []

    def expire(self, timeout: float) -> None:
        self.told.append(timeout)
        self.expired.set()


async def test_each_is_told_once_its_time_is_up_and_not_before() -> None:
    deadlines = Deadlines(0.05)
    began = time.monotonic()
    requests = [Request() for _ in range(3)]
    for number, request in enumerate(requests):
        deadlines.add(request, began + 0.05 + number * 0.05)
    for number, request in enumerate(requests):
        await asyncio.wait_for(request.expired.wait(), PATIENCE_S)
        assert time.monotonic() >= began + 0.05 + number * 0.05
        assert [each.told for each in requests[number + 1 :]] == [[]] * (2 - number)
    assert [request.told for request in requests] == [[0.05]] * 3
    assert len(deadlines) == 0


async def test_who_was_discarded_is_not_told_and_the_next_is_not_late() -> None:
    deadlines = Deadlines(0.05)
    due = time.monotonic() + 0.05
    first, second = Request(), Request()
    deadlines.add(first, due)
    deadlines.add(second, due + 0.01)
    deadlines.discard(first)
    deadlines.discard(first)
    await asyncio.wait_for(second.expired.wait(), PATIENCE_S)
    assert first.told == []


async def test_one_that_was_added_while_nobody_waited_is_told() -> None:
    deadlines = Deadlines(0.02)
    for _ in range(2):
        request = Request()
        deadlines.add(request, time.monotonic() + 0.02)
        await asyncio.wait_for(request.expired.wait(), PATIENCE_S)


async def test_after_its_end_nobody_is_told() -> None:
    deadlines = Deadlines(0.01)
    request, later = Request(), Request()
    deadlines.add(request, time.monotonic() + 0.01)
    deadlines.close()
    assert len(deadlines) == 0
    deadlines.add(later, time.monotonic() + 0.02)
    await asyncio.wait_for(later.expired.wait(), PATIENCE_S)
    assert request.told == []
