"""OpenTelemetry's instrumentation of FastAPI: the spans of a handler belong to the trace of its client."""

import os
from typing import TypeVar

import httpx
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from pins import ONE

from app_toolkit import Toolkit

A = TypeVar("A", bound=FastAPI)


def instrumented(app: A) -> A:
    @app.get("/trace")
    async def seen() -> dict[str, object]:
        span = trace.get_current_span()
        parent = getattr(span, "parent", None)
        return {
            "trace": f"{span.get_span_context().trace_id:032x}",
            "parent": f"{parent.span_id:016x}" if parent else None,
            "records": span.is_recording(),
        }

    FastAPIInstrumentor.instrument_app(app, tracer_provider=TracerProvider(), exclude_spans=["send", "receive"])
    return app


app = instrumented(FastAPI())
pinned = instrumented(Toolkit(deployment=ONE))


async def traced(url: str, number: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=10) as client:
        for _ in range(3):
            began, parent = os.urandom(16).hex(), os.urandom(8).hex()
            answer = await client.get("/trace", headers={"traceparent": f"00-{began}-{parent}-01"})
            assert answer.json() == {"trace": began, "parent": parent, "records": True}, answer.text
