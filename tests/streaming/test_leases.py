"""The leases of the streams that one process generates."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from app_toolkit.core.stream_log import Renewal
from app_toolkit.streaming import MemoryStreamLog
from app_toolkit.streaming.generation import Generation
from tests.patience import until

pytestmark = pytest.mark.anyio

SSE = "text/event-stream"


class Log(MemoryStreamLog):
    """Notes which streams are renewed together, and fails if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals: list[set[str]] = []
        self.fails = False

    async def renew(self, leases: Sequence[tuple[str, str]]) -> list[Renewal | None]:
        self.renewals.append({stream for stream, _ in leases})
        if self.fails:
            raise ConnectionError("the log is not reachable")
        return await super().renew(leases)


async def silent() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def begun(log: Log) -> Generation:
    generation = Generation(log, silent(), SSE)
    await generation.begin()
    return generation


def renewing() -> int:
    return sum(task.get_name() == "app-toolkit stream leases" for task in asyncio.all_tasks())


async def test_one_call_renews_all_streams_of_a_log() -> None:
    log = Log()
    generations = [await begun(log) for _ in range(3)]
    ids = {each.id for each in generations}
    await until(lambda: len(log.renewals) >= 2)
    assert log.renewals[:2] == [ids, ids]
    assert renewing() == 1
    await generations[0].cancel()
    log.renewals.clear()
    await until(lambda: bool(log.renewals))
    assert log.renewals == [ids - {generations[0].id}]
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
