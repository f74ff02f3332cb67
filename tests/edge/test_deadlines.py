"""One timer for the deadlines of many requests."""

from collections.abc import Iterator

import pytest

from app_toolkit.exchange.deadlines import Deadlines
from tests.edge.wire import ManualLoop


class Request:
    def __init__(self) -> None:
        self.expired = 0

    def expire(self) -> None:
        self.expired += 1


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    loop = ManualLoop()
    yield loop
    loop.close()


def advance(loop: ManualLoop, seconds: float) -> None:
    loop.now += seconds
    loop.call(lambda: None)


def test_each_entry_expires_once_when_its_time_is_up(loop: ManualLoop) -> None:
    deadlines = Deadlines(1.0, loop.time)
    requests = [Request() for _ in range(3)]
    for number, request in enumerate(requests, 1):
        loop.call(lambda request=request, number=number: deadlines.add(request, loop.now + number))  # type: ignore[misc]
    for number in range(1, 4):
        advance(loop, 1.0)
        assert [request.expired for request in requests] == [1] * number + [0] * (3 - number)
    assert len(deadlines) == 0


def test_a_discarded_entry_does_not_expire(loop: ManualLoop) -> None:
    deadlines = Deadlines(1.0, loop.time)
    first, second = Request(), Request()
    loop.call(lambda: deadlines.add(first, loop.now + 1.0))
    loop.call(lambda: deadlines.add(second, loop.now + 1.5))
    deadlines.discard(first)
    deadlines.discard(first)
    advance(loop, 2.0)
    assert (first.expired, second.expired) == (0, 1)


def test_an_entry_added_after_all_others_have_expired_expires(loop: ManualLoop) -> None:
    deadlines = Deadlines(1.0, loop.time)
    for _ in range(2):
        request = Request()
        loop.call(lambda request=request: deadlines.add(request, loop.now + 1.0))  # type: ignore[misc]
        advance(loop, 1.0)
        assert request.expired == 1


def test_no_entry_expires_after_the_end(loop: ManualLoop) -> None:
    deadlines = Deadlines(1.0, loop.time)
    request, later = Request(), Request()
    loop.call(lambda: deadlines.add(request, loop.now + 1.0))
    deadlines.close()
    assert len(deadlines) == 0
    loop.call(lambda: deadlines.add(later, loop.now + 2.0))
    advance(loop, 3.0)
    assert (request.expired, later.expired) == (0, 1)
