"""The metrics of one process, which every exporter of `prometheus_client` shows."""

import os
from collections.abc import Iterator

import pytest
from fastapi import Depends
from prometheus_client import REGISTRY, make_asgi_app
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from prometheus_fastapi_instrumentator import Instrumentator
from starlette.testclient import TestClient

from app_toolkit import Deployment, DeploymentConfig, Toolkit, batch
from app_toolkit.engines.one_process.calls import IN_PROCESS
from app_toolkit.operate.metrics import METRICS

CALLS = "app_toolkit_calls_total"


class Doubler(Deployment):
    @batch(max_batch_size=4)
    async def double(self, numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]


@pytest.fixture
def client() -> Iterator[TestClient]:
    """An app with metrics of its own, whose route /metrics is that of `prometheus_client`."""
    app = Toolkit(deployment=DeploymentConfig(name="measured_web", faults={"headers": True}))
    doublers = Doubler.options(name="measured_doubler").bind()

    @app.get("/double/{number}")
    async def double(number: int, doubler: Doubler = Depends(doublers)) -> int:
        return await doubler.double(number)

    Instrumentator().instrument(app)
    app.mount("/metrics", make_asgi_app())
    with TestClient(app) as client:
        yield client
    IN_PROCESS.close()


def scraped(client: TestClient) -> list[Sample]:
    """Return all samples of this process. After many tests, they are so many that reading them takes 0.3 s."""
    families = text_string_to_metric_families(client.get("/metrics/").text)
    return [sample for family in families for sample in family.samples]


def total(samples: list[Sample], name: str, **labels: str) -> float:
    """Return the sum of the samples of this name that have these labels."""
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


def test_metrics_of_the_toolkit_and_of_user_code_are_in_one_registry(client: TestClient) -> None:
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
    for number in range(3):
        assert client.get(f"/double/{number}").status_code == 200
    web, doubler = {"deployment": "measured_web"}, {"deployment": "measured_doubler"}
    samples = scraped(client)
    route = {"route": "/double/{number}", "method": "GET", "status": "200", "outcome": "ok"}
    assert total(samples, "app_toolkit_requests_total", application="-", revision="-", **web, **route) == 3
    assert total(samples, "app_toolkit_request_duration_seconds_count", route="/double/{number}", **web) == 3
    assert total(samples, "app_toolkit_request_duration_seconds_bucket", route=route["route"], le="+Inf", **web) == 3
    assert total(samples, CALLS, method="double", outcome="ok", **doubler) == 3
    assert total(samples, "app_toolkit_batch_size_sum", **doubler) == 3
    assert total(samples, "app_toolkit_requests_ongoing", **web) == 1, "the scrape itself"
    assert client.get("/double/3", headers={"x-fault-abort-status": "503"}).status_code == 503
    samples = scraped(client)
    assert total(samples, "app_toolkit_faults_injected_total", kind="abort", **web) == 1
    assert total(samples, "http_requests_total", handler="/double/{number}") == 3


def test_names_and_labels_are_those_of_the_table(client: TestClient) -> None:
    client.get("/double/1")
    families = [each for each in REGISTRY.collect() if each.name.startswith("app_toolkit_")]
    assert len(families) > 10
    for family in families:
        metric = METRICS[family.name + "_total" * (family.type == "counter")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert all({*sample.labels} - {"le"} == {*metric.labels} for sample in family.samples)
