"""The routes of the dashboard: its static files, the stream of live documents, and the past of the charts."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.staticfiles import StaticFiles

from app_toolkit.operate.dashboard.live import MOST_STREAMS, Live

STATIC = Path(__file__).parent / "static"


def dashboard_files() -> StaticFiles:
    """Return the page as an ASGI app. It contains no data, and gets them from the API."""
    return StaticFiles(directory=STATIC, html=True)


def page_paths() -> frozenset[str]:
    """Return the paths of the page and its files."""
    return frozenset(
        {"/", *(f"/{file.relative_to(STATIC).as_posix()}" for file in STATIC.rglob("*") if file.is_file())}
    )


def dashboard_router(live: Live) -> APIRouter:
    """Return the routes with the data of the page, below `/api`."""
    router = APIRouter(prefix="/api", tags=["dashboard"])

    async def open_page() -> AsyncIterator[AsyncIterator[str]]:
        if live.is_full:
            raise HTTPException(503, f"{MOST_STREAMS} pages of the dashboard are open, which is the limit")
        with live.page() as documents:  # before the response begins: many pages may be opened at the same time
            yield documents

    @router.get("/live", response_class=EventSourceResponse)
    async def follow(documents: Annotated[AsyncIterator[str], Depends(open_page)]) -> AsyncIterator[ServerSentEvent]:
        """Follow the instance: first its state, and then what has changed, at most once each second."""
        async for document in documents:
            yield ServerSentEvent(raw_data=document)

    @router.get("/series")
    def series(
        name: Annotated[str, Query(description="`APPLICATION/DEPLOYMENT`, `APPLICATION`, or empty: the instance")] = "",
    ) -> dict[str, list[float | None]]:
        """Return the rates, latencies and gauges of the last 15 minutes, a list for each."""
        return live.history.series(name)

    return router
