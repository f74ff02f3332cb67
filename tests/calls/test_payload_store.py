"""What lies at a replica beside its sockets."""

import asyncio
import threading

import pytest

from app_toolkit.calls.payload_store import PayloadStore
from tests.patience import PATIENCE_S

PIECES = [b"one", memoryview(b"two")]


@pytest.mark.anyio
async def test_an_expected_payload_arrives_from_any_thread() -> None:
    store = PayloadStore()
    with store.expected("a") as came:
        threading.Thread(target=store.put, args=("a", PIECES)).start()
        assert await asyncio.wait_for(asyncio.wrap_future(came), PATIENCE_S) is PIECES
    assert len(store) == 0


@pytest.mark.anyio
async def test_a_kept_payload_is_taken_once() -> None:
    store = PayloadStore()
    with store.kept("a", PIECES) as taken:
        waiting = asyncio.wrap_future(taken)
        assert await asyncio.to_thread(store.take, "a") is PIECES
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert store.take("a") is None
    assert len(store) == 0


def test_an_unexpected_payload_is_not_kept() -> None:
    store = PayloadStore()
    store.put("a", PIECES)
    assert len(store) == 0
    with store.expected("a") as came:
        assert not came.done(), "it came too early, and that was the caller's mistake"
    with store.kept("b", PIECES):
        assert len(store) == 1
    assert store.take("b") is None


@pytest.mark.anyio
async def test_a_cancelled_exchange_keeps_nothing() -> None:
    store = PayloadStore()

    async def expect() -> None:
        with store.expected("a") as came:
            await asyncio.wrap_future(came)

    async def keep() -> None:
        with store.kept("b", PIECES) as taken:
            await asyncio.wrap_future(taken)

    tasks = [asyncio.create_task(expect()), asyncio.create_task(keep())]
    await asyncio.sleep(0)
    assert len(store) == 2
    for task in tasks:
        task.cancel()
    store.put("a", PIECES)  # before the tasks have had their turn
    assert store.take("b") is PIECES
    await asyncio.wait(tasks)
    assert len(store) == 0
