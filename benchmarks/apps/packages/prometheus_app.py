"""The Prometheus client in multiprocess mode: both processes write their counters to one folder."""

import os
from typing import TypeVar

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest, multiprocess

from app_toolkit import Toolkit

A = TypeVar("A", bound=FastAPI)

VISITS = Counter("visits", "How often /visit was asked", registry=CollectorRegistry())


def counting(app: A) -> A:
    @app.get("/visit")
    async def visit() -> int:
        VISITS.inc()
        return os.getpid()

    @app.get("/metrics")
    def metrics() -> Response:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


app = counting(Toolkit())
