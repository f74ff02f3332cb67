"""A process reports its loads to the controller."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from app_toolkit.contract.compared import Requests
from app_toolkit.contract.loads import Compared, Loads, Lost
from app_toolkit.observability import reports as module
from app_toolkit.observability.reports import Report, Reports
from tests.keys import app, key
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

CHAT = key("shop/chat")


@asynccontextmanager
async def reporting(
    loads: Callable[[], Loads], report: Report, compared: Callable[[], Compared] = dict
) -> AsyncIterator[Reports]:
    reports = Reports()
    reports.add(loads)
    reports.compared = compared
    run = asyncio.create_task(reports.run(report))
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield reports
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def test_waiting_for_the_first_replica_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOAD_CHECK_S", 3_600.0)
    reported: asyncio.Queue[Loads] = asyncio.Queue()

    async def report(loads: Loads, compared: Compared, lost: Lost) -> bool:
        reported.put_nowait(loads)
        return True

    async with reporting(lambda: {CHAT: (3, 0, 0, 0)}, report) as reports:
        reports.unserved()
        reports.unserved()
        assert await reported.get() == {CHAT: (3, 0, 0, 0)}
        assert reported.empty()


async def test_a_load_that_is_not_urgent_is_reported_at_the_next_look() -> None:
    reported: asyncio.Queue[Loads] = asyncio.Queue()

    async def report(loads: Loads, compared: Compared, lost: Lost) -> bool:
        reported.put_nowait(loads)
        return True

    async with reporting(lambda: {CHAT: (0, 2, 0, 0)}, report):
        assert await reported.get() == {CHAT: (0, 2, 0, 0)}


async def test_the_requests_of_compared_revisions_are_reported_when_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOAD_CHECK_S", 0.01)
    monkeypatch.setattr("app_toolkit.contract.loads.LEAST_S", 0.0)
    counts = Requests()
    reported: asyncio.Queue[Compared] = asyncio.Queue()
    answers = [True, False, True]

    async def report(loads: Loads, compared: Compared, lost: Lost) -> bool:
        assert not loads
        reported.put_nowait(compared)
        return answers.pop(0)

    looks: asyncio.Queue[None] = asyncio.Queue()

    def compared() -> Compared:
        looks.put_nowait(None)
        return {app("shop"): counts.copy()}

    async with reporting(dict, report, compared):
        assert await reported.get() == {app("shop"): Requests()}
        counts.requests = 3
        assert await reported.get() == {app("shop"): Requests(3)}
        assert await reported.get() == {app("shop"): Requests(3)}, "the report before was lost"
        for _ in range(looks.qsize() + 3):
            await looks.get()
        assert reported.empty(), "nothing has changed"


async def test_lost_report_is_sent_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "LOAD_CHECK_S", 0.01)
    tries: list[Loads] = []
    heard = asyncio.Event()

    async def report(loads: Loads, compared: Compared, lost: Lost) -> bool:
        tries.append(loads)
        if len(tries) == 2:
            raise RuntimeError("the wire broke")
        if len(tries) == 3:
            heard.set()
        return len(tries) == 3

    async with reporting(lambda: {CHAT: (0, 2, 0, 0)}, report):
        await heard.wait()
        await asyncio.sleep(0.05)
    assert tries == [{CHAT: (0, 2, 0, 0)}] * 3
    assert [record.getMessage() for record in caplog.records] == ["the load could not be reported"]
