"""The documents that the pages get, of a simulated instance."""

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI

from app_toolkit.control.operations import Scale
from app_toolkit.operate.aggregate import Numbers
from app_toolkit.operate.dashboard.live import MOST_STREAMS, Live
from app_toolkit.operate.dashboard.router import dashboard_router
from app_toolkit.operate.dashboard.tables import COLUMNS
from benchmarks.simulated import SimulatedClient, Traffic, application, simulated
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents and samples come twenty times as often as in an instance."""
    monkeypatch.setattr("app_toolkit.operate.dashboard.live.UPDATE_S", 0.05)
    monkeypatch.setattr("app_toolkit.operate.dashboard.live.EVERY_S", 0.1)


@asynccontextmanager
async def running(client: SimulatedClient) -> AsyncIterator[Live]:
    live = Live(client, Traffic(client).latest)
    task = asyncio.create_task(live.run())
    try:
        yield live
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Page:
    """Takes documents as the page does."""

    def __init__(self, live: Live) -> None:
        self._opened = ExitStack()
        self._documents = self._opened.enter_context(live.page())
        self.tables: dict[str, dict[str, Any]] = {}
        self.wholes = 0

    async def take(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(await anext(self._documents))
        if document.get("whole"):
            self.tables = {}
            self.wholes += 1
        for name in ("applications", "deployments", "proxies", "numbers", "processes"):
            rows = document.get(name, {})
            table = self.tables.setdefault(name, {})
            table.update(rows)
            self.tables[name] = {key: row for key, row in table.items() if row is not None}
        return document

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not (self.wholes and condition(self.tables)):
                await self.take()

    async def close(self) -> None:
        await self._documents.aclose()  # type: ignore[attr-defined]
        self._opened.close()


async def test_page_gets_the_whole_state_and_then_what_changes() -> None:
    with simulated(application("shop")) as client:
        async with running(client) as live:
            page = Page(live)
            first = await page.take()
            assert first["whole"]
            assert first["columns"] == list(COLUMNS)
            assert set(page.tables["deployments"]) == {"shop/web", "shop/m0", "shop/m1"}
            await page.until(lambda tables: tables["applications"]["shop"]["status"] == "healthy")
            client.execute(Scale("shop/m1", 3))
            await page.until(lambda tables: tables["deployments"]["shop/m1"]["counts"] == {"running": 3})
            assert page.wholes == 1
            await page.close()


async def test_documents_name_only_the_rows_that_changed() -> None:
    with simulated(application("shop"), application("search")) as client:
        async with running(client) as live:
            page = Page(live)
            await page.until(lambda tables: all(a["status"] == "healthy" for a in tables["applications"].values()))
            client.execute(Scale("shop/m1", 3))
            while "deployments" not in (document := await page.take()):
                pass
            assert set(document["deployments"]) == {"shop/m1"}
            await page.close()


async def test_page_that_missed_documents_gets_the_whole_state_again() -> None:
    with simulated(application("shop")) as client:
        async with running(client) as live:
            slow, fast = Page(live), Page(live)
            await slow.take()
            for _ in range(4):
                await fast.take()
            await slow.take()
            assert (slow.wholes, fast.wholes) == (2, 1)
            await slow.close()
            await fast.close()


async def test_controller_is_asked_only_while_a_page_is_open() -> None:
    with simulated(application("shop")) as client:
        asked: list[object] = []
        execute = client.execute
        client.execute = lambda command: (asked.append(command), execute(command))[1]  # type: ignore[method-assign]
        live = Live(client, lambda: Numbers(0.0, {}, {}))
        task = asyncio.create_task(live.run())
        async with asyncio.timeout(PATIENCE_S):
            while len(live.history.series("")["at"]) < 2:  # noqa: ASYNC110 - a condition that nobody tells of
                await asyncio.sleep(0.05)
        assert not asked
        page = Page(live)
        await page.take()
        assert asked
        await page.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_streams_end_if_the_server_stops() -> None:
    with simulated(application("shop")) as client:
        async with running(client) as live:
            with live.page() as documents:
                await anext(documents)
                await live.close()
                with pytest.raises(StopAsyncIteration):
                    await anext(documents)


async def test_pages_that_open_at_the_same_time_are_admitted_up_to_the_limit() -> None:
    with simulated(application("shop")) as client:
        live = Live(client, lambda: Numbers(0.0, {}, {}))
        app = FastAPI()
        app.include_router(dashboard_router(live))
        refused = [asyncio.Event() for _ in range(8)]

        async def open_page() -> None:
            async def receive() -> dict[str, Any]:
                await asyncio.Event().wait()
                return {}

            async def send(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start" and message["status"] == 503:
                    refused.pop().set()

            await app(scope, receive, send)

        scope = {"type": "http", "method": "GET", "path": "/api/live", "query_string": b"", "headers": []}
        refusals = [each.wait() for each in refused]
        pages = [asyncio.create_task(open_page()) for _ in range(MOST_STREAMS + len(refused))]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*refusals)
        assert live.is_full
        assert sum(not page.done() for page in pages) == MOST_STREAMS
        for page in pages:
            page.cancel()
        await asyncio.gather(*pages, return_exceptions=True)
        assert not live.is_full


async def test_history_has_the_points_of_each_name() -> None:
    with simulated(application("shop")) as client:
        async with running(client) as live:
            page = Page(live)
            await page.until(lambda tables: tables["numbers"].get("shop/web", [0])[0] > 0)
            series = live.history.series("shop/web")
            assert len(series["at"]) == len(series["rate"]) >= 1
            await page.close()
