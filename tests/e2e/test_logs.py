"""The log records of an instance on processes, as its client finds them."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

from app_toolkit.config.models import ApplicationConfig
from app_toolkit.observability.log_formats import MOST_BYTES, shown
from app_toolkit.observability.log_query import LogPage, LogQuery
from tests.cluster import Cluster, Served
from tests.e2e.logged import CONFIG
from tests.patience import wait_until

REQUEST = "5f1c-2a"
FORGED = "tea\r\n2026-05-04 09:30:00.123 INFO shop [1]: paid\x1b[2K\x00"


@pytest.fixture(scope="module")
def shop(processes: Cluster) -> Iterator[Served]:
    served = processes.deploy("logged:app", num_replicas=2)
    yield served
    served.delete()


def records(page: LogPage) -> list[tuple[str, str, str]]:
    return [(each.deployment, each.logger, each.message) for each in page.records]


def test_id_finds_all_records_of_a_request_in_deployments_threads_batches_and_background_tasks(
    shop: Served, processes: Cluster
) -> None:
    with shop.client() as http:
        answer = http.get("/buy/7", headers={"x-request-id": REQUEST})
        assert answer.json() == 7
        assert http.get("/buy/8").json() == 8
    query = LogQuery(request_id=REQUEST)
    wait_until(lambda: len(processes.client.logs(query).records) == 6)  # a background task runs after the response
    found = processes.client.logs(query)
    assert records(found) == [
        ("app", "shop", "asked for 7"),
        ("app", "shop", "on a thread"),
        ("stock", "shop", "taken from the stock"),
        ("till", "stdout", "a receipt"),
        ("till", "shop", "a batch of 1"),
        ("app", "shop", "in a background task"),
    ]
    assert {each.application for each in found.records} == {shop.spec.name}
    assert {each.revision for each in found.records} == {1}
    assert (found.more, found.missing) == (False, ())
    warnings = LogQuery(shop.spec.name, level="warning", request_id=REQUEST)
    assert records(processes.client.logs(warnings)) == [("stock", "shop", "taken from the stock")]
    assert len(processes.client.logs(LogQuery(shop.spec.name, "stock")).records) == 2


def test_records_are_followed_and_those_of_ended_replicas_stay(processes: Cluster) -> None:
    served = processes.deploy("logged:alone")
    query = LogQuery(served.spec.name)
    page = processes.client.logs(query)
    assert records(page) == []
    with served.client() as http:
        assert http.get("/").status_code == 200
    page = processes.client.logs(query, after=page.positions)
    assert records(page) == [("app", "alone", "heard")]
    assert processes.client.logs(query, after=page.positions).records == ()
    served.delete()
    assert records(processes.client.logs(query)) == [("app", "alone", "heard")]


def test_text_of_a_client_is_one_bounded_and_escaped_record_in_all_logs(shop: Served, processes: Cluster) -> None:
    with shop.client() as http:
        for text, id in ((FORGED, "forged"), ("x" * 1_000_000, "long")):
            assert http.post("/echo", content=text, headers={"x-request-id": id}).status_code == 200
    (logged, *printed) = processes.client.logs(LogQuery(request_id="forged")).records
    assert logged.message == f"asked for {FORGED}"
    assert [each.message for each in printed] == FORGED.split("\n")
    for record in (logged, *printed):
        assert shown(record).isprintable()
        assert record.line.isprintable()
    long = processes.client.logs(LogQuery(request_id="long")).records
    assert len(long) == 2
    assert all(len(record.line) < MOST_BYTES and "bytes cut" in record.message for record in long)


def test_processes_apply_the_logging_configuration_of_their_application_before_they_import_it(
    processes: Cluster, tmp_path: Path
) -> None:
    config = copy.deepcopy(CONFIG)
    config["handlers"]["file"]["filename"] = str(tmp_path / "shop.log")
    served = processes.deploy("logged:app", config=ApplicationConfig(logging_config=config))
    with served.client() as http:
        assert http.post("/echo", content="tea", headers={"x-request-id": REQUEST}).status_code == 200
    lines = (tmp_path / "shop.log").read_text().splitlines()
    assert lines[:-1] == ["app [] imported"], "the process that is forked for each replica"
    assert lines[-1] == f"app [{REQUEST}] asked for tea"
    records = [each.message for each in processes.client.logs(LogQuery(served.spec.name, "app")).records]
    assert records == ["asked for tea", "tea"]
    served.delete()


def test_controller_and_proxies_have_log_files(processes: Cluster, shop: Served) -> None:
    proxy = processes.status()["proxies"][0]["replicas"][0]["id"]

    def files(query: LogQuery) -> list[str]:
        return [name for each in processes.client.logs(query).positions.values() for name in each]

    assert proxy in files(LogQuery(kind="proxies"))
    assert all(each.startswith("proxy@") for each in files(LogQuery(kind="proxies")))
    assert f"controller-{processes.controller_pid()}" in files(LogQuery(kind="controller"))
    assert all(each.startswith("controller-") for each in files(LogQuery(kind="controller")))
