"""Waiting for the next change."""

import asyncio

import pytest

from app_toolkit.clock import ManualClock
from app_toolkit.control.notifier import Notifier

pytestmark = pytest.mark.anyio


async def test_change_is_counted_and_wakes_waiters():
    clock = ManualClock()
    changes = Notifier(clock)
    waiting = asyncio.create_task(changes.wait(clock.now() + 10.0))
    await clock.advance(1.0)
    assert not waiting.done()
    changes.notify()
    await waiting
    assert changes.number == 1
    in_vain = asyncio.create_task(changes.wait(clock.now() + 10.0))
    await clock.advance(10.1)
    await in_vain
    assert changes.number == 1
