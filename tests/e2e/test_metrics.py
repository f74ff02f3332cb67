"""The metrics of an instance on processes: every process pushes, and the admin server exposes the sums."""

import os
import re
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.patience import PATIENCE_S, wait_until
from tests.running import runs

HERE = Path(__file__).parent
REQUESTS = "app_toolkit_requests_total"


class Measured:
    """`app-toolkit run` with the app of `measured.py`, and its metrics."""

    def __init__(self, url: str, admin_url: str) -> None:
        self.url = url
        self.admin_url = admin_url
        self.sent = 0
        """The requests that `get` has sent."""

    def get(self, path: str) -> httpx.Response:
        """Send a request on a connection of its own, so that it may go to any replica."""
        self.sent += 1
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
        environment = os.environ | {"APP_TOOLKIT_ADMIN": "true"}
        run: Any = start(str(HERE / "measured.py"), "--engine", "processes", "--admin-port", "0", env=environment)
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
    assert components == {"proxy": 1, "replica": 3, "controller": 1}


def test_exposition_of_a_real_instance_parses_in_both_formats(measured: Measured) -> None:
    measured.get("/orders/book")
    wait_until(lambda: measured.total(REQUESTS) == measured.sent and measured.samples("shop_orders_total"))
    texts = []
    for accept, parse in (
        ("text/plain", text_string_to_metric_families),
        ("application/openmetrics-text; version=1.0.0", openmetrics.text_string_to_metric_families),
    ):
        response = httpx.get(f"{measured.admin_url}/metrics", headers={"accept": accept}, trust_env=False)
        assert response.headers["content-type"].startswith(accept.partition(";")[0])
        found = {sample.name for family in parse(response.text) for sample in family.samples}
        assert found >= {REQUESTS, "app_toolkit_replicas", "shop_orders_total", "shop_depth"}
        texts.append(response.text)
    if promtool := shutil.which("promtool"):
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=texts[0], capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stdout) == (0, ""), checked.stderr


class Load:
    """Clients on threads, which count the status and the outcome of each response."""

    def __init__(self, measured: Measured) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._measured = measured
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _run(self) -> None:
        paths = cycle(("/orders/book", "/ticks", "/orders/none", "/double/4"))
        while not self._stopped.is_set():
            outcome = self._ask(next(paths))
            with self._lock:
                self.counts[outcome] += 1

    def _ask(self, path: str) -> tuple[str, str]:
        with httpx.stream("GET", f"{self._measured.url}{path}", trust_env=False, timeout=PATIENCE_S) as response:
            try:
                body = response.read()
            except httpx.RemoteProtocolError:
                return str(response.status_code), "cut"
        if response.status_code >= 500:
            return str(response.status_code), response.json()["error"]
        return str(response.status_code), "cut" if path == "/ticks" and body.count(b"data:") < 5 else "ok"


@pytest.mark.slow
def test_totals_are_the_counts_of_the_clients_while_replicas_are_killed(measured: Measured) -> None:
    total = measured.total

    def requests() -> Counter[tuple[str, str]]:
        found = measured.samples(REQUESTS, deployment="web")
        counts: Counter[tuple[str, str]] = Counter()
        for labels, value in found:
            counts[labels["status"], labels["outcome"]] += int(value)
        return counts

    pids = {measured.get("/orders/book").json() for _ in range(40)}
    wait_until(lambda: total(REQUESTS, deployment="web") == measured.sent)
    before, orders, old = requests(), total("shop_orders_total"), measured.replicas("web")
    with Load(measured) as load:
        for pid in pids:
            served = load.counts["200", "ok"]
            wait_until(lambda served=served: load.counts["200", "ok"] > served + 20)
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(measured.replicas("web") - old) == 2)
    wait_until(lambda: requests() - before == load.counts)
    assert total("shop_orders_total") >= orders
    gauges = "app_toolkit_replica_ongoing_requests"
    wait_until(
        lambda: {each["replica"] for each, _ in measured.samples(gauges, deployment="web")} == measured.replicas("web")
    )
    wait_until(lambda: total("app_toolkit_replica_restarts_total", deployment="web") == 2)
