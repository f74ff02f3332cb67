"""Nothing that happens is slept through, and nothing that was noticed wakes anybody."""

import asyncio
import threading

import pytest

from app_toolkit.clock import ManualClock
from app_toolkit.control.inbox import SIZE, Inbox
from app_toolkit.control.replica_state import Exited
from app_toolkit.types import ReplicaId

pytestmark = pytest.mark.anyio


def exited(number):
    return Exited(ReplicaId(f"shop.web-1-{number}"))


async def test_an_event_from_another_thread_ends_a_sleep_without_end():
    inbox = Inbox(ManualClock())
    sleeping = asyncio.create_task(inbox.sleep(None))
    thread = threading.Thread(target=inbox.put, args=(exited(1),))
    thread.start()
    await sleeping
    thread.join()
    assert list(inbox.take()) == [exited(1)]
    assert list(inbox.take()) == []


async def test_a_sleep_ends_when_its_time_has_come():
    clock = ManualClock()
    inbox = Inbox(clock)
    sleeping = asyncio.create_task(inbox.sleep(clock.now() + 5.0))
    await clock.advance(4.9)
    assert not sleeping.done()
    await clock.advance(0.2)
    await sleeping


async def test_event_between_sleeps_ends_the_next_sleep_unless_it_was_taken():
    clock = ManualClock()
    inbox = Inbox(clock)
    inbox.wake()
    await inbox.sleep(None)
    inbox.awake()
    sleeping = asyncio.create_task(inbox.sleep(None))
    await clock.advance(100.0)
    assert not sleeping.done()
    inbox.wake()
    await sleeping


async def test_the_oldest_events_give_way():
    inbox = Inbox(ManualClock())
    for number in range(SIZE + 1):
        inbox.put(exited(number))
    assert next(inbox.take()) == exited(1)


async def test_events_that_arrive_during_a_take_are_left_for_the_next():
    inbox = Inbox(ManualClock())
    inbox.put(exited(1))
    for event in inbox.take():
        inbox.put(exited(2))
        assert event == exited(1)
    assert list(inbox.take()) == [exited(2)]
