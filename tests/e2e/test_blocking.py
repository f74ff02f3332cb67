"""A route that blocks its event loop: it costs one replica, and the requests beside it nothing."""

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster, Served


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Served]:
    served = cluster.deploy("blocking:app", num_replicas=2)
    assert served.status()["status"] == "healthy", served.status()
    yield served
    served.delete()


def test_a_blocking_request_costs_one_replica_and_no_other_request(served: Served) -> None:
    others: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        with served.client() as client:
            while not ended.is_set():
                others.append(client.get("/pid").status_code)

    asking = [threading.Thread(target=ask) for _ in range(4)]
    with served.client() as client:
        for thread in asking:
            thread.start()
        try:
            got = client.get("/block")
        finally:
            ended.set()
            for thread in asking:
                thread.join()
    assert got.status_code == 502
    assert got.json()["detail"].endswith("stopped answering while this GET ran in it; it is not retried")
    assert others
    assert set(others) == {200}
    status = served.wait(lambda now: now["status"] == "healthy")
    assert [each["restarts"] for each in status["deployments"]] == [1]


def test_a_replica_whose_socket_file_is_gone_is_replaced(cluster: Cluster) -> None:
    served = cluster.deploy("blocking:app")
    try:
        (replica,) = served.ingress("app")["replicas"]
        Path(replica["address"].removeprefix("unix:")).unlink()
        served.wait(lambda now: now["status"] == "healthy" and now["deployments"][0]["restarts"] == 1)
        assert "callers cannot reach" in served.ingress("app")["last_error"]
        with served.client() as client:
            assert client.get("/pid").status_code == 200
    finally:
        served.delete()


@pytest.mark.slow
def test_requests_wait_for_a_blocked_replica_and_status_names_its_code(cluster: Cluster) -> None:
    served = cluster.deploy("blocking:app")
    try:
        answers: list[httpx.Response] = []

        def block() -> None:
            with served.client() as client:
                answers.append(client.get("/block"))

        blocking = threading.Thread(target=block)
        blocking.start()
        with served.client() as client:
            served.wait(lambda now: is_noticed(now["deployments"][0]))
            began = time.monotonic()
            assert client.get("/pid").status_code == 200
        blocking.join()
        assert answers[0].status_code == 502
        assert time.monotonic() - began < 30
        said = served.ingress("app")["last_error"]
        assert "its event loop is blocked for" in said
        assert "blocking.py:25 in block" in said
    finally:
        served.delete()


def is_noticed(group: Mapping[str, Any]) -> bool:
    """Whether a probe failed. A second one ends the replica, which takes a second or two."""
    return group["restarts"] > 0 or any(replica["failed_probes"] for replica in group["replicas"])
