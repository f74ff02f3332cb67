"""The controller dies, is stopped, and wakes up again: what runs goes on, and nothing is started twice."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import ray

from app_toolkit.control.controller import GAP_S
from app_toolkit.engines.ray import actors
from app_toolkit.engines.ray import client as ray_client
from app_toolkit.engines.ray.client import RayClient
from app_toolkit.engines.ray.controller import ControllerActor
from tests.cluster import Cluster, Served
from tests.patience import wait_until


def processes(status: Mapping[str, Any]) -> dict[str, str]:
    """All that the controller looks after: the phase of each."""
    groups = [group for each in status["applications"] for group in each["deployments"]]
    return {replica["id"]: replica["phase"] for group in (*groups, *status["proxies"]) for replica in group["replicas"]}


def is_well(status: Mapping[str, Any]) -> bool:
    return status["status"] == "healthy" and set(processes(status).values()) == {"running"}


def pids(ids: Mapping[str, object]) -> dict[str, int]:
    return {id: ray.get(ray.get_actor(id, namespace=actors.NAMESPACE).here.remote()) for id in ids}


@pytest.fixture
def epoch(cluster: Cluster) -> int:
    wait_until(lambda: is_well(cluster.status()))
    number: int = cluster.status()["epoch"]
    return number


@contextmanager
def stopped(pid: int) -> Iterator[float]:
    """Its process gets no time; gives when that began."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_controller_that_wakes_up_finds_its_epoch_taken_and_leaves_everything_to_the_next(
    cluster: Cluster, victim: Served, epoch: int
) -> None:
    first = cluster.controller_pid()
    with victim.client() as client:
        with stopped(first) as since:
            # Ray would bring it back by the same name where its node is lost; this one has none.
            second = ControllerActor.options(namespace=actors.NAMESPACE).remote()
            another = Cluster(RayClient(second), cluster.pid)
            wait_until(lambda: is_well(another.status()))
            assert another.status()["epoch"] == epoch + 1
            before = processes(another.status())
            killed = victim_replicas(another.status(), victim)[0]["id"]
            os.kill(pids({killed: ""})[killed], signal.SIGKILL)
            wait_until(lambda: killed not in processes(another.status()) and is_well(another.status()))
            now = pids(processes(another.status()))
            assert len(now) == len(before)
            wait_until(lambda: time.monotonic() > since + GAP_S)
            assert client.get("/pid").status_code == 200
        wait_until(lambda: not psutil.pid_exists(first))
        assert pids(processes(another.status())) == now, "it has neither ended nor started anything"
        ray.kill(second, no_restart=True)
        wait_until(lambda: cluster.status()["epoch"] == epoch + 2 and is_well(cluster.status()))
        assert pids(processes(cluster.status())) == now
        assert client.get("/pid").status_code == 200


def victim_replicas(status: Mapping[str, Any], victim: Served) -> list[Mapping[str, Any]]:
    [mine] = [each for each in status["applications"] if each["name"] == victim.spec.name]
    found: list[Mapping[str, Any]] = mine["deployments"][0]["replicas"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("who", ["a caller", "an operator"])
def test_a_controller_that_never_answers_begins_anew(
    cluster: Cluster, victim: Served, epoch: int, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pids(processes(cluster.status()))
    first = cluster.controller_pid()
    with victim.client() as client, stopped(first):
        for module, name in ((actors, "SILENT_S"), (ray_client, "SILENT_S"), (actors, "ANSWER_S")):
            monkeypatch.setattr(module, name, 1.0)
        if who == "a caller":
            assert asyncio.run(actors.RayServices().watch("a caller", {})) == {}
        monkeypatch.setattr(actors, "ANSWER_S", 10.0)  # the next one begins meanwhile
        assert cluster.status()["epoch"] > epoch
        assert client.get("/pid").status_code == 200
        wait_until(lambda: not psutil.pid_exists(first))
    wait_until(lambda: is_well(cluster.status()))
    assert pids(processes(cluster.status())) == before
