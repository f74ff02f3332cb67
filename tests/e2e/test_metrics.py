"""The metrics of an instance on Ray: every process pushes, and the admin process exposes the sums."""

import os
import signal
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app_toolkit.client.commands import GetStatus
from app_toolkit.config.models import HTTPOptions
from tests.cluster import Cluster, Served
from tests.patience import wait_until

Labels = dict[str, str]


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Served]:
    served = cluster.deploy("measured:app")
    cluster.update(served.spec, HTTPOptions(admin=True, admin_port=0))
    wait_until(lambda: cluster.client.execute(GetStatus()).admin_url)
    yield served
    cluster.update(served.spec, HTTPOptions(admin=False))
    served.delete()
    wait_until(lambda: cluster.client.execute(GetStatus()).admin is None)


def get(served: Served, path: str) -> httpx.Response:
    """Send a request on a connection of its own, so that it may go to any replica."""
    with served.client() as client:
        return client.get(path)


def scrape(served: Served) -> str:
    url = served.cluster.client.execute(GetStatus()).admin_url
    return httpx.get(f"{url}/metrics", trust_env=False).text


def samples(served: Served, name: str, **labels: str) -> list[tuple[Labels, float]]:
    """Return the samples of this name and of this application that have these labels."""
    labels["application"] = served.spec.name
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(scrape(served))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def total(served: Served, name: str, **labels: str) -> float:
    return sum(value for _, value in samples(served, name, **labels))


def test_metrics_of_requests_calls_batches_and_user_code_are_the_sums_over_all_processes(served: Served) -> None:
    pids = {get(served, "/orders/book").json() for _ in range(40)}
    assert len(pids) == 2, "both replicas have served"
    with served.client() as client:
        for path, status in (("/orders/none", 404), ("/nowhere/7", 404), ("/double/4", 200), ("/ticks", 200)):
            assert client.get(path).status_code == status
    prefix = served.spec.route_prefix
    wait_until(lambda: total(served, "app_toolkit_requests_total") == 44)
    wait_until(lambda: total(served, "shop_orders_total") == 41)
    revision = str(served.status()["serving_revision"])
    (labels, value), *others = samples(
        served, "app_toolkit_requests_total", route=f"{prefix}/orders/{{kind}}", status="200"
    )
    assert value == 40
    assert (labels["deployment"], labels["method"], labels["outcome"]) == ("web", "GET", "ok")
    assert (labels["revision"], others) == (revision, [])
    assert total(served, "app_toolkit_requests_total", route=f"{prefix}/orders/{{kind}}", status="404") == 1
    assert total(served, "app_toolkit_requests_total", route="-") == 1, "no route matched"
    assert total(served, "app_toolkit_request_duration_seconds_count") == 44
    assert total(served, "app_toolkit_request_first_byte_seconds_count") == 44
    assert total(served, "app_toolkit_stream_gap_seconds_count") > 0
    wait_until(lambda: total(served, "app_toolkit_calls_total", deployment="Doubler", method="double") == 1)
    wait_until(lambda: total(served, "app_toolkit_batch_size_sum", function="Doubler.double") == 1)
    # Of user code: counters are added up, and gauges have the replica.
    assert total(served, "shop_orders_total", kind="book") == 40
    depths = samples(served, "shop_depth")
    assert {labels["replica"] for labels, _ in depths} == {each["id"] for each in served.ingress("web")["replicas"]}
    assert {value for _, value in depths} == {7}
    assert total(served, "http_requests_total", handler="/orders/{kind}") == 41
    assert total(served, "http_request_duration_seconds_count", deployment="web") == 44
    # Of the controller and of the processes.
    assert total(served, "app_toolkit_replicas", deployment="web", phase="running") == 2
    assert total(served, "app_toolkit_replicas_desired", deployment="web") == 2
    assert total(served, "app_toolkit_replicas_desired_reason", reason="fixed") == 2
    assert total(served, "app_toolkit_replica_start_seconds_count", deployment="web") == 2
    assert total(served, "app_toolkit_traffic_weight", revision=revision) == 1
    assert total(served, "app_toolkit_process_resident_memory_bytes", component="replica") > 3 * 10e6
    assert total(served, "app_toolkit_process_cpu_seconds_total", component="replica") > 0
    assert len(samples(served, "app_toolkit_event_loop_lag_seconds", component="replica")) == 3
    reporting = {"proxy": 1, "replica": 3, "controller": 1, "admin": 1}
    text = scrape(served)
    for component, count in reporting.items():
        assert f'app_toolkit_metrics_processes{{component="{component}"}} {count}\n' in text


def test_counters_do_not_decrease_if_replicas_are_killed(served: Served) -> None:
    for _ in range(20):
        get(served, "/orders/book")
    requests, orders = total(served, "app_toolkit_requests_total"), total(served, "shop_orders_total")
    old = {each["id"] for each in served.ingress("web")["replicas"]}
    for each in old:
        os.kill(served.cluster.pid(each), signal.SIGKILL)
    wait_until(lambda: not old & {each["id"] for each in served.ingress("web")["replicas"]})
    served.wait(lambda now: now["status"] == "healthy")
    assert total(served, "shop_orders_total") >= orders
    get(served, "/orders/book")
    wait_until(lambda: total(served, "app_toolkit_requests_total") == requests + 21)
    gauges = "app_toolkit_replica_ongoing_requests"
    wait_until(lambda: len(samples(served, gauges, deployment="web")) == 2)
    assert not old & {labels["replica"] for labels, _ in samples(served, gauges)}
    wait_until(lambda: total(served, "app_toolkit_replica_restarts_total", deployment="web") == 2)
