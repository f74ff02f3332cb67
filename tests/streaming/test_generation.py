"""Generations: how the generator of a stream ends."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from app_toolkit.streaming import MemoryStreamLog, generation, outbox, writer
from app_toolkit.streaming.generation import Generation
from app_toolkit.streaming.stream_log import EVENT_BYTES, Append, Renewal, StreamLimits
from tests.patience import until

pytestmark = pytest.mark.anyio


class CountingLog(MemoryStreamLog):
    """A log that counts the renewals, and appends nothing before it is open."""

    def __init__(self, limits: StreamLimits | None = None) -> None:
        super().__init__(limits)
        self.renewals = 0
        self.open = asyncio.Event()

    async def append(self, appends: Sequence[Append]) -> list[Renewal | None]:
        self.renewals += 1
        if self.open.is_set():
            return await super().append(appends)
        renewals = await super().append([Append(each.stream, each.owner) for each in appends])
        return [each and replace(each, room=0) for each in renewals]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> CountingLog:
    monkeypatch.setattr(writer, "RENEW_S", 0.01)
    return CountingLog()


class Numbers:
    """Generates events of 1,000 bytes, and counts them."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.generated = 0

    async def write(self) -> AsyncGenerator[bytes, None]:
        while self.generated < self.last:
            self.generated += 1
            yield b"%04d" % self.generated + b"x" * (996 - EVENT_BYTES)


SMALL = StreamLimits(max_bytes=20_000, max_total_bytes=50_000)


async def read(log: MemoryStreamLog, stream: str, after: int = 0, pause_s: float = 0.0) -> list[int]:
    """The numbers of all events."""
    numbers = []
    async with aclosing(log.follow(stream, after)) as pages:
        async for page in pages:
            assert not page.evicted
            numbers += [int(event[:4]) for event in page.events]
            await asyncio.sleep(pause_s)
    assert await log.outcome(stream, numbers[-1]) == "finished"
    return numbers


async def test_a_generator_without_a_reader_waits_at_the_limit_of_its_log_until_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "RENEW_S", 0.01)
    monkeypatch.setattr(generation, "AHEAD_BYTES", 10_000)
    numbers, log = Numbers(200), CountingLog(SMALL)
    log.open.set()
    running = Generation(log, numbers.write(), "text/plain")
    await running.begin()
    await until(lambda: numbers.generated == 30)
    seen = log.renewals
    await until(lambda: log.renewals > seen + 3)
    assert numbers.generated == 30
    assert await log.last(running.id) == 20
    assert await read(log, running.id) == list(range(1, 201))
    await running.ended()


@pytest.mark.parametrize("tail_bytes", [3_000, 10**6])
async def test_a_reader_in_this_process_gets_the_accepted_events_and_follows_the_log_if_it_is_too_slow(
    monkeypatch: pytest.MonkeyPatch, tail_bytes: int
) -> None:
    monkeypatch.setattr(generation, "TAIL_BYTES", tail_bytes)
    numbers, log = Numbers(10), MemoryStreamLog(SMALL)
    running = Generation(log, numbers.write(), "text/plain", followed=True)
    await running.begin()
    await running.first_event(60)
    local: list[int] = []
    async with aclosing(running.follow(0)) as pages:
        async for page in pages:
            assert page.first == len(local) + 1
            local += [int(event[:4]) for event in page.events]
            assert await log.last(running.id) >= local[-1]
    assert local == ([] if tail_bytes == 3_000 else list(range(1, 11)))
    assert await read(log, running.id) == list(range(1, 11))
    await running.ended()


async def test_a_reader_in_this_process_keeps_its_stream_and_holds_its_generator_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "RENEW_S", 0.01)
    numbers, log = Numbers(10**6), MemoryStreamLog(SMALL)
    running = Generation(log, numbers.write(), "text/plain", linger_s=0.05, followed=True)
    await running.begin()
    async with aclosing(running.follow(0)) as pages:
        for _ in range(20):
            await anext(pages)
        assert numbers.generated < 2_000
        assert await log.outcome(running.id, 10**9) is None
    await running.ended()
    assert await log.outcome(running.id, 10**9) == "stopped"


async def test_readers_of_different_speeds_get_every_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "AHEAD_BYTES", 10_000)
    log = MemoryStreamLog(SMALL)
    running = Generation(log, Numbers(200).write(), "text/plain")
    await running.begin()
    found = await asyncio.gather(read(log, running.id), read(log, running.id, pause_s=0.01))
    assert found == [list(range(1, 201))] * 2
    await running.ended()


async def test_a_generator_at_the_limit_of_its_log_ends_after_linger_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RENEW_S", 0.01)
    numbers, log = Numbers(10**6), MemoryStreamLog(SMALL)
    running = Generation(log, numbers.write(), "text/plain", linger_s=0.05)
    await running.begin()
    await running.ended()
    assert await log.outcome(running.id, 20) == "stopped"


async def test_a_stream_for_which_the_log_has_no_room_ends_with_that_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "FULL_S", 0.1)
    log = MemoryStreamLog(SMALL)
    generations = [Generation(log, Numbers(100).write(), "text/plain") for _ in range(3)]
    for each in generations:
        await each.begin()
    await generations[2].ended()
    assert [await log.outcome(each.id, 20) for each in generations] == [None, None, "full"]
    assert f"stream {generations[2].id} ends, because its log has no room for its next event" in caplog.text
    for each in generations[:2]:
        await each.cancel()


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
