"""The admin server in the process of the controller: when it runs, and what becomes of pushed metrics."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.operations import Deploy
from app_toolkit.control.queries import GetStatus
from app_toolkit.control.status import InstanceStatus
from app_toolkit.observability.snapshots import Snapshots
from app_toolkit.operate import admin_host as admin
from app_toolkit.operate.admin_host import DOWN_S, OFF_S
from tests.control.specs import application
from tests.operate.admin.instance import Instance
from tests.patience import wait_until


@pytest.fixture
def instance() -> Iterator[Instance]:
    instance = Instance(with_admin=True)
    yield instance
    instance.close()


def deploy(instance: Instance, **options: Any) -> None:
    instance.execute(Deploy(application(), HTTPOptions(port=8123, **options)))


def status(instance: Instance) -> InstanceStatus:
    return instance.execute(GetStatus())


def snapshot() -> bytes:
    made = Snapshots("controller", "", [], state=lambda: {"revisions": {}, "processes": []}).next(0.0)
    assert made is not None
    return made


def test_server_runs_while_the_options_switch_it_on_and_keeps_the_metrics(instance: Instance) -> None:
    assert instance.push("controller", snapshot()) == (False, DOWN_S)
    deploy(instance, admin_port=0)
    for pushed in (0, 1):
        wait_until(lambda: status(instance).admin_url)
        url = status(instance).admin_url
        metrics = httpx.get(f"{url}/metrics", trust_env=False).text
        assert ('app_toolkit_metrics_processes{component="controller"} 1' in metrics) == pushed
        assert instance.push("controller", snapshot()) == (True, 0.0)
        deploy(instance, admin=False)
        wait_until(lambda: status(instance).admin_url is None)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/metrics", trust_env=False)
        assert instance.push("controller", snapshot()) == (False, OFF_S)
        deploy(instance, admin=True)


def test_server_starts_once_its_port_is_free(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "CHECK_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        deploy(instance, admin_port=port)
        wait_until(lambda: status(instance).admin_failure)
        assert f"the admin server cannot listen on port {port} of 127.0.0.1" in str(status(instance).admin_failure)
    wait_until(lambda: status(instance).admin_url == f"http://127.0.0.1:{port}")
    assert status(instance).admin_failure is None


def test_server_starts_although_an_attempt_had_no_thread(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(admin, "CHECK_S", 0.05)
    with monkeypatch.context() as short:
        short.setattr(admin.AdminServer, "start", refuse)
        deploy(instance, admin_port=0)
        wait_until(lambda: status(instance).admin_failure == "RuntimeError: can't start new thread")
    wait_until(lambda: status(instance).admin_url)
