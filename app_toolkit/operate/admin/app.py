"""The app of the admin routes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from app_toolkit.config.models import AdminOptions
from app_toolkit.errors import ConfigError, ControlError, InstanceEnded, RequestError, ToolkitError
from app_toolkit.operate.admin.api import create_router
from app_toolkit.operate.admin.security import Guard
from app_toolkit.operate.aggregate import MetricsAggregate
from app_toolkit.operate.client import Client
from app_toolkit.operate.dashboard.live import Live
from app_toolkit.operate.dashboard.router import dashboard_files, dashboard_router, page_paths

THREADS = 256
"""Requests that may wait for the instance at the same time, such as those that wait for a change of the status."""

MISTAKES = 20
"""Mistakes in one request that a response names."""


def create_app(client: Client, metrics: MetricsAggregate, options: AdminOptions, token: str | None) -> FastAPI:
    """Return the app that serves the metrics, the admin API and the dashboard of the instance of this client.

    `token`: what clients must present; None: nothing.
    """
    live = Live(client, metrics.latest)

    @asynccontextmanager
    async def follow(app: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = THREADS
        following = asyncio.create_task(live.run())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    app = FastAPI(
        title="app_toolkit admin API",
        openapi_url="/api/openapi.json",
        docs_url=None,  # their pages load scripts from another host
        redoc_url=None,
        lifespan=follow,
    )
    app.state.live = live
    app.add_middleware(Guard, host=options.admin_host, token=token, public=page_paths())
    app.add_exception_handler(ToolkitError, _show_error)
    app.add_exception_handler(RequestValidationError, _show_mistakes)

    @app.get("/metrics", include_in_schema=False)
    def get_metrics(request: Request) -> Response:
        """Return the metrics of the whole instance for Prometheus."""
        content, media_type = metrics.exposition(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": media_type})

    app.include_router(create_router(client))
    app.include_router(dashboard_router(live))
    app.mount("/", dashboard_files())
    return app


def status_of(error: ToolkitError) -> int:
    """Return the HTTP status for an error of a command."""
    match error:
        case ConfigError() | RequestError():
            return error.status
        case InstanceEnded() | ControlError():
            return 503
    return 500


async def _show_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ToolkitError)
    content = {"detail": str(error), "error": type(error).__name__, "notes": getattr(error, "__notes__", [])}
    return JSONResponse(content, status_of(error))


async def _show_mistakes(request: Request, error: Exception) -> Response:
    """Name the fields with mistakes, but not their values, which may be secrets."""
    assert isinstance(error, RequestValidationError)
    mistakes = (
        f"{'.'.join(map(str, mistake['loc']))[:200]}: {mistake['msg'][:1].lower()}{mistake['msg'][1:]}"
        for mistake in error.errors()[:MISTAKES]
    )
    return JSONResponse({"detail": "; ".join(mistakes), "error": ConfigError.__name__, "notes": []}, 422)
