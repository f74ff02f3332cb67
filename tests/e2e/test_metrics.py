"""The metrics of an instance on Ray: every process pushes, and the admin process exposes the sums."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.patience import PATIENCE_S, wait_until
from tests.running import runs

HERE = Path(__file__).parent
REQUESTS = "app_toolkit_requests_total"

pytestmark = pytest.mark.ray


class Measured:
    """`app-toolkit run` with the app of `measured.py`, and its metrics."""

    def __init__(self, url: str, admin_url: str) -> None:
        self.url = url
        self.admin_url = admin_url

    def get(self, path: str) -> httpx.Response:
        """Send a request on a connection of its own, so that it may go to any replica."""
        return httpx.get(f"{self.url}{path}", trust_env=False, timeout=PATIENCE_S)

    def replicas(self, deployment: str) -> set[str]:
        status = httpx.get(f"{self.admin_url}/api/status", trust_env=False).json()
        [application] = status["applications"]
        [found] = [each for each in application["deployments"] if each["name"].endswith(f"/{deployment}")]
        return {each["id"] for each in found["replicas"] if each["phase"] == "running"}

    def scrape(self) -> str:
        return httpx.get(f"{self.admin_url}/metrics", trust_env=False).text

    def samples(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """Return the samples of this name that have these labels."""
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(self.scrape())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def total(self, name: str, **labels: str) -> float:
        return sum(value for _, value in self.samples(name, **labels))


@pytest.fixture(scope="module")
def measured() -> Iterator[Measured]:
    with runs() as start:
        run: Any = start(str(HERE / "measured.py"), "--admin-port", "0", env=os.environ | {"APP_TOOLKIT_ADMIN": "true"})
        url = run.url()
        found = re.search(r"Dashboard at (http\S+)", "".join(run.until_said("Dashboard at")))
        assert found is not None, run.said
        yield Measured(url, found[1])


def test_metrics_are_the_sums_over_all_processes(measured: Measured) -> None:
    total, samples = measured.total, measured.samples
    pids = {measured.get("/orders/book").json() for _ in range(40)}
    assert len(pids) == 2, "both replicas have served"
    for path, status in (("/orders/none", 404), ("/nowhere/7", 404), ("/double/4", 200), ("/ticks", 200)):
        assert measured.get(path).status_code == status
    wait_until(lambda: total(REQUESTS, deployment="web") == 44)
    (labels, value), *others = samples(REQUESTS, route="/orders/{kind}", status="200")
    assert (value, others) == (40, [])
    assert labels == {
        **{"application": "default", "revision": "1", "deployment": "web"},
        **{"route": "/orders/{kind}", "method": "GET", "status": "200", "outcome": "ok"},
    }
    assert total(REQUESTS, route="/orders/{kind}", status="404") == 1
    assert total(REQUESTS, route="-") == 1, "no route matched"
    assert total("app_toolkit_request_duration_seconds_count", deployment="web") == 44
    assert total("app_toolkit_request_first_byte_seconds_count", deployment="web") == 44
    assert total("app_toolkit_stream_gap_seconds_count") > 0
    # Of replicas.
    wait_until(lambda: total("app_toolkit_calls_total", deployment="doubler", method="double", outcome="ok") == 1)
    wait_until(lambda: total("app_toolkit_batch_size_sum", deployment="doubler", function="Doubler.double") == 1)
    # Of user code: counters are added up, and gauges have the replica.
    wait_until(lambda: total("shop_orders_total") == 41)
    assert total("shop_orders_total", kind="book") == 40
    wait_until(
        lambda: {labels["replica"] for labels, _ in samples("shop_depth", deployment="web")} == measured.replicas("web")
    )
    assert total("shop_depth") == 14
    assert total("http_requests_total", handler="/orders/{kind}", deployment="web") == 41
    assert total("http_request_duration_seconds_count", deployment="web") == 44
    # Of the controller and of the processes.
    assert total("app_toolkit_replicas", deployment="web", phase="running") == 2
    assert total("app_toolkit_replicas_desired", deployment="web") == 2
    assert total("app_toolkit_replicas_desired_reason", reason="fixed") == 2
    assert total("app_toolkit_replica_start_seconds_count", deployment="web") == 2
    assert total("app_toolkit_traffic_weight", application="default", revision="1") == 1
    assert total("app_toolkit_process_resident_memory_bytes", component="replica") > 3 * 10e6
    assert total("app_toolkit_process_cpu_seconds_total", component="replica") > 0
    assert len(samples("app_toolkit_event_loop_lag_seconds", component="replica")) == 3
    components = {labels["component"]: value for labels, value in samples("app_toolkit_metrics_processes")}
    assert components == {"proxy": 1, "replica": 3, "controller": 1, "admin": 1}


def test_counters_do_not_decrease_if_replicas_are_killed(measured: Measured) -> None:
    total = measured.total
    requests = total(REQUESTS, deployment="web")
    pids = {measured.get("/orders/book").json() for _ in range(40)}
    orders, old = total("shop_orders_total"), measured.replicas("web")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(measured.replicas("web") - old) == 2)
    assert measured.get("/orders/book").status_code == 200
    wait_until(lambda: total(REQUESTS, deployment="web") == requests + 41)
    assert total("shop_orders_total") >= orders
    gauges = "app_toolkit_replica_ongoing_requests"
    wait_until(
        lambda: {each["replica"] for each, _ in measured.samples(gauges, deployment="web")} == measured.replicas("web")
    )
    wait_until(lambda: total("app_toolkit_replica_restarts_total", deployment="web") == 2)
