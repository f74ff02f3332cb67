"""The app of the admin process."""

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response

from app_toolkit.client.client import Client
from app_toolkit.client.commands import GetStatus
from app_toolkit.observability.aggregate import MetricsAggregate


def create_app(client: Client, metrics: MetricsAggregate) -> FastAPI:
    """Return the app that serves the metrics and the admin API of the instance of this client."""
    app = FastAPI(title="app_toolkit admin API", docs_url=None, redoc_url=None, openapi_url="/api/openapi.json")

    @app.get("/metrics", include_in_schema=False)
    def get_metrics(request: Request) -> Response:
        """Return the metrics of the whole instance for Prometheus."""
        content, media_type = metrics.exposition(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": media_type})

    @app.get("/api/status")
    def get_status() -> Any:
        """Return the status of the instance."""
        return asdict(client.execute(GetStatus()))

    return app
