import asyncio

import httpx2
import pytest

from load import measure, summarise
from {{ cookiecutter.package_name }}.app import app
from {{ cookiecutter.package_name }}.classifier import Classifier


def test_the_summary_counts_batches_and_not_texts() -> None:
    summary = summarise([0.010, 0.020, 0.030, 0.040], [1, 3, 3, 3], total_s=2)
    assert (summary.requests, summary.per_second) == (4, 2)
    assert [summary.mean_batch, summary.p50_ms, summary.p99_ms] == pytest.approx([2, 30, 40])


def test_requests_at_the_same_time_share_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classifier.predict.batch, "max_batch_size", 4)
    monkeypatch.setattr(Classifier.predict.batch, "batch_wait_timeout_s", 60)  # a batch runs only if it is full

    async def load() -> float:
        async with app.router.lifespan_context(app):
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://app") as client:
                return (await measure(client, requests=64, concurrency=16)).mean_batch

    assert asyncio.run(load()) == 4
