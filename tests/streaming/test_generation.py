"""Generations: how the generator of a stream ends."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from app_toolkit.core.stream_log import Renewal
from app_toolkit.streaming import MemoryStreamLog, generation, leases
from app_toolkit.streaming.generation import Generation
from tests.patience import until

pytestmark = pytest.mark.anyio


class CountingLog(MemoryStreamLog):
    """A log that counts the renewals, and appends nothing before it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals = 0
        self.open = asyncio.Event()

    async def append(self, stream: str, owner: str, first: int, events: Sequence[bytes]) -> Renewal:
        await self.open.wait()
        return await super().append(stream, owner, first, events)

    async def renew(self, leases: Sequence[tuple[str, str]]) -> list[Renewal | None]:
        self.renewals += 1
        return await super().renew(leases)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> CountingLog:
    monkeypatch.setattr(leases, "RENEW_S", 0.01)
    return CountingLog()


@pytest.mark.parametrize("is_ahead", [False, True])
async def test_a_generator_that_is_stopped_may_wait_in_its_cleanup(log: CountingLog, is_ahead: bool) -> None:
    cleaning, finish = asyncio.Event(), asyncio.Event()
    cleaned = []

    async def write() -> AsyncGenerator[bytes, None]:
        try:
            while is_ahead:  # it waits at `yield`, because the log is slower
                yield b"event"
            await asyncio.Event().wait()
            yield b""
        finally:
            cleaning.set()
            await finish.wait()
            cleaned.append(True)

    running = Generation(log, write(), "text/plain")
    await running.begin()
    await until(lambda: log.renewals > 0)
    await log.stop(running.id)
    await cleaning.wait()
    log.open.set()
    seen = log.renewals
    await until(lambda: log.renewals > seen + 3)
    finish.set()
    await running.ended()
    assert cleaned == [True]
    assert await log.outcome(running.id, 2**53) == "stopped"


async def test_a_generator_that_does_not_obey_is_cancelled_again(
    log: CountingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "CLEANUP_S", 0.05)
    cancelled = []

    async def write() -> AsyncGenerator[bytes, None]:
        while len(cancelled) < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
        yield b"event"

    log.open.set()
    running = Generation(log, write(), "text/plain")
    await running.begin()
    await until(lambda: log.renewals > 0)
    await log.stop(running.id)
    await running.ended()
    assert len(cancelled) == 2
