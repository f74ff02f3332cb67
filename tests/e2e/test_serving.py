"""An app on Ray: proxy, router and replicas, and its requests if one of these dies."""

import asyncio
import json
import os
import signal
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import ray

from app_toolkit.config.models import HTTPOptions
from app_toolkit.config.settings import runtime_folder
from app_toolkit.declare.planning import plan
from app_toolkit.engines.ray.actors import RayServices
from app_toolkit.errors import ConfigError
from app_toolkit.host import orders
from app_toolkit.observability.snapshots import Snapshots
from app_toolkit.userapp.loading import load
from tests.cluster import E2E, Cluster, Served
from tests.patience import PATIENCE_S, wait_until


def pids(served: Served, path: str = "/pid", tries: int = 60) -> set[int]:
    with served.client() as client:  # a connection would stay at one replica
        return {client.get(path, headers={"connection": "close"}).json() for _ in range(tries)}


def test_objects_of_the_start_are_frozen_for_the_garbage_collector(victim: Served) -> None:
    with victim.client() as client:
        assert client.get("/frozen").json() > 50_000, "FastAPI, Ray, and the app"


def test_access_log_has_each_request_and_is_private(victim: Served) -> None:
    with victim.client() as client:
        client.get("/pid?token=secret", headers={"x-request-id": "in-the-log"})
    logs = runtime_folder() / ray.get_runtime_context().get_session_name() / "logs"
    deadline = time.monotonic() + PATIENCE_S
    while not (lines := [line for line in access_log(logs) if "in-the-log" in line]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (line,) = lines
    assert "secret" not in line
    record = json.loads(line)
    assert (record["path"], record["status"], record["outcome"]) == (f"{victim.spec.route_prefix}/pid", 200, "ok")
    assert record["ingress"] == f"{victim.spec.name}/app"


def access_log(logs: Path) -> list[str]:
    assert stat.S_IMODE(logs.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in logs.iterdir()} <= {0o600}
    return [line for path in logs.glob("access-*.log") for line in path.read_text().splitlines()]


def test_killing_a_replica_under_load_loses_nothing_and_it_is_replaced(victim: Served) -> None:
    before, restarts = pids(victim), victim.ingress("app")["restarts"]
    outcomes: Counter[object] = Counter()
    stop = threading.Event()

    def load() -> None:
        with victim.client() as client:
            while not stop.wait(0.01):
                try:
                    outcomes[client.get("/sleep/0.01").status_code] += 1
                except httpx.HTTPError as error:
                    outcomes[repr(error)] += 1

    clients = [threading.Thread(target=load, name=f"app-toolkit client {n}") for n in range(8)]
    for client in clients:
        client.start()
    killed = before.copy()
    try:
        for _ in range(2):
            served = sum(outcomes.values())
            wait_until(lambda served=served: sum(outcomes.values()) > served + 100)  # type: ignore[misc]
            os.kill(victim_pid := killed.pop(), signal.SIGKILL)
            wait_until(lambda gone=victim_pid: len(now := pids(victim)) == 3 and gone not in now)  # type: ignore[misc]
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert set(outcomes) == {200}, outcomes
    assert victim.ingress("app")["restarts"] == restarts + 2
    victim.wait(lambda now: now["status"] == "healthy")


@pytest.fixture
def admin_url(victim: Served) -> Iterator[str]:
    """The URL of the admin server, which runs during the test."""
    victim.cluster.update(victim.spec, HTTPOptions(admin=True, admin_port=0))
    wait_until(lambda: victim.cluster.status()["admin_url"])
    yield victim.cluster.status()["admin_url"]
    victim.cluster.update(victim.spec, HTTPOptions(admin=False))
    wait_until(lambda: victim.cluster.status()["admin_url"] is None)


def takes_metrics() -> bool:
    """Return whether the admin server gets the metrics of another process."""
    snapshot = Snapshots("proxy", "", []).next(0.0)
    assert snapshot is not None
    return asyncio.run(RayServices().push_metrics("a process", snapshot))


def test_a_controller_that_is_killed_comes_back_with_its_admin_server_and_restarts_nothing(
    victim: Served, admin_url: str
) -> None:
    before = pids(victim), pids(victim, "/other/pid")
    epoch = victim.cluster.status()["epoch"]
    wait_until(takes_metrics)
    with victim.client() as client:  # the next controller does not know at once where proxies listen
        os.kill(victim.cluster.controller_pid(), signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while victim.cluster.status()["epoch"] == epoch:
            assert client.get("/pid").status_code == 200
            assert time.monotonic() < deadline
    victim.wait(lambda now: now["status"] == "healthy")
    assert (pids(victim), pids(victim, "/other/pid")) == before
    wait_until(lambda: victim.cluster.status()["admin_url"] == admin_url)
    wait_until(takes_metrics)
    # It looks after them as before.
    os.kill(gone := next(iter(before[0])), signal.SIGKILL)
    wait_until(lambda: len(now := pids(victim)) == 3 and gone not in now)


def test_killed_proxy_restarts_on_its_port(victim: Served) -> None:
    before, url = pids(victim), victim.url
    os.kill(victim.cluster.proxy_pid(), signal.SIGKILL)

    def serves_again() -> bool:
        try:
            return pids(victim) == before
        except (httpx.HTTPError, ConfigError):  # ConfigError: none is up
            return False

    wait_until(serves_again)
    assert victim.url == url


def test_questions_to_a_replica_that_ends_before_it_has_started_show_no_error_of_ray(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    unhandled: list[Exception] = []
    monkeypatch.setattr("ray._private.worker._unhandled_error_handler", unhandled.append)
    target = "deployed:starts_for_ever"
    spec = plan(load(target, str(E2E)), target=target, app_dir=str(E2E), name="asked", route_prefix="/asked")
    cluster.update(spec)
    served = Served(cluster, spec)
    served.wait(lambda now: any(each["replicas"] for each in now["deployments"]))
    monkeypatch.setattr(orders, "QUESTION_S", 0.0)  # it does not wait for the replica
    assert cluster.client.load()
    served.delete()
    assert not unhandled
