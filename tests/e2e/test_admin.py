"""The admin process on Ray: it starts, is replaced, survives the controller, and takes the metrics of the others."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app_toolkit.client.commands import GetStatus
from app_toolkit.config.models import HTTPOptions
from app_toolkit.core.status import InstanceStatus
from app_toolkit.engines.ray.actors import RayServices
from app_toolkit.observability.snapshots import Snapshots
from tests.cluster import Cluster, Served
from tests.patience import wait_until


def status(cluster: Cluster) -> InstanceStatus:
    return cluster.client.execute(GetStatus())


def get(url: str, path: str) -> httpx.Response:
    return httpx.get(f"{url}{path}", trust_env=False)


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Served]:
    """An application on an instance with an admin process."""
    served = cluster.deploy("targets:fast")
    cluster.update(served.spec, HTTPOptions(admin=True, admin_port=0))
    yield served
    cluster.update(served.spec, HTTPOptions(admin=False))
    served.delete()
    wait_until(lambda: status(cluster).admin is None)


@pytest.fixture
def url(cluster: Cluster, served: Served) -> str:
    wait_until(lambda: status(cluster).admin_url)
    found = status(cluster).admin_url
    assert found is not None
    return found


def pid(cluster: Cluster) -> int:
    admin = status(cluster).admin
    assert admin is not None
    (replica,) = admin.replicas
    return cluster.pid(replica.id)


def push() -> bool:
    snapshot = Snapshots("proxy", "", []).next(0.0)
    assert snapshot is not None
    wait_until(lambda: asyncio.run(RayServices().push_metrics("a process", snapshot)))  # the controller comes first
    return True


def test_admin_process_takes_metrics_and_goes_on_if_the_controller_is_killed(cluster: Cluster, url: str) -> None:
    before = pid(cluster)
    assert push()
    assert get(url, "/metrics").status_code == 200
    os.kill(cluster.controller_pid(), signal.SIGKILL)
    wait_until(lambda: status(cluster).admin_url == url)
    assert pid(cluster) == before
    names = [each["name"] for each in get(url, "/api/status").json()["applications"]]
    assert names == [each.name for each in status(cluster).applications]
    assert push()


def test_admin_process_that_is_killed_is_replaced_and_events_show_it(cluster: Cluster, url: str) -> None:
    os.kill(pid(cluster), signal.SIGKILL)

    def replaced() -> bool:
        found: Any = status(cluster)
        return found.admin_url is not None and found.admin.restarts == 1

    wait_until(replaced)
    assert status(cluster).admin_url == url, "the next one prefers the same port"
    events = [each for page in cluster.client.events(None, None) for each in page if each.subject.startswith("admin@")]
    names = [each.name for each in events]
    assert names[names.index("Exited") :][:1] == ["Exited"]
    assert "Start" in names[names.index("Exited") :]
    assert push()
