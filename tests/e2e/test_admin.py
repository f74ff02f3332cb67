"""The admin server on Ray: it takes the metrics of the other processes, and comes back with the controller."""

import asyncio
import os
import signal
from collections.abc import Iterator

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
    """An application on an instance with an admin server."""
    served = cluster.deploy("targets:fast")
    cluster.update(served.spec, HTTPOptions(admin=True, admin_port=0))
    yield served
    cluster.update(served.spec, HTTPOptions(admin=False))
    served.delete()
    wait_until(lambda: status(cluster).admin_url is None)


def push() -> bool:
    snapshot = Snapshots("proxy", "", []).next(0.0)
    assert snapshot is not None
    services = RayServices()
    wait_until(lambda: asyncio.run(services.push_metrics("a process", snapshot)))  # the controller comes first
    return True


def test_admin_server_comes_back_at_the_same_address_if_the_controller_is_killed(
    cluster: Cluster, served: Served
) -> None:
    wait_until(lambda: status(cluster).admin_url)
    url = str(status(cluster).admin_url)
    assert push()
    assert get(url, "/metrics").status_code == 200
    os.kill(cluster.controller_pid(), signal.SIGKILL)
    wait_until(lambda: status(cluster).admin_url == url)
    names = [each["name"] for each in get(url, "/api/status").json()["applications"]]
    assert names == [each.name for each in status(cluster).applications]
    assert push()
