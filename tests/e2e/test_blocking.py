"""A route that blocks its event loop: it costs one replica, and the requests beside it nothing."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, Served


@pytest.fixture(scope="module")
def served(processes: Cluster) -> Iterator[Served]:
    served = processes.deploy("blocking:app", num_replicas=2)
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


def test_a_replica_whose_socket_file_is_gone_is_replaced(served: Served) -> None:
    before = served.ingress("app")["restarts"]
    gone = served.ingress("app")["replicas"][0]
    Path(gone["address"].removeprefix("unix:")).unlink()
    served.wait(lambda now: now["status"] == "healthy" and now["deployments"][0]["restarts"] == before + 1)
    assert "callers cannot reach" in served.ingress("app")["last_error"]
    with served.client() as client:
        assert client.get("/pid").status_code == 200
