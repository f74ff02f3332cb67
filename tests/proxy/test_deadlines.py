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
        self.timeouts: list[float] = []

    def expire(self, timeout: float) -> None:
        self.timeouts.append(timeout)
        self.expired.set()


async def test_each_entry_expires_once_when_its_time_is_up() -> None:
    deadlines = Deadlines(0.05)
    began = time.monotonic()
    requests = [Request() for _ in range(3)]
    for number, request in enumerate(requests):
        deadlines.add(request, began + 0.05 + number * 0.05)
    for number, request in enumerate(requests):
        await asyncio.wait_for(request.expired.wait(), PATIENCE_S)
        assert time.monotonic() >= began + 0.05 + number * 0.05
        assert [each.timeouts for each in requests[number + 1 :]] == [[]] * (2 - number)
    assert [request.timeouts for request in requests] == [[0.05]] * 3
    assert len(deadlines) == 0


async def test_a_discarded_entry_does_not_expire() -> None:
    deadlines = Deadlines(0.05)
    due = time.monotonic() + 0.05
    first, second = Request(), Request()
    deadlines.add(first, due)
    deadlines.add(second, due + 0.01)
    deadlines.discard(first)
    deadlines.discard(first)
    await asyncio.wait_for(second.expired.wait(), PATIENCE_S)
    assert first.timeouts == []


async def test_an_entry_added_to_an_idle_queue_expires() -> None:
    deadlines = Deadlines(0.02)
    for _ in range(2):
        request = Request()
        deadlines.add(request, time.monotonic() + 0.02)
        await asyncio.wait_for(request.expired.wait(), PATIENCE_S)


async def test_no_entry_expires_after_the_end() -> None:
    deadlines = Deadlines(0.01)
    request, later = Request(), Request()
    deadlines.add(request, time.monotonic() + 0.01)
    deadlines.close()
    assert len(deadlines) == 0
    deadlines.add(later, time.monotonic() + 0.02)
    await asyncio.wait_for(later.expired.wait(), PATIENCE_S)
    assert request.timeouts == []
