"""The calls that append the events of all streams of one process, and renew their leases."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from app_toolkit.streaming import MemoryStreamLog, writer
from app_toolkit.streaming.generation import Generation
from app_toolkit.streaming.stream_log import Append, Renewal
from tests.patience import until

pytestmark = pytest.mark.anyio

SSE = "text/event-stream"


class Log(MemoryStreamLog):
    """Notes which streams one call renews or appends to, and fails if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals: list[set[str]] = []
        self.appends: list[dict[str, tuple[bytes, ...]]] = []
        self.fails = False
        self.open = asyncio.Event()
        self.open.set()

    async def append(self, appends: Sequence[Append]) -> list[Renewal | None]:
        self.renewals.append({each.stream for each in appends})
        self.appends.append({each.stream: each.events for each in appends if each.events})
        await self.open.wait()
        if self.fails:
            raise ConnectionError("the log is not reachable")
        return await super().append(appends)


async def silent() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def begun(log: Log) -> Generation:
    generation = Generation(log, silent(), SSE)
    await generation.begin()
    return generation


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RENEW_S", 0.05)


def renewing() -> int:
    return sum(task.get_name() == "app-toolkit stream writer" for task in asyncio.all_tasks())


async def test_one_call_renews_all_streams_of_a_log() -> None:
    log = Log()
    generations = [await begun(log) for _ in range(3)]
    ids = {each.id for each in generations}
    await until(lambda: log.renewals.count(ids) >= 2)
    assert renewing() == 1
    await generations[0].cancel()
    log.renewals.clear()
    await until(lambda: ids - {generations[0].id} in log.renewals)
    assert not any(generations[0].id in renewed for renewed in log.renewals)
    for generation in generations:
        await generation.cancel()
    assert not renewing()


async def test_each_log_has_its_own_renewals() -> None:
    one, other = Log(), Log()
    one.fails = True
    generations = [await begun(one), await begun(other)]
    await until(lambda: min(len(one.renewals), len(other.renewals)) >= 2)
    assert renewing() == 2
    for generation in generations:
        await generation.cancel()


async def test_a_failed_renewal_is_repeated_and_a_stop_is_obeyed_then() -> None:
    log = Log()
    log.fails = True
    generation = await begun(log)
    await log.stop(generation.id)
    await until(lambda: len(log.renewals) >= 2)
    log.fails = False
    await generation.ended()
    assert await log.outcome(generation.id, 0) == "stopped"
    assert not renewing()


class Model:
    """Yields the events that it is given, until it is given None."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def write(self) -> AsyncIterator[bytes]:
        while (event := await self.events.get()) is not None:
            yield event


async def test_one_call_appends_the_events_of_all_streams() -> None:
    log, models = Log(), [Model() for _ in range(100)]
    generations = [Generation(log, model.write(), SSE) for model in models]
    for generation in generations:
        await generation.begin()
    log.open.clear()
    models[0].events.put_nowait(b"1")
    await until(lambda: bool(log.appends))
    log.appends.clear()
    for model in models:
        for event in (b"2", b"3", None):
            model.events.put_nowait(event)
    await until(lambda: all(each.events.empty() for each in models))
    log.open.set()
    for generation in generations:
        await generation.ended()
    assert {stream: events for call in log.appends for stream, events in call.items()} == {
        each.id: (b"2", b"3") for each in generations
    }
    assert len([call for call in log.appends if call]) == 1
    assert not renewing()


async def test_a_call_has_batch_bytes_at_most_or_a_single_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_BYTES", 3_000)
    log, models = Log(), [Model() for _ in range(5)]
    generations = [Generation(log, model.write(), SSE) for model in models]
    for model in models:
        for event in (b"x" * 1_000, b"y" * 1_000, b"z" * 9_000, None):
            model.events.put_nowait(event)
    for generation in generations:
        await generation.begin()
    for generation in generations:
        await generation.ended()
        assert await log.outcome(generation.id, 3) == "finished"
    calls = [[event for events in call.values() for event in events] for call in log.appends]
    assert all(sum(map(len, events[:-1])) < 3_000 for events in calls if events)


async def test_an_append_that_fails_ends_its_streams_and_not_those_that_are_only_renewed() -> None:
    log, model = Log(), Model()
    quiet, busy = await begun(log), Generation(log, model.write(), SSE)
    await busy.begin()
    log.fails = True
    model.events.put_nowait(b"event")
    await busy.ended()
    assert await log.outcome(busy.id, 0) == "lost"
    log.fails = False
    assert await log.outcome(quiet.id, 0) is None
    await quiet.cancel()


async def test_the_memory_of_large_streams_is_given_back_some_time_after_the_last_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimmed = asyncio.Event()
    monkeypatch.setattr(writer, "trim", trimmed.set)
    monkeypatch.setattr(writer, "TRIM_S", 0.0)
    monkeypatch.setattr(writer, "TRIM_BYTES", 10_000)

    async def events(size: int) -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * size

    small = Generation(Log(), events(1), SSE)
    await small.begin()
    await small.ended()
    await asyncio.sleep(0)
    assert not trimmed.is_set()
    large = Generation(Log(), events(1_000), SSE)
    await large.begin()
    await large.ended()
    await until(trimmed.is_set)
